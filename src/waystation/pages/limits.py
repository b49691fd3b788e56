"""Bounds on what one account may take of what all share: sockets, bytes on their way, and pages."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from waystation.errors import Overloaded
from waystation.patterns import Newest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.clock import Clock

_AT_ONCE = 64
_WAITING = 2_000
_BYTES_ON_THE_WAY = 256 * 1024 * 1024
_SHARE = 4
_DAY = 86_400
_MOST_ACCOUNTS = 10_000
NEW_BYTES_A_DAY = 2 * 1024**3
NEW_PAGES_A_DAY = 200_000


class Busy:
    """How many requests of each account are at its origins: the rest wait in line."""

    def __init__(self) -> None:
        self._accounts: dict[str, tuple[asyncio.Semaphore, list[int]]] = {}

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[None]:
        places, count = self._accounts.setdefault(account, (asyncio.Semaphore(_AT_ONCE), [0]))
        if count[0] >= _AT_ONCE + _WAITING:
            raise Overloaded("too many requests wait for this account's origins", retry_after=1.0)
        count[0] += 1
        try:
            async with places:
                yield
        finally:
            count[0] -= 1
            if count[0] == 0:
                self._accounts.pop(account, None)


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
    """How much of a tenant's is kept anew in a day, by one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._used: Newest[str, tuple[int, int, int]] = Newest(_MOST_ACCOUNTS)

    def take(self, account: str, size: int) -> bool:
        day = int(self._clock()) // _DAY
        known, pages, used = self._used.get(account) or (day, 0, 0)
        if known != day:
            pages = used = 0
        if pages >= NEW_PAGES_A_DAY or used + size > NEW_BYTES_A_DAY:
            return False
        self._used[account] = (day, pages + 1, used + size)
        return True
