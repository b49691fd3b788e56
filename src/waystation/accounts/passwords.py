"""Passwords: bcrypt, off the event loop, and no more at once than there are cores."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import bcrypt

from waystation.errors import InvalidInput, Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

COST = 12
MIN_CHARACTERS = 8
MAX_BYTES = 72
_MAX_WAITING = 64


class Passwords:
    """Hashes and checks. A check for an account that does not exist takes as long as any other."""

    def __init__(self, cost: int = COST) -> None:
        self._cost = cost
        self._nobody = f"$2b${cost:02d}$" + "." * 21 + "u" + "." * 30 + "u"
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="bcrypt")
        self._waiting = 0

    async def hash(self, password: str) -> str:
        return (
            await self._work(bcrypt.hashpw, _bytes(password), bcrypt.gensalt(self._cost))
        ).decode()

    async def matches(self, password: str, hashed: str | None) -> bool:
        """Whether it is the password. Without a hash it never is, and takes its time to say so."""
        try:
            checked = await self._work(
                bcrypt.checkpw, password.encode()[:MAX_BYTES], (hashed or self._nobody).encode()
            )
        except ValueError:
            return False  # what another service wrote is not a bcrypt hash
        return checked and hashed is not None and len(password.encode()) <= MAX_BYTES

    async def _work(self, function: Callable[[bytes, bytes], R], a: bytes, b: bytes) -> R:
        if self._waiting >= _MAX_WAITING:
            raise Overloaded("too many sign-ins at once", retry_after=5)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, function, a, b)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


def check_password(password: str) -> None:
    """Refuse a password that is too short, or longer than bcrypt looks at."""
    if len(password) < MIN_CHARACTERS:
        raise InvalidInput("password", f"a password must have at least {MIN_CHARACTERS} characters")
    if "\0" in password or len(password.encode()) > MAX_BYTES:
        raise InvalidInput(
            "password", f"a password must have at most {MAX_BYTES} bytes and no NUL character"
        )


def _bytes(password: str) -> bytes:
    check_password(password)
    return password.encode()
