"""Streams: what happens in a reader's inbox, as it happens, in whichever process it does.

One follower in each process reads the table's changes and hands them to the streams that they
concern. A stream that cannot keep up is told to look at its inbox anew.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.backoff import backoff
from waystation.errors import NotFound, TooManyRequests, WaystationError
from waystation.ids import base36, nanoid
from waystation.inbox.readers import Place, Reader
from waystation.inbox.states import is_message
from waystation.inbox.tables import PublicMessage, Receipt, UserMessage, UserStats, inbox
from waystation.inbox.views import MessageView, message_view, time_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from waystation.inbox.metrics import InboxMetrics
    from waystation.inbox.reading import Reading
    from waystation.store import Change, ChangeFeed, Item, Store

log = logging.getLogger(__name__)

MOST_STREAMS = 5_000
MOST_PER_ACCOUNT = 2_000
MOST_PER_READER = 10
MOST_CAUGHT_UP = 100
"""Messages that a stream begins with after a break; more, and the inbox is to be read anew."""

_OVERLAP_MS = 5_000
_MOST_WAITING = 100
_MOST_WAITING_BYTES = 256 * 1024
_CHECK_SECONDS = 2.0
"""How soon a stream ends whose caller may not see it any more."""

_CLAIM_SECONDS = 5.0
_HEARTBEAT_SECONDS = 15.0
_LIFE_SECONDS = 900.0
_COUNTS_SECONDS = 0.2
"""Counts follow what changed them by about so much: many changes are counted once."""

_AT_ONCE = 500


class Stream:
    """One open stream: what it has yet to send, ready as bytes."""

    def __init__(self, reader: Reader, account: str) -> None:
        self.reader = reader
        self.account = account
        self.waiting: list[bytes] = []
        self._size = 0
        self.counts_due: float | None = None
        self.bell = asyncio.Event()
        self.claim: asyncio.TimerHandle | None = None

    def push(self, event: bytes) -> None:
        self._size += len(event)
        if len(self.waiting) >= _MOST_WAITING or self._size > _MOST_WAITING_BYTES:
            event = _event("refresh", {})
            self.waiting, self._size = [], len(event)
        self.waiting.append(event)
        self.count_soon()

    def take(self) -> bytes:
        """What is to be sent now."""
        taken, self.waiting, self._size = b"".join(self.waiting), [], 0
        return taken

    def count_soon(self) -> None:
        if self.counts_due is None:
            wait = _COUNTS_SECONDS * (0.5 + random.random())  # noqa: S311 - not all at once
            self.counts_due = time.monotonic() + wait
        self.bell.set()


class Streams:
    def __init__(
        self,
        store: Store,
        reading: Reading,
        metrics: InboxMetrics,
        stopping: asyncio.Event,
    ) -> None:
        self._store = store
        self._reading = reading
        self._metrics = metrics
        self._stopping = stopping
        self._readers: dict[Reader, set[Stream]] = {}
        self._places: dict[Place, set[Stream]] = {}
        self._accounts: dict[str, int] = {}
        self._open = 0
        self._follower: asyncio.Task[None] | None = None
        self._hint = asyncio.Event()

    def hurry(self) -> None:
        """Something was just written here: look at once."""
        self._hint.set()

    def reserve(self, reader: Reader, account: str) -> Stream:
        """A place for one more stream, refused where there are enough. It is taken at once, and
        given back if nobody comes for it."""
        if self._open >= MOST_STREAMS or self._accounts.get(account, 0) >= MOST_PER_ACCOUNT:
            raise TooManyRequests("too many streams are open", retry_after=30.0)
        if len(self._readers.get(reader, ())) >= MOST_PER_READER:
            raise TooManyRequests(
                f"a user has at most {MOST_PER_READER} streams at a time", retry_after=30.0
            )
        stream = Stream(reader, account)
        self._readers.setdefault(reader, set()).add(stream)
        self._places.setdefault(reader.place, set()).add(stream)
        self._accounts[account] = self._accounts.get(account, 0) + 1
        self._open += 1
        self._metrics.streams.set(self._open)
        loop = asyncio.get_running_loop()
        stream.claim = loop.call_later(_CLAIM_SECONDS, self._give_back, stream)
        if self._follower is None or self._follower.done():
            self._follower = asyncio.create_task(self._follow())
        return stream

    def _give_back(self, stream: Stream) -> None:
        reader = stream.reader
        for places, key in ((self._readers, reader), (self._places, reader.place)):
            held: dict[Any, set[Stream]] = places
            if stream not in held.get(key, ()):
                return
            held[key].discard(stream)
            if not held[key]:
                del held[key]
        self._accounts[stream.account] -= 1
        if not self._accounts[stream.account]:
            del self._accounts[stream.account]
        self._open -= 1
        self._metrics.streams.set(self._open)

    async def follow(
        self, stream: Stream, last_id: str | None, allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        """What a stream sends, for as long as it is `allowed` to. It ends by itself after a while.
        Messages that came after `last_id` are sent first."""
        if stream.claim is None or stream.claim.cancelled() or not self._holds(stream):
            return  # it came too late
        stream.claim.cancel()
        try:
            async for event in self._events(stream, last_id, allowed):
                yield event
        finally:
            self._give_back(stream)

    def _holds(self, stream: Stream) -> bool:
        return stream in self._readers.get(stream.reader, ())

    async def _events(
        self, stream: Stream, last_id: str | None, allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        begun = checked = time.monotonic()
        yield b"retry: 2000\n\n"
        if last_id is not None:
            yield await self._caught_up(stream.reader, last_id)
        stream.count_soon()
        stream.counts_due = begun
        while not self._stopping.is_set() and time.monotonic() - begun < _LIFE_SECONDS:
            stream.bell.clear()
            now = time.monotonic()
            if now - checked > _CHECK_SECONDS:
                checked = now
                if not await allowed():
                    return
            if stream.waiting:
                yield stream.take()
            if stream.counts_due is not None and stream.counts_due <= now:
                stream.counts_due = None
                counts = await self._reading.counts(stream.reader)
                yield _event("counts", msgspec.to_builtins(counts))
            due = stream.counts_due
            wait = _HEARTBEAT_SECONDS if due is None else max(0.0, due - time.monotonic())
            try:
                async with asyncio.timeout(wait):
                    await stream.bell.wait()
            except TimeoutError:
                if due is None:
                    yield b": here\n\n"

    async def _caught_up(self, reader: Reader, last_id: str) -> bytes:
        """What came since a message, and a little before: one may be stored a little later than
        one with a later id."""
        moment = time_of(last_id)
        start = last_id if moment is None else base36(moment - _OVERLAP_MS, 8)
        try:
            found = await self._reading.since(reader, start, MOST_CAUGHT_UP)
        except NotFound:
            found = None
        if found is None:
            return _event("refresh", {})
        return b"".join(_message_event(view) for view in found)

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)

    # The follower

    async def _follow(self) -> None:
        """Hand on changes for as long as somebody listens."""
        attempt = 0
        feed: ChangeFeed | None = None
        while self._open and not self._stopping.is_set():
            try:
                if feed is None:
                    feed = self._store.changes(inbox, f"streams-{nanoid()}", from_now=True)
                changes = await feed.read(_AT_ONCE)
                attempt = 0
            except WaystationError as error:
                log.warning("the changes of inboxes cannot be read: %s", error)
                attempt += 1
                await asyncio.sleep(backoff(attempt, first=0.5, longest=10.0))
                continue
            for change in changes:
                self._hand_on(change)
            if feed.lost:
                feed = None
                self._refresh_all()
            elif not feed.moved:
                await self._pause(feed.idle_seconds)
            else:
                await asyncio.sleep(0)

    async def _pause(self, seconds: float) -> None:
        self._hint.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._hint.wait()
        except TimeoutError:
            pass

    def _refresh_all(self) -> None:
        for streams in self._readers.values():
            for stream in streams:
                stream.push(_event("refresh", {}))

    def _hand_on(self, change: Change) -> None:
        row: Item | None = change.new or change.old
        if isinstance(row, PublicMessage):
            streams = self._places.get(Place(row.tenant_key, row.inbox_key))
        elif isinstance(row, UserMessage | Receipt | UserStats):
            streams = self._readers.get(Reader(row.tenant_key, row.inbox_key, row.uid))
        else:
            return
        if not streams:
            return
        event = _event_of(change)
        for stream in streams:
            if event is None:
                stream.count_soon()
            else:
                stream.push(event)


def _event_of(change: Change) -> bytes | None:
    """What a change is to those whom it concerns; None where only counts change."""
    old, new = change.old, change.new
    row: Any = new or old
    if isinstance(row, UserStats):
        moved = isinstance(new, UserStats) and isinstance(old, UserStats)
        jumped = moved and new.read_epoch != old.read_epoch  # type: ignore[union-attr]
        return _event("refresh", {}) if jumped else None
    if isinstance(row, Receipt):
        if row.deletedat is not None:
            return _event("removed", {"id": row.id})
        return None if new is None else _event("changed", _changed(old, new))
    if new is None:
        return _event("removed", {"id": row.id})
    if isinstance(new, PublicMessage):
        return _message_event(_fresh_view(new)) if change.kind == "insert" else None
    if not is_message(row):
        return _event("changed", {"id": row.id, "read": True})
    if change.kind == "insert":
        return _message_event(_fresh_view(row))
    return _event("changed", _changed(old, new))


def _changed(old: Any, new: Any) -> dict[str, Any]:
    """What a mark has changed. Of one that was not read by itself, only its own marks are known."""
    shown: dict[str, Any] = {"id": new.id, "archived": new.archivedat is not None}
    before = (None, None) if old is None else (old.readat, old.unread_epoch)
    if before != (new.readat, new.unread_epoch):
        shown["read"] = new.readat is not None
    return shown


def _fresh_view(row: UserMessage | PublicMessage) -> MessageView:
    everyone = isinstance(row, PublicMessage)
    marked = getattr(row, "readat", None)
    return message_view(
        row,
        everyone=everyone,
        read=marked is not None,
        read_at=marked,
        seen=False,
        archived=False,
    )


def _message_event(view: MessageView) -> bytes:
    return _event("message", msgspec.to_builtins(view), view.id)


def _event(name: str, data: object, id_: str | None = None) -> bytes:
    line = b"" if id_ is None or not id_.isprintable() else b"id: " + id_.encode() + b"\n"
    encoded = msgspec.json.encode(data)  # which has no line breaks
    return b"event: " + name.encode() + b"\n" + line + b"data: " + encoded + b"\n\n"
