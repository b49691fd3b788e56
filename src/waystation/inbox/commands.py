"""`waystation inbox send`, `counts` and `reconcile`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from waystation.errors import SettingsError

if TYPE_CHECKING:
    import argparse

    from waystation.client import ApiClient
    from waystation.seam import Call, Commands

_USERS_AT_ONCE = 5_000
_POLL_SECONDS = 0.2


def add_commands(commands: Commands) -> None:
    inbox = commands.group("inbox", "in-app notifications")
    send = _placed(inbox.add("send", _send, help="publish a message", calls=True))
    to = send.add_mutually_exclusive_group(required=True)
    to.add_argument("--to", nargs="+", metavar="UID", help="users")
    to.add_argument("--users", metavar="FILE", help="a file with a user on each line, or -")
    to.add_argument("--everyone", action="store_true")
    send.add_argument("--backfill", action="store_true", help="also to those who come later")
    send.add_argument("--title", required=True)
    send.add_argument("--body", default="")
    send.add_argument("--link", metavar="URL", help="where the message leads")
    send.add_argument("--sender", default="waystation")
    send.add_argument("--category")
    send.add_argument("--type")
    send.add_argument("--ttl", metavar="30d", help="how long it lives")
    send.add_argument("--id", metavar="ID", help="your own id: sent again, it is not sent twice")
    counts = _placed(inbox.add("counts", _counts, help="a user's counts", calls=True))
    counts.add_argument("uid")
    reconcile = _placed(
        inbox.add("reconcile", _reconcile, help="recount, and mend what is wrong", calls=True)
    )
    reconcile.add_argument("--dry-run", action="store_true", help="only report it")


def _placed(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("tenant")
    parser.add_argument("inbox")
    return parser


def _path(call: Call) -> str:
    tenant, inbox = (quote(name, safe="") for name in (call.options.tenant, call.options.inbox))
    return f"/v1/tenants/{tenant}/inboxes/{inbox}"


async def _send(call: Call) -> None:
    options = call.options
    uids = list(dict.fromkeys(options.to or _listed(options.users)))
    content = {"title": options.title, "body": options.body, "cta_uri": options.link}
    message: dict[str, Any] = {
        "audience": {"kind": "everyone", "backfill": options.backfill},
        "sender": options.sender,
        "category": options.category,
        "type": options.type,
        "message": content,
        "ttl": options.ttl,
        "host_system_id": options.id,
    }
    if not options.everyone:
        message["audience"] = {"kind": "users", "uids": uids[:_USERS_AT_ONCE]}
    async with call.client() as api:
        result = await api.call("POST", f"{_path(call)}/messages", message)
        place = f"{_path(call)}/messages/{result['id']}"
        for start in range(_USERS_AT_ONCE, len(uids), _USERS_AT_ONCE):
            await _followed(api, place)
            more = {"uids": uids[start : start + _USERS_AT_ONCE]}
            await api.call("POST", f"{place}/users", more)
        result = await _followed(api, place)
    to = "everyone" if options.everyone else _users(result["delivered"])
    call.show(result, f"{result['id']} {result['status']} to {to}")


def _listed(file: str | None) -> list[str]:
    """The users in a file, one on each line."""
    if file is None:
        return []
    with ExitStack() as stack:
        try:
            lines = sys.stdin if file == "-" else stack.enter_context(Path(file).open())
            uids = [line.strip() for line in lines if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{file} cannot be read: {error}") from None
    if not uids:
        raise SettingsError(f"{file} names no users")
    return uids


async def _followed(api: ApiClient, place: str) -> dict[str, Any]:
    """Wait until a message has reached the users it has so far, and show how far it is."""
    import asyncio

    while True:
        result: dict[str, Any] = await api.call("GET", place)
        if result["recipients"]:
            _progress(f"{result['delivered']:,} of {_users(result['recipients'])}")
        if result["status"] != "publishing":
            return result
        await asyncio.sleep(_POLL_SECONDS)


def _users(count: int) -> str:
    return "1 user" if count == 1 else f"{count:,} users"


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr)


async def _counts(call: Call) -> None:
    uid = quote(call.options.uid, safe="")
    async with call.client() as api:
        counts = await api.call("GET", f"{_path(call)}/users/{uid}/counts")
    total = counts["total"]
    words = f"{total} message{'s' * (total != 1)}"
    lines = [f"{words}, {counts['unread']} unread, {counts['unseen']} unseen"]
    for name, found in counts["categories"].items():
        lines.append(f"  {name}: {found['total']}, {found['unread']} unread")
    call.show(counts, "\n".join(lines))


async def _reconcile(call: Call) -> int:
    """1 when something was wrong, whether or not it is mended by now."""
    checked, drift, cursor = 0, [], None
    async with call.client() as api:
        while True:
            asked = {"dry_run": call.options.dry_run, "cursor": cursor}
            result = await api.call("POST", f"{_path(call)}/reconcile", asked)
            checked += result["checked"]
            drift += result["drift"]
            cursor = result["cursor"]
            _progress(_users(checked))
            if cursor is None:
                break
    lines = [f"{_users(checked)}, {len(drift):,} with counters that were wrong"]
    for found in drift:
        for each in found["counters"]:
            what = f"{each['counter']} of {each['category']}"
            lines.append(f"  {found['uid']}: {what} was {each['counted']}, not {each['actual']}")
    call.show({"checked": checked, "drift": drift}, "\n".join(lines))
    return 1 if drift else 0
