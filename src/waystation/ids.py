"""Ids: random for things, sortable by time for messages, hashes for secrets."""

from __future__ import annotations

import os
import re
import threading
from functools import lru_cache
from hashlib import sha256

_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
_TO_ALPHABET = _ALPHABET * 4  # 256 bytes, so that every character is equally likely
_SORTED = bytes(sorted(_ALPHABET))
"""In byte order, so that numbers written with these characters sort."""

_BASE36 = b"0123456789abcdefghijklmnopqrstuvwxyz"
_TO_BASE36 = (_BASE36 * 8)[:256]
"""Some digits are a little likelier than others: these ids are unique, not secret."""
_TIME_DIGITS = 9
_RANDOM_DIGITS = 12
_MOMENT_DIGITS = 8
_COUNT_DIGITS = 4
_NOISE_DIGITS = 8
_POOL_BYTES = 4096
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)


class _Pool(threading.local):
    """Random bytes, fetched many at a time: asking the system for each few costs more than
    everything else about an id. Every thread, and every process after a fork, has its own."""

    def __init__(self) -> None:
        self.empty()

    def empty(self) -> None:
        self._bytes = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        at, pool = self._at, self._bytes
        if at + size > len(pool):
            at, pool = 0, os.urandom(max(size, _POOL_BYTES))
            self._bytes = pool
        self._at = at + size
        return pool[at : at + size]


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.empty)


def nanoid(size: int = 16) -> str:
    """Random characters that are safe in URLs, 6 bits each."""
    return _pool.take(size).translate(_TO_ALPHABET).decode()


def new_id(prefix: str) -> str:
    """An id for a thing: `usr_` and 16 random characters."""
    return f"{prefix}_{nanoid()}"


def timed_id(prefix: str, now: float) -> str:
    """An id for a thing of which there are very many: 16 characters like any other's, but the
    first seven are the millisecond, so that an index grows at its end rather than everywhere."""
    return f"{prefix}_{_milliseconds(int(now * 1000))}{nanoid(9)}"


@lru_cache(maxsize=16)
def _milliseconds(count: int) -> str:
    digits = [_SORTED[(count >> shift) & 63] for shift in range(36, -1, -6)]
    return bytes(digits).decode()


def sortable_id(now: float) -> str:
    """An id that sorts by the millisecond of its creation: 21 base-36 digits."""
    noise = _pool.take(_RANDOM_DIGITS).translate(_TO_BASE36).decode()
    return _time_digits(int(now * 1000)) + noise


class OrderedIds:
    """Ids that sort by the millisecond of their creation and, from one process, in the order in
    which they were given, whatever its clock does: 20 base-36 digits, of which the first eight are
    the time, as JavaScript writes it."""

    def __init__(self) -> None:
        self._last = (0, 0)

    def next(self, now: float) -> str:
        moment = int(now * 1000)
        if moment > self._last[0]:
            self._last = (moment, 0)
        else:
            self._last = (self._last[0], self._last[1] + 1)
        moment, count = self._last
        if count >= 36**_COUNT_DIGITS:
            self._last = (moment + 1, 0)
            moment, count = self._last
        noise = _pool.take(_NOISE_DIGITS).translate(_TO_BASE36).decode()
        return f"{base36(moment, _MOMENT_DIGITS)}{base36(count, _COUNT_DIGITS)}{noise}"


def base36(number: int, width: int) -> str:
    """A number in base 36, padded so that it sorts."""
    digits = bytearray()
    while number:
        number, digit = divmod(number, 36)
        digits.append(_BASE36[digit])
    return digits[::-1].decode().rjust(width, "0")


@lru_cache(maxsize=16)
def _time_digits(milliseconds: int) -> str:
    return base36(milliseconds, _TIME_DIGITS)


def secret_hash(secret: str) -> str:
    """What is stored of a random secret. (Passwords are not random: they need bcrypt.)"""
    return sha256(secret.encode()).hexdigest()


def is_id(text: str) -> bool:
    """Whether a string could be an id at all: no table has one of another form."""
    return _ID.fullmatch(text) is not None
