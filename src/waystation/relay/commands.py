"""`waystation relay tail` and `waystation relay replay`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from waystation.errors import SettingsError
from waystation.relay.client import Client
from waystation.settings import Settings, load_settings

if TYPE_CHECKING:
    import argparse

_PROGRESS_SECONDS = 0.5


def add_parser(commands: Any, shared: argparse.ArgumentParser) -> None:
    relay = commands.add_parser("relay", help="webhooks").add_subparsers(
        required=True, metavar="COMMAND"
    )
    tail = relay.add_parser("tail", parents=[shared], help="show new events as they come")
    _reach(tail)
    tail.add_argument("--source", help="of one source only")
    tail.add_argument("--since", help="begin at a time, such as 2026-01-31T12:00:00Z")
    tail.add_argument("--forward", metavar="URL", help="send each event on, as it came")
    tail.add_argument("--count", type=int, help="stop after so many events")
    tail.set_defaults(run=lambda options: asyncio.run(_tail(options)))

    replay = relay.add_parser("replay", parents=[shared], help="deliver events once more")
    _reach(replay)
    replay.add_argument("events", nargs="*", metavar="EVENT", help="single events")
    replay.add_argument("--source", help="many events of one source")
    replay.add_argument("--status", help="those with a status, such as failed")
    replay.add_argument("--from", dest="since", metavar="TIME")
    replay.add_argument("--to", dest="until", metavar="TIME")
    replay.add_argument("--connection", action="append", default=[], help="to some connections")
    replay.set_defaults(run=lambda options: asyncio.run(_replay(options)))


def _reach(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="the server; by default the one on this machine")
    parser.add_argument("--key", help="an API key; or set WAYSTATION_API_KEY")


def _client(options: argparse.Namespace) -> Client:
    settings: Settings = load_settings(options.config)
    key = options.key or settings.api_key
    if key is None:
        raise SettingsError("an API key is needed: --key or WAYSTATION_API_KEY")
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    shown = f"[{host}]" if ":" in host else host
    return Client(options.url or f"http://{shown}:{settings.port}", key)


async def _tail(options: argparse.Namespace) -> None:
    def reconnecting(reason: str) -> None:
        print(f"reconnecting: {reason}", file=sys.stderr, flush=True)

    shown = 0
    async with _client(options) as client:
        async for event in client.tail(options.source, options.since, reconnecting):
            told = await client.forward(event, options.forward) if options.forward else None
            print(_line(event, told, as_json=options.json), flush=True)
            shown += 1
            if shown == options.count:
                return


def _line(event: dict[str, Any], told: tuple[int, str] | None, *, as_json: bool) -> str:
    if as_json:
        answer = {} if told is None else {"forwarded": {"status": told[0], "detail": told[1]}}
        return json.dumps(event | answer)
    shown = [event["received_at"], event["source_id"], event["id"]]
    path = "".join(c if c.isprintable() else "?" for c in event["path"] or "/")
    shown.append(f"{event['method']} {path} {event['size']} bytes")
    if told is not None:
        shown.append(f"-> {told[0] or told[1]}")
    return "  ".join(shown)


async def _replay(options: argparse.Namespace) -> int:
    if bool(options.events) == bool(options.source):
        raise SettingsError("name single events, or a --source")
    async with _client(options) as client:
        if options.events:
            body = {"connection_ids": options.connection}
            for event_id in options.events:
                made = await client.call("POST", f"/v1/events/{event_id}/replay", body)
                _show(options, made, f"{event_id}: {len(made['deliveries'])} deliveries")
            return 0
        asked = {"status": options.status, "from": options.since, "to": options.until}
        asked = {name: value for name, value in asked.items() if value is not None}
        asked |= {"source_id": options.source, "connection_ids": options.connection}
        return await _follow(client, options, await client.call("POST", "/v1/events/replay", asked))


async def _follow(client: Client, options: argparse.Namespace, replay: dict[str, Any]) -> int:
    """Show how far a replay has come until it is done."""
    while replay["status"] == "running":
        if not options.json:
            print(f"{replay['events']} events so far", file=sys.stderr, flush=True)
        await asyncio.sleep(_PROGRESS_SECONDS)
        replay = await client.call("GET", f"/v1/replays/{replay['id']}")
    told = f"{replay['events']} events, {replay['deliveries']} deliveries"
    _show(options, replay, f"{replay['id']}: {replay['status']}, {told}")
    return 0 if replay["status"] == "done" else 1


def _show(options: argparse.Namespace, found: object, line: str) -> None:
    print(json.dumps(found) if options.json else line)
