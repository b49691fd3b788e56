"""Bounds on what one account may take of what all share: sockets, bytes on their way, and pages."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from waystation.errors import Overloaded
from waystation.patterns import Newest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.clock import Clock

_ALL_AT_ONCE = 768
_MOST_AT_ONCE = 64
_WAITING = 2_000
_WAIT_SECONDS = 10.0
_BYTES_ON_THE_WAY = 256 * 1024 * 1024
_SHARE = 4
_DAY = 86_400
_MOST_ACCOUNTS = 10_000

TENANTS = "tenant "
"""What the names of allowances begin with that are for accounts, and not for operators' sites."""

NEW_BYTES_A_DAY = 2 * 1024**3
NEW_PAGES_A_DAY = 200_000
_OPERATORS = 20


class Busy:
    """How many requests of each account are at its origins: the rest wait in line, but not for
    long. The more accounts are busy, the fewer each may have there."""

    def __init__(self) -> None:
        self._there: dict[str, int] = {}
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[None]:
        if not self._may_go(account):
            await self._wait(account)
        self._there[account] = self._there.get(account, 0) + 1
        try:
            yield
        finally:
            self._left(account)

    def _may_go(self, account: str) -> bool:
        there = self._there.get(account, 0)
        if not there:
            return True
        fair = _ALL_AT_ONCE // len(self._there)
        return there < min(_MOST_AT_ONCE, fair) and sum(self._there.values()) < _ALL_AT_ONCE

    async def _wait(self, account: str) -> None:
        line = self._lines.setdefault(account, deque())
        if len(line) >= _WAITING:
            raise Overloaded("too many requests wait for this account's origins", retry_after=1.0)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(place)
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await place
        except TimeoutError:
            raise Overloaded("this account's origins are too slow", retry_after=1.0) from None
        finally:
            with suppress(ValueError):
                line.remove(place)
            if not line:
                self._lines.pop(account, None)

    def _left(self, account: str) -> None:
        there = self._there[account] - 1
        if there:
            self._there[account] = there
        else:
            del self._there[account]
        for waiting in (account, *self._lines):
            line = self._lines.get(waiting)
            while line and self._may_go(waiting):
                place = line.popleft()
                if not place.done():
                    place.set_result(None)
                    return


class OnTheWay:
    """Bytes of answers that are being read: of all, and a share of them for one account."""

    def __init__(self, most: int = _BYTES_ON_THE_WAY) -> None:
        self._most = most
        self._all = 0
        self._accounts: dict[str, int] = {}

    def take(self, account: str, size: int) -> bool:
        used = self._accounts.get(account, 0)
        if used + size > self._most // _SHARE or self._all + size > self._most:
            return False
        self._accounts[account] = used + size
        self._all += size
        return True

    def give(self, account: str, size: int) -> None:
        self._all -= size
        left = self._accounts.get(account, 0) - size
        if left > 0:
            self._accounts[account] = left
        else:
            self._accounts.pop(account, None)


class Allowance:
    """How much is kept anew in a day, by one process: of a tenant's account, and twenty times that
    of an operator's site. A cache in code of one's own has no such bound."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._used: Newest[str, tuple[int, int, int]] = Newest(_MOST_ACCOUNTS)

    def take(self, account: str, size: int) -> bool:
        if not account:
            return True
        times = 1 if account.startswith(TENANTS) else _OPERATORS
        day = int(self._clock()) // _DAY
        known, pages, used = self._used.get(account) or (day, 0, 0)
        if known != day:
            pages = used = 0
        if pages >= times * NEW_PAGES_A_DAY or used + size > times * NEW_BYTES_A_DAY:
            return False
        self._used[account] = (day, pages + 1, used + size)
        return True
