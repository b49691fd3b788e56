"""The way out: nothing else opens sockets to the outside.

Redirects are answers like any other. Of a body no more is read than was asked for. Nothing but GET
and HEAD is sent again when a connection turns out to be closed: the other side may have acted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.outbound.exchange import Bounds, NoAnswer
from waystation.outbound.pool import Pool
from waystation.outbound.requests import Unusable, written

if TYPE_CHECKING:
    from waystation.outbound.exchange import Answer, Exchange
    from waystation.outbound.guard import Guard
    from waystation.outbound.pool import Place

_BODY_SECONDS = 5.0
_MOST_READ = 64 * 1024
_HARMLESS = frozenset({"GET", "HEAD"})


class Reply(msgspec.Struct, frozen=True):
    """What became of a request. `status` is 0 when there was no answer.

    `whole` says that all of the body was read: it was neither too large nor too slow. `sent` is
    False when it is certain that nothing has reached the other side.
    """

    status: int = 0
    body: bytes = b""
    milliseconds: int = 0
    error: str | None = None
    headers: Mapping[str, str] = {}
    whole: bool = True
    sent: bool = True

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def retry_after(self) -> str | None:
        return self.headers.get("retry-after")

    def text(self, most: int) -> str:
        """The beginning of the body, as it is safe to keep."""
        return self.body.decode(errors="replace")[:most].replace("\0", "\ufffd")


class Fields(Mapping[str, str]):
    """The headers of an answer, whatever their case. `items` has all of those that come again."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs

    def __getitem__(self, name: str) -> str:
        wanted = name.lower().encode()
        for found, value in self._pairs:
            if found.lower() == wanted:
                return value.decode("utf-8", "surrogateescape")
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self.items()))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def items(self) -> Any:
        return [
            (name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))
            for name, value in self._pairs
        ]


class Outbound:
    """Sends requests out. Open it inside a running loop, close it at the end."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._pool = Pool(guard)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float = 10.0,
        body_seconds: float = _BODY_SECONDS,
        most: int = _MOST_READ,
        grow: Callable[[int], bool] | None = None,
    ) -> Reply:
        """Send one request and say what came back. Never raises for what the other side does.

        The URL is sent as it is written. `grow` is asked before so many more bytes of the answer
        are kept: no more are read when it says no.
        """
        begun = time.perf_counter()
        until = asyncio.get_running_loop().time() + seconds
        bounds = Bounds(method == "HEAD", until, seconds, body_seconds, most, grow)
        try:
            place, request = written(method, url, headers, body)
            exchange = self._pool.kept(place)
            if exchange is not None and method in _HARMLESS:
                answer = await self._asked_again(exchange, place, request, bounds)
            else:
                if exchange is None:
                    exchange = await self._pool.connected(place, until)
                answer = await exchange.ask(request, bounds)
                self._pool.give_back(exchange)
        except Unusable as error:
            return Reply(error=str(error), sent=False)
        except NoAnswer as error:
            return Reply(0, b"", _since(begun), str(error), whole=False, sent=error.sent)
        fields = Fields(answer.headers)
        return Reply(answer.status, bytes(answer.body), _since(begun), None, fields, answer.whole)

    async def _asked_again(
        self, exchange: Exchange, place: Place, request: bytes, bounds: Bounds
    ) -> Answer:
        """Ask on a connection that was kept. It may have been closed just now: what does no harm
        is then sent again, on a new one."""
        try:
            answer = await exchange.ask(request, bounds)
        except NoAnswer as error:
            if not error.closed:
                raise
            exchange = await self._pool.connected(place, bounds.until)
            answer = await exchange.ask(request, bounds)
        self._pool.give_back(exchange)
        return answer

    async def close(self) -> None:
        await self._pool.close()


def _since(begun: float) -> int:
    return int((time.perf_counter() - begun) * 1000)
