"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import waystation
from waystation.cli import main
from waystation.queues import QueueSpec
from waystation.seam import tables_of
from waystation.server.cloudformation import template
from waystation.systems import SYSTEMS


def test_tables_shows_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables"]) == 0
    shown = capsys.readouterr().out
    for table in tables_of(SYSTEMS):
        assert f"dev-{table.name}" in shown


def test_tables_for_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_ENV", "prod")
    assert main(["tables", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [table["name"] for table in shown] == [
        f"prod-{table.name}" for table in tables_of(SYSTEMS)
    ]


def test_cfn_lint_accepts_the_template(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "waystation.cli", "tables", "--cloudformation"]
    template = tmp_path / "template.json"
    with template.open("wb") as out:
        subprocess.run(command, check=True, stdout=out)
    linter = Path(sys.executable).with_name("cfn-lint")
    linted = subprocess.run([linter, template], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_the_template_has_what_each_table_needs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["tables", "--cloudformation"])
    resources = json.loads(capsys.readouterr().out)["Resources"].values()
    created = {
        resource["Properties"]["TableName"]: resource["Properties"]
        for resource in resources
        if resource["Type"] == "AWS::DynamoDB::Table"
    }
    assert created.keys() == {f"dev-{table.name}" for table in tables_of(SYSTEMS)}
    events = created["dev-ferryhook-events"]
    assert events["BillingMode"] == "PAY_PER_REQUEST"
    assert events["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert events["TimeToLiveSpecification"] == {"AttributeName": "expiresAt", "Enabled": True}
    indexes = [index["IndexName"] for index in events["GlobalSecondaryIndexes"]]
    assert indexes == ["GSI1", "GSI2", "GSI3"]
    assert created["dev-stak-inbox"]["StreamSpecification"] == {
        "StreamViewType": "NEW_AND_OLD_IMAGES"
    }


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["tables", "--yaml"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    shell = f"{sys.executable} -m waystation.cli tables --cloudformation | head -1"
    ran = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert ran.stdout == "{\n"
    assert ran.stderr == ""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_key_is_printed_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "Ann@Example.com"]) == 0
    first = capsys.readouterr().out
    assert first.startswith("ws_live_")
    assert first.count("\n") == 1
    assert main(["keys", "create", "ann@example.com", "--permissions", "read", "--json"]) == 0
    created = json.loads(capsys.readouterr().out)
    assert created["key"] != first.strip()
    assert (created["email"], created["permissions"]) == ("ann@example.com", "read")
    assert created["plan"] == "unlimited"


def test_a_key_comes_with_the_database_that_it_is_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "create", "ann@example.com"]) == 0
    said = capsys.readouterr().err
    assert "sqlite:///waystation.db" in said
    assert "new database" in said
    assert main(["keys", "create", "ann@example.com"]) == 0
    said = capsys.readouterr().err
    assert "sqlite:///waystation.db" in said
    assert "new database" not in said


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"waystation {waystation.__version__}\n"


def test_a_file_of_settings_can_be_named_after_the_command(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "own.toml").write_text('env = "staging"')
    for arguments in (["tables", "--config", "own.toml"], ["--config", "own.toml", "tables"]):
        assert main([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["name"].startswith("staging-")


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_cannot_be_is_said(
    here: Path, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    assert main(["serve", f"--port={port}"]) == 1
    assert "port" in capsys.readouterr().err


def test_a_bad_email_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "nobody"]) == 1
    assert "email" in capsys.readouterr().err


def test_the_doctor_finds_a_new_install_healthy(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert [line.split()[:2] for line in output.splitlines()] == [
        ["ok", part]
        for part in (
            *("settings", "store", "secret", "queue", "blobs", "clock"),
            *("desk", "richpanel", "slack"),
        )
    ]


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("WAYSTATION_STORE", "sqlite:////nowhere/at/all.db", "store"),
        ("WAYSTATION_BLOBS", "file:/proc/nowhere", "blobs"),
        ("WAYSTATION_BLOBS", "pigeon://coop", "blobs"),
        ("WAYSTATION_PRT", "80", "settings"),
        ("WAYSTATION_PUBLIC_URL", "http://[", "settings"),
        ("WAYSTATION_SECRET_KEY", "short", "settings"),
    ],
)
def test_the_doctor_says_what_to_fix(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    part: str,
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["doctor", "--json"]) == 1
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found[part]["ok"] is False
    assert found[part]["fix"]


def test_the_doctor_notices_tables_that_were_not_deployed(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    dynamodb_url: str,
    moto_url: str,
) -> None:
    monkeypatch.setenv("WAYSTATION_STORE", "dynamodb://eu-west-1")
    monkeypatch.setenv("WAYSTATION_QUEUE", "sqs://eu-west-1")
    monkeypatch.setenv("WAYSTATION_SECRET_KEY", "k" * 40)
    monkeypatch.setenv("WAYSTATION_ENV", "not-deployed")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", moto_url)
    assert main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "FAIL  store" in output
    assert "waystation tables --cloudformation" in output


def test_the_doctor_notices_a_key_that_is_gone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 0
    (here / "waystation.key").unlink()
    assert main(["doctor"]) == 1
    assert "put it back" in capsys.readouterr().out
    assert not (here / "waystation.key").exists()
    assert main(["keys", "create", "ann@example.com"]) == 1


def test_a_database_written_with_another_key_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["keys", "create", "ann@example.com"]) == 0
    monkeypatch.setenv("WAYSTATION_SECRET_KEY", "k" * 40)
    assert main(["keys", "create", "ann@example.com"]) == 1
    assert "another key" in capsys.readouterr().err


def test_the_doctor_notices_a_clock_that_is_off(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr("waystation.server.doctor.time.time", lambda: real() + 3600)
    assert main(["doctor"]) == 1
    assert "FAIL  clock" in capsys.readouterr().out


def test_queues_and_the_bucket_are_in_the_template(tmp_path: Path) -> None:
    queues = [QueueSpec(name="jobs"), QueueSpec(name="ordered-jobs", ordered=True)]
    created = template(tables_of(SYSTEMS), "prod", queues)
    names = {
        resource["Properties"]["QueueName"]
        for resource in created["Resources"].values()
        if resource["Type"] == "AWS::SQS::Queue"
    }
    assert names == {
        *("prod-jobs", "prod-jobs-dead", "prod-ordered-jobs.fifo", "prod-ordered-jobs-dead.fifo")
    }
    file = tmp_path / "template.json"
    file.write_text(json.dumps(created))
    linter = Path(sys.executable).with_name("cfn-lint")
    linted = subprocess.run([linter, file], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")
