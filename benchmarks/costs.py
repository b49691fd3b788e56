"""What the relay asks of AWS: calls and units for each event and delivery, and their price.

Counted on AWS's DynamoDB Local and on moto's SQS, now and at commit 976ad1c, with webhooks of 2 KB,
50 a second to one destination and 10 a second to ten. Units are those that DynamoDB Local reports.
What the server does when idle is taken off.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import uvloop
from tests.support import dynamodb_local, moto_server

from benchmarks.before import checked_out
from benchmarks.harness import environment, save
from benchmarks.relay import SIZE, drained, serving, table
from benchmarks.saturation import BEFORE
from benchmarks.wire import helper, open_loop, plain

RATE, SECONDS, IDLE = {1: 50, 10: 10}, 10, 8
WRITE_DOLLARS, READ_DOLLARS, CALL_DOLLARS = 0.625, 0.125, 0.40
"""A million units on demand, and a million calls of SQS, in us-east-1."""

_SQS = ("SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch")


async def counted(
    folder: Path, packages: Path | None, aws: dict[str, str], fan_out: int
) -> dict[str, float]:
    """Counts for one event."""
    file = folder / "counts.json"
    settings = aws | {"COUNTS": str(file), "WAYSTATION_ENV": f"b{uuid.uuid4().hex[:8]}"}

    def counts() -> dict[str, float]:
        found: dict[str, float] = json.loads(file.read_text())
        return found

    with (
        serving(folder, "benchmarks.counting", settings, packages=packages) as server,
        helper("receiver") as receiver,
    ):
        notes = f"http://127.0.0.1:{receiver}/"
        source = server.source(*[f"{notes}{n}" for n in range(fan_out)])
        make = plain(f"/in/{source}", SIZE)
        await open_loop(server.port, make, 10, 2)
        await drained(notes, 20 * fan_out)
        await asyncio.sleep(2)
        first = counts()
        await asyncio.sleep(IDLE)
        second = counts()
        events, begun = RATE[fan_out] * SECONDS, time.monotonic()
        await open_loop(server.port, make, RATE[fan_out], SECONDS)
        took, _ = await drained(notes, events * fan_out)
        assert len(took) == events * fan_out, "something was not delivered"
        third: dict[str, float] = {}
        while third.get("write units") != counts().get("write units"):
            third = counts()  # outcomes are still being written
            await asyncio.sleep(2)
    idle = (time.monotonic() - begun) / IDLE
    return {
        name: round(
            max(0.0, value - second.get(name, 0))
            - idle * max(0.0, second.get(name, 0) - first.get(name, 0)),
            3,
        )
        / events
        for name, value in third.items()
    }


def shown(found: dict[str, float]) -> dict[str, float]:
    calls = sum(n for name, n in found.items() if "units" not in name)
    sqs = sum(found.get(name, 0.0) for name in _SQS)
    dollars = (
        found.get("write units", 0.0) * WRITE_DOLLARS
        + found.get("read units", 0.0) * READ_DOLLARS
        + sqs * CALL_DOLLARS
    )
    return {
        "calls": round(calls, 2),
        "write units": round(found.get("write units", 0.0), 2),
        "read units": round(found.get("read units", 0.0), 2),
        "calls of SQS": round(sqs, 2),
        "dollars for a million": round(dollars, 2),
    }


async def main() -> None:
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as home,
        checked_out(BEFORE) as before,
        dynamodb_local.running() as dynamodb,
        moto_server.running() as moto,
    ):
        aws = {
            "WAYSTATION_STORE": "dynamodb://us-east-1",
            "WAYSTATION_QUEUE": "sqs://us-east-1",
            "WAYSTATION_BLOBS": "memory:///",
            "WAYSTATION_AWS_ENDPOINT_URL": dynamodb,
            "WAYSTATION_SECRET_KEY": "s" * 40,
            "WAYSTATION_ALLOW_NETWORKS": "127.0.0.0/8",
            "AWS_ENDPOINT_URL_SQS": moto,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
        }
        for fan_out in (1, 10):
            for name, packages in (("before", before), ("now", None)):
                folder = Path(home) / f"{name} {fan_out}"
                folder.mkdir()
                counts = await counted(folder, packages, aws, fan_out)
                found[f"an event to {fan_out}, {name}"] = shown(counts)
                print(table(name, {f"to {fan_out}": shown(counts), "counts": counts}), flush=True)
    text = "\n".join(
        [
            "# What the relay costs on AWS\n",
            __doc__ or "",
            table("For each event, with all its deliveries", found),
            f"Prices: {WRITE_DOLLARS} dollars for a million write units, {READ_DOLLARS} for read "
            f"units on demand, {CALL_DOLLARS} for calls of SQS. A million events to one "
            "destination are a million webhooks in and a million out.\n",
        ]
    )
    save("costs", text, {"costs": found} | environment())


if __name__ == "__main__":
    uvloop.run(main())
