"""Richpanel's API: assign, tag, reply, and look what was said. It paces, waits and retries.

What may be repeated safely is repeated. A reply is not: when its outcome is not known, that is what
is said.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from waystation.backoff import backoff
from waystation.desk.receiving.texts import normalised, plain
from waystation.errors import TryLater, WaystationError
from waystation.outbound import seconds_asked
from waystation.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.desk.acting.pacing import Pace
    from waystation.desk.metrics import DeskMetrics
    from waystation.outbound import Outbound, Reply

SECONDS = 5.0
LONGEST_WAIT = 2.0
"""Seconds between two tries of one call; for longer, its event goes back to the queue."""

_TRIES = 3
_COOLDOWN = 30.0
_REFUSED_COOLDOWN = 60.0
_AWAY_SECONDS = 15.0
_MOST_ANSWER = 512 * 1024
_MOST_LOOKED_AT = 100
_MUCH_LONGER = 4
_SKEW_SECONDS = 120.0
_OURS = {"operator", "agent", "admin", "user"}


class VendorRefused(WaystationError):
    """The vendor will not do it, however often it is asked."""


class OutcomeOpen(WaystationError):
    """The vendor may have done it, or not."""


class Richpanel:
    def __init__(
        self,
        outbound: Outbound,
        url: str,
        api_key: str,
        pace: Pace,
        metrics: DeskMetrics,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._outbound = outbound
        self._url = url.rstrip("/")
        self._headers = {
            "x-richpanel-key": api_key,
            "content-type": "application/json",
            "accept": "application/json",
        }
        self._pace = pace
        self._metrics = metrics
        self._clock = clock
        self._sleep = sleep

    async def assign(self, conversation: str, assignee: str) -> None:
        await self._ask("PUT", conversation, "", {"ticket": {"assignee_id": assignee}})

    async def tag(self, conversation: str, tag: str) -> None:
        await self._ask("PUT", conversation, "/add-tags", {"tags": [tag]})

    async def reply(self, conversation: str, text: str) -> None:
        """Send a message to the customer; OutcomeOpen when nobody knows whether it was sent."""
        comment = {"body": text, "sender_type": "operator"}
        await self._ask("PUT", conversation, "", {"ticket": {"comment": comment}}, once=True)

    async def turn(self) -> None:
        """Wait until the vendor may be called; a reply takes its turn before it is begun."""
        await self._pace.turn()

    async def was_said(self, conversation: str, text: str, since: float) -> bool:
        """Whether a conversation has a message of ours with this text that is not older."""
        reply = await self._ask("GET", conversation, "", None)
        if not reply.whole:
            raise OutcomeOpen("the conversation is too long to be looked through")
        try:
            found = msgspec.json.decode(reply.body)
        except (msgspec.DecodeError, RecursionError):
            raise OutcomeOpen("the conversation cannot be read") from None
        wanted = normalised(text)
        longest = _MUCH_LONGER * len(text) + 1_000
        return any(
            at >= since - _SKEW_SECONDS
            and len(said) <= longest
            and normalised(plain(said)) == wanted
            for said, at in _said_by_us(found)[-_MOST_LOOKED_AT:]
        )

    async def _ask(
        self, method: str, conversation: str, rest: str, body: object, *, once: bool = False
    ) -> Reply:
        """Call the vendor. `once` is for what must not be done twice, and has had its turn."""
        url = f"{self._url}/tickets/{quote(conversation, safe='')}{rest}"
        content = None if body is None else msgspec.json.encode(body)
        for attempt in range(1, _TRIES + 1):
            if attempt > 1 or not once:
                await self._pace.turn()
            reply = await self._outbound.request(
                method,
                url,
                headers=self._headers,
                body=content,
                seconds=SECONDS,
                most=_MOST_ANSWER,
            )
            self._metrics.vendor.labels(method, str(reply.status)).observe(
                reply.milliseconds / 1000
            )
            if reply.ok:
                return reply
            await self._wait_or_give_up(reply, attempt, once)
        raise TryLater("Richpanel does not answer as it should", retry_after=_AWAY_SECONDS)

    async def _wait_or_give_up(self, reply: Reply, attempt: int, once: bool) -> None:
        """Return when the same call may be made again."""
        status = reply.status
        if status in (401, 403):
            await self._pace.cool_down(_REFUSED_COOLDOWN, "the API key is refused")
            raise TryLater(f"Richpanel refuses our key: {status}", retry_after=_REFUSED_COOLDOWN)
        asked = seconds_asked(reply.retry_after, self._clock())
        if status == 429:
            wait = asked or _COOLDOWN
            await self._pace.cool_down(wait, "it asked us to slow down")
            if wait > LONGEST_WAIT:
                raise TryLater("Richpanel asks us to slow down", retry_after=wait)
            return  # the next turn waits
        if 300 <= status < 500 and status not in (408, 425):
            raise VendorRefused(f"Richpanel answered {status}")
        if once and reply.sent:
            raise OutcomeOpen(reply.error or f"Richpanel answered {status}")
        wait = asked or backoff(attempt, first=0.25, longest=LONGEST_WAIT)
        if wait > LONGEST_WAIT:
            raise TryLater(f"Richpanel answered {status}", retry_after=wait)
        if attempt < _TRIES:
            await self._sleep(wait)

    async def alive(self) -> bool:
        """Whether the API answers at all."""
        reply = await self._outbound.request("GET", f"{self._url}/tags", headers=self._headers)
        return reply.ok


def _said_by_us(found: Any) -> list[tuple[str, float]]:
    """What was said, and when; what has no time is as old as can be."""
    ticket = found.get("ticket", found) if isinstance(found, dict) else {}
    messages = ticket.get("comments") or ticket.get("messages") if isinstance(ticket, dict) else []
    said = []
    for message in messages if isinstance(messages, list) else []:
        if not isinstance(message, dict):
            continue
        ours = str(message.get("sender_type", "")).lower() in _OURS or message.get("is_operator")
        text = message.get("body") or message.get("plain_body") or message.get("text")
        if ours and isinstance(text, str):
            said.append((text, seconds_of(str(message.get("created_at")))))
    return said
