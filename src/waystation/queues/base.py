"""What a queue is to those who use it, whatever the engine."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from waystation.errors import DeclarationError, InvalidRequest, WaystationError
from waystation.ids import secret_hash, sortable_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

T = TypeVar("T")

MAX_BODY = 256 * 1024
MAX_NAME = 80
MAX_TEXT = 128
MAX_RECEIVE = 10
MAX_WAIT = 20.0
MAX_VISIBILITY = 12 * 3600
MAX_DELAY = 5 * 366 * 86_400
DEDUPE_SECONDS = 300
RETENTION_SECONDS = 14 * 86_400
"""How long SQS keeps a message at most, and how long dead letters are kept everywhere."""

_encode = msgspec.json.Encoder().encode


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as declared. An `ordered` queue has groups and dedupe ids."""

    name: str
    ordered: bool = False
    visibility: int = 30
    max_receives: int = 5

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_NAME - 25:
            raise DeclarationError(f"queue {self.name!r}: use 1 to {MAX_NAME - 25} characters")
        if not all(c.isalnum() or c in "-_" for c in self.name) or not self.name.isascii():
            raise DeclarationError(f"queue {self.name!r}: use only letters, digits, - and _")
        if not 1 <= self.visibility <= MAX_VISIBILITY:
            raise DeclarationError(f"queue {self.name}: visibility is 1 second to 12 hours")
        if not 1 <= self.max_receives <= 1000:
            raise DeclarationError(f"queue {self.name}: max_receives is from 1 to 1000")

    def scoped(self, env: str) -> str:
        return f"{env}-{self.name}" if env else self.name


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was received. It stays ours until its visibility ends."""

    id: str
    body: bytes
    group: str | None
    receives: int
    sent_at: float
    receipt: str

    @overload
    def decode(self) -> Any: ...
    @overload
    def decode(self, type: type[T]) -> T: ...
    def decode(self, type: Any = Any) -> Any:  # noqa: A002
        """The value that was sent, checked against a type."""
        return msgspec.json.decode(self.body, type=type)


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was received too often without being acknowledged."""

    id: str
    body: bytes
    group: str | None
    receives: int
    sent_at: float


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How much lies in a queue. `oldest_age` is in seconds, None when nothing waits.

    On SQS the numbers are approximate, and the age is that of the oldest message received lately.
    """

    ready: int
    delayed: int
    in_flight: int
    dead: int
    oldest_age: float | None


class Queue(ABC):
    """Messages at least once; those of a group one at a time, in order."""

    def __init__(self, spec: QueueSpec) -> None:
        self.spec = spec

    async def send(
        self,
        value: object,
        *,
        group: str | None = None,
        dedupe: str | None = None,
        delay: float = 0.0,
    ) -> str:
        """Send a value as JSON and give back the message's id, once it is durable.

        The same `dedupe` id within five minutes sends nothing. A delayed message takes its place
        in its group when its delay is over.
        """
        if not self.spec.ordered and (group is not None or dedupe is not None):
            raise InvalidRequest(
                f"queue {self.spec.name} is not ordered: it takes neither group nor dedupe id",
                field="group" if group is not None else "dedupe",
            )
        _check_text("group", group)
        _check_text("dedupe", dedupe)
        if not 0 <= delay <= MAX_DELAY:
            raise InvalidRequest("a delay must be from 0 seconds to five years", field="delay")
        body = _encode(value)
        if len(body) > MAX_BODY:
            raise InvalidRequest(f"a message has at most {MAX_BODY} bytes", field="value")
        return await self._send(body, group, dedupe, delay)

    async def receive(
        self, limit: int = MAX_RECEIVE, *, wait: float = 0.0, visibility: float | None = None
    ) -> list[Message]:
        """Up to `limit` messages, at most one of each group; waits up to `wait` seconds for one."""
        if not 1 <= limit <= MAX_RECEIVE:
            raise InvalidRequest(f"limit must be from 1 to {MAX_RECEIVE}", field="limit")
        if not 0 <= wait <= MAX_WAIT:
            raise InvalidRequest(f"wait must be from 0 to {MAX_WAIT:g} seconds", field="wait")
        if visibility is not None:
            check_visibility(visibility)
        return await self._receive(limit, wait, visibility or self.spec.visibility)

    @abstractmethod
    async def _send(
        self, body: bytes, group: str | None, dedupe: str | None, delay: float
    ) -> str: ...

    @abstractmethod
    async def _receive(self, limit: int, wait: float, visibility: float) -> list[Message]: ...

    @abstractmethod
    async def ack(self, message: Message) -> None:
        """The message is dealt with. Does nothing when another worker has it by now."""

    @abstractmethod
    async def extend(self, message: Message, seconds: float) -> None:
        """Keep the message for so many seconds from now; MessageLost if it is no longer ours."""

    @abstractmethod
    async def release(self, message: Message, delay: float = 0.0) -> None:
        """Give the message back, to be received again after the delay. Its group waits for it."""

    @abstractmethod
    async def depth(self) -> Depth:
        """How much lies in the queue."""

    @abstractmethod
    async def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """Some of the messages that were given up, oldest first where the engine knows."""

    @abstractmethod
    async def redrive(self, limit: int = 1000) -> int:
        """Send up to `limit` dead letters again, each to the end of its group; how many."""


class Queues(ABC):
    """The queues of one process."""

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        self._queues = queues

    def __getitem__(self, spec: QueueSpec) -> Queue:
        try:
            return self._queues[spec.name]
        except KeyError:
            raise InvalidRequest(f"queue {spec.name} is not among those that were opened") from None

    def __iter__(self) -> Any:
        return iter(self._queues.values())

    @abstractmethod
    async def ensure(self) -> None:
        """Create what is missing."""

    @abstractmethod
    async def tend(self) -> int:
        """Do what is due in the background; how much there was. Safe in several processes."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def undo_if_cancelled(receiving: Awaitable[T], undo: Callable[[T], Awaitable[None]]) -> T:
    """The outcome of a receive; if its caller goes away meanwhile, what was received goes back."""
    task = asyncio.ensure_future(receiving)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.create_task(_undone(task, undo)))
        raise


async def _undone(receiving: asyncio.Future[T], undo: Callable[[T], Awaitable[None]]) -> None:
    with suppress(WaystationError):
        await undo(await receiving)


def message_id(now: float, group: str | None, dedupe: str | None) -> str:
    """An id that sorts by time, or follows from the dedupe id, so that repeats share it."""
    return sortable_id(now) if dedupe is None else secret_hash(f"{group or ''} {dedupe}")[:24]


def check_visibility(seconds: float) -> None:
    if not 0 < seconds <= MAX_VISIBILITY:
        raise InvalidRequest(
            "visibility must be more than 0 and at most 12 hours", field="visibility"
        )


def check_release(delay: float) -> None:
    if not 0 <= delay <= MAX_VISIBILITY:
        raise InvalidRequest("a released message waits for at most 12 hours", field="delay")


def check_names(specs: Sequence[QueueSpec]) -> None:
    if len({spec.name for spec in specs}) != len(specs):
        raise DeclarationError("two queues have the same name")


def _check_text(field: str, text: str | None) -> None:
    if text is None:
        return
    if not 0 < len(text) <= MAX_TEXT or not all("!" <= c <= "~" for c in text):
        raise InvalidRequest(
            f"{field} must be 1 to {MAX_TEXT} printable ASCII characters without spaces",
            field=field,
        )
