"""`waystation relay tail` and `waystation relay replay`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from waystation.errors import SettingsError

if TYPE_CHECKING:
    from waystation.client import ApiClient
    from waystation.seam import Call, Commands

_PROGRESS_SECONDS = 0.5


def add_commands(commands: Commands) -> None:
    relay = commands.group("relay", "webhooks")
    tail = relay.add("tail", _tail, help="show new events as they come", calls=True)
    tail.add_argument("--source", help="events of this source only")
    tail.add_argument("--since", help="begin at a time, such as 2026-01-31T12:00:00Z")
    tail.add_argument(
        "--forward", type=_target, metavar="URL", help="send each event on, as it came"
    )
    tail.add_argument("--count", type=int, help="stop after so many events")

    replay = relay.add("replay", _replay, help="deliver events once more", calls=True)
    replay.add_argument("events", nargs="*", metavar="EVENT", help="ids of the events to replay")
    replay.add_argument("--source", help="replay all events of this source")
    replay.add_argument("--status", help="only events with this status, such as failed")
    replay.add_argument("--from", dest="since", metavar="TIME", help="only events since this time")
    replay.add_argument("--to", dest="until", metavar="TIME", help="only events up to this time")
    replay.add_argument("--connection", action="append", default=[], help="only to this connection")


def _target(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError("must begin with http:// or https:// and name a host")
    return text


async def _tail(call: Call) -> int:
    # Imported here so that other commands start without it.
    import aiohttp

    from waystation.relay.client import forward, tail

    def reconnecting(reason: str) -> None:
        print(f"reconnecting: {reason}", file=sys.stderr, flush=True)

    options, shown, failed = call.options, 0, 0
    async with (
        call.client() as api,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as outside,
    ):
        async for event in tail(api, options.source, options.since, reconnecting):
            answer = None
            if options.forward:
                answer = await forward(outside, event, options.forward)
                if not 200 <= answer[0] < 300:
                    failed += 1
                    reason = " ".join(str(part) for part in answer if part)
                    print(f"{event['id']} was not taken: {reason}", file=sys.stderr, flush=True)
            print(_line(event, answer, as_json=options.json), flush=True)
            shown += 1
            if shown == options.count:
                break
    return 1 if failed else 0


def _line(event: dict[str, Any], answer: tuple[int, str] | None, *, as_json: bool) -> str:
    if as_json:
        forwarded = {} if answer is None else {"forwarded": dict(zip(_ANSWER, answer, strict=True))}
        return json.dumps(event | forwarded)
    path = "".join(c if c.isprintable() else "?" for c in event["path"] or "/")
    parts = [event["received_at"], event["source_id"], event["id"]]
    parts.append(f"{event['method']} {path} {event['size']} bytes")
    if answer is not None:
        parts.append(f"-> {answer[0] or answer[1]}")
    return "  ".join(parts)


_ANSWER = ("status", "detail")


async def _replay(call: Call) -> int:
    options = call.options
    if bool(options.events) == bool(options.source):
        raise SettingsError("name either single events or a --source")
    async with call.client() as api:
        if options.events:
            body = {"connection_ids": options.connection}
            for event_id in options.events:
                replay = await api.call("POST", f"/v1/events/{event_id}/replay", body)
                call.show(replay, f"{event_id}: {len(replay['deliveries'])} deliveries")
            return 0
        asked = {"status": options.status, "from": options.since, "to": options.until}
        asked = {name: value for name, value in asked.items() if value is not None}
        asked |= {"source_id": options.source, "connection_ids": options.connection}
        return await _follow(call, api, await api.call("POST", "/v1/events/replay", asked))


async def _follow(call: Call, api: ApiClient, replay: dict[str, Any]) -> int:
    """Show how far a replay has come until it is done."""
    while replay["status"] == "running":
        if not call.options.json:
            print(f"{replay['events']} events so far", file=sys.stderr, flush=True)
        await asyncio.sleep(_PROGRESS_SECONDS)
        replay = await api.call("GET", f"/v1/replays/{replay['id']}")
    summary = f"{replay['events']} events, {replay['deliveries']} deliveries"
    call.show(replay, f"{replay['id']}: {replay['status']}, {summary}")
    return 0 if replay["status"] == "done" else 1
