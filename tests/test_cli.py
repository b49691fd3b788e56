"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from waystation.cli import main
from waystation.tables import TABLES


def test_tables_shows_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables"]) == 0
    shown = capsys.readouterr().out
    for table in TABLES:
        assert f"dev-{table.name}" in shown


def test_tables_for_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_ENV", "prod")
    assert main(["tables", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [table["name"] for table in shown] == [f"prod-{table.name}" for table in TABLES]


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
    made = {resource["Properties"]["TableName"]: resource["Properties"] for resource in resources}
    assert made.keys() == {f"dev-{table.name}" for table in TABLES}
    events = made["dev-ferryhook-events"]
    assert events["BillingMode"] == "PAY_PER_REQUEST"
    assert events["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert events["TimeToLiveSpecification"] == {"AttributeName": "expiresAt", "Enabled": True}
    assert [index["IndexName"] for index in events["GlobalSecondaryIndexes"]] == ["GSI1"]
    assert made["dev-stak-inbox"]["StreamSpecification"] == {"StreamViewType": "NEW_AND_OLD_IMAGES"}


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["tables", "--json", "--cloudformation"]])
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
