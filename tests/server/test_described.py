"""The API against its own description: schemathesis, with all its checks, and real ids."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING

from tests.gate.slack_server import slack_server
from tests.relay.hub import hub_at
from waystation.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.relay.hub import Hub

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "4"))
SECONDS = 240

CONFIG = """
[checks]
# What no schema can say (a cursor is one of ours, of two fields one is needed, a key goes with its
# body) is refused by the name of the field: see names_the_field below.
positive_data_acceptance.expected-statuses = ["2xx", "302", 400, 401, 403, 404, 409, 422, 429]

[parameters]
"""
HOOKS = '''
import schemathesis


@schemathesis.check
def names_the_field(ctx, response, case):
    """Whatever is refused says which part of the request is wrong, or what stands in its way."""
    if response.status_code in (400, 422):
        problem = response.json()
        assert problem["detail"], problem
        if response.status_code == 400:
            assert problem["errors"][0]["field"], problem
            assert problem["errors"][0]["message"], problem
'''


async def prepared(hub: Hub) -> dict[str, str]:
    """Something of everything, by the names of the parameters."""
    source = await hub.source()
    connection = await hub.connect(source, "http://127.0.0.1:9/", retry={"schedule": []})
    inbox = "/v1/tenants/acme/inboxes/main"
    workspace = {"bot_token": "xoxb-1", "signing_secret": "s" * 32}
    site = {"origin": "http://127.0.0.1:9", "revalidate_seconds": 60}
    for path, body in (
        ("/v1/tenants/acme/settings", {"title": "Acme"}),
        (inbox, {"title": "Main"}),
        ("/v1/gate/workspaces/T1", workspace),
        ("/v1/pages/sites/shop", site),
    ):
        assert (await hub.call("PUT", path, body)).status == 200, path
    message = {
        "audience": {"kind": "users", "uids": ["ann"]},
        "sender": "shop",
        "message": {"title": "Hello", "body": "there"},
    }
    published = await hub.call("POST", f"{inbox}/messages", message)
    replay = await hub.call("POST", "/v1/events/replay", {"source_id": source})
    key = await hub.call("POST", "/v1/api-keys", {"name": "another"})
    return {
        "source_id": source,
        "connection_id": connection["id"],
        "event_id": await hub.sent(source),
        "replay_id": replay.json["id"],
        "key_id": key.json["id"],
        "tenant": "acme",
        "inbox": "main",
        "message_id": published.json["id"],
        "uid": "ann",
        "site": "shop",
        "team_id": "T1",
        "conversation_id": "c-1",
        "letter_id": "none",
        "unknown_id": "none",
        "provider": "github",
    }


async def test_the_api_is_what_its_description_says(tmp_path: Path) -> None:
    clock = ManualClock(time.time())
    async with (
        slack_server() as slack,
        hub_at(clock, slack_api_url=slack.url) as hub,
    ):
        slack.team()
        ids = await prepared(hub)
        config, hooks = tmp_path / "schemathesis.toml", tmp_path / "hooks.py"
        config.write_text(CONFIG + "".join(f'"path.{n}" = "{v}"\n' for n, v in ids.items()))
        hooks.write_text(HOOKS)
        run = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"),
            *(f"{hub.server.url}/openapi.json", "-H", f"Authorization: Bearer {hub.key}"),
            *("--checks", "all", "--max-examples", str(EXAMPLES), "--no-color"),
            *("--phases", "examples,coverage,fuzzing", "--request-timeout", "3"),
            env=os.environ | {"SCHEMATHESIS_HOOKS": str(hooks)},
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(SECONDS):
                output, _ = await run.communicate()
        finally:
            if run.returncode is None:
                run.kill()
                await run.wait()
    assert run.returncode == 0, output.decode()[-8_000:]
    assert b"Tested: 84" in output
