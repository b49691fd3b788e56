"""An installation on AWS, set up as docs/settings.md says, on DynamoDB Local and moto."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from tests.support.site import settings_with
from waystation.cli import main
from waystation.server.runtime import running

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = [sys.executable, "-m", "waystation.cli"]
REGION = "eu-west-1"


@pytest.fixture
def newcomer(dynamodb_url: str, moto_url: str, tmp_path: Path) -> dict[str, str]:
    """An environment that has AWS's own variables, and a region nowhere. Each access key has a
    DynamoDB Local to itself."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("WAYSTATION_", "AWS_"))}
    return kept | {
        "AWS_ACCESS_KEY_ID": uuid.uuid4().hex[:12],
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_url,
        "AWS_ENDPOINT_URL_SQS": moto_url,
        "AWS_ENDPOINT_URL_S3": moto_url,
    }


def documented(bucket: str) -> dict[str, str]:
    """The settings of the section "On AWS", to the letter but for the bucket's name."""
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    section = text.partition("## On AWS")[2].partition(", everything lives on AWS")[0]
    found = dict(re.findall(r"`(WAYSTATION_\w+)=([^`]+)`", section))
    assert len(found) == 3
    assert "a `WAYSTATION_SECRET_KEY`" in section
    found["WAYSTATION_BLOBS"] = found["WAYSTATION_BLOBS"].replace("bucket", bucket)
    return found | {"WAYSTATION_SECRET_KEY": "k" * 40}


def run(*arguments: str, env: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def deploy(template: dict[str, Any], env: dict[str, str], moto_url: str) -> str:
    """Carry out the template, the tables on DynamoDB Local; the bucket's name."""
    session = boto3.Session(env["AWS_ACCESS_KEY_ID"], "local", region_name=REGION)
    tables = session.client("dynamodb", endpoint_url=env["AWS_ENDPOINT_URL_DYNAMODB"])
    rest = {}
    for name, resource in template["Resources"].items():
        given = dict(resource["Properties"])
        if resource["Type"] != "AWS::DynamoDB::Table":
            rest[name] = resource
            continue
        given.pop("PointInTimeRecoverySpecification")
        ttl = given.pop("TimeToLiveSpecification", None)
        if stream := given.get("StreamSpecification"):
            given["StreamSpecification"] = {"StreamEnabled": True, **stream}
        tables.create_table(**given)
        if ttl:
            table = given["TableName"]
            tables.update_time_to_live(TableName=table, TimeToLiveSpecification=ttl)
    formation = session.client("cloudformation", endpoint_url=moto_url)
    outputs = {"Blobs": template["Outputs"]["Blobs"]}
    stack = f"waystation-{uuid.uuid4().hex[:8]}"
    formation.create_stack(
        StackName=stack, TemplateBody=json.dumps(template | {"Resources": rest, "Outputs": outputs})
    )
    described = formation.describe_stacks(StackName=stack)["Stacks"][0]
    return str(described["Outputs"][0]["OutputValue"])


@contextmanager
def serving(env: dict[str, str], cwd: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--json"],
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def call(url: str, key: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
        return json.loads(answer.read())


def test_the_documented_settings_start_and_the_doctor_is_content(
    newcomer: dict[str, str], moto_url: str, tmp_path: Path
) -> None:
    template = json.loads(run("tables", "--cloudformation", env=newcomer, cwd=tmp_path))
    env = newcomer | documented(deploy(template, newcomer, moto_url))
    with serving(env, tmp_path) as url:
        key = run("keys", "create", "ann@example.com", env=env, cwd=tmp_path).strip()
        source = call(f"{url}/v1/sources", key, {"name": "A"})
        event = call(source["url"], key, {"n": 1})
        assert call(f"{url}/v1/events/{event['id']}", key)["body"] == '{"n": 1}'
        found = json.loads(run("doctor", "--json", env=env, cwd=tmp_path))
    assert {finding["name"] for finding in found} >= {"store", "queue", "blobs", "clock"}
    assert [finding for finding in found if not finding["ok"]] == []


@pytest.mark.parametrize("region", ["eu-west-1", "us-east-1"])
async def test_a_stand_in_gets_its_bucket_too(region: str, moto_url: str, tmp_path: Path) -> None:
    settings = settings_with(
        store=f"sqlite:///{tmp_path / 'test.db'}",
        queue=f"sqs://{region}",
        blobs=f"s3://new-{uuid.uuid4().hex[:12]}/below",
        aws_endpoint_url=moto_url,
    )
    for _ in range(2):  # the second time it is there
        async with running(settings) as runtime:
            await runtime.blobs.put("a", b"1")
            assert await runtime.blobs.get("a") == b"1"


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (None, "The specified bucket does not exist (NoSuchBucket)"),
        ("http://127.0.0.1:9", "http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_the_doctor_explains_what_is_wrong_with_a_bucket(
    endpoint: str | None,
    said: str,
    moto_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint or moto_url)
    monkeypatch.setenv("WAYSTATION_BLOBS", "s3://no-such-bucket-here")
    assert main(["doctor", "--json"]) == 1
    [finding] = [each for each in json.loads(capsys.readouterr().out) if not each["ok"]]
    assert finding["name"] == "blobs"
    assert finding["detail"].endswith(said)
    assert "--cloudformation" in finding["fix"]
