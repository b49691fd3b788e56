"""Ids: random for things, sortable by time for messages, hashes for secrets."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import sha256

_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
_TO_ALPHABET = _ALPHABET * 4
"""256 is a multiple of 64, so that every character is equally likely."""

_BASE36 = b"0123456789abcdefghijklmnopqrstuvwxyz"
_TO_BASE36 = (_BASE36 * 8)[:256]
"""Some digits are a little likelier than others: these ids are unique, not secret."""
_TIME_DIGITS = 9
_RANDOM_DIGITS = 12


def nanoid(size: int = 16) -> str:
    """Random characters that are safe in URLs, 6 bits each."""
    return os.urandom(size).translate(_TO_ALPHABET).decode()


def new_id(prefix: str) -> str:
    """An id for a thing: `usr_` and 16 random characters."""
    return f"{prefix}_{nanoid()}"


def sortable_id(now: float) -> str:
    """An id that sorts by the millisecond it was made in: 21 base-36 digits."""
    noise = os.urandom(_RANDOM_DIGITS).translate(_TO_BASE36).decode()
    return _time_digits(int(now * 1000)) + noise


@lru_cache(maxsize=16)
def _time_digits(milliseconds: int) -> str:
    digits = bytearray()
    while milliseconds:
        milliseconds, digit = divmod(milliseconds, 36)
        digits.append(_BASE36[digit])
    return digits[::-1].decode().rjust(_TIME_DIGITS, "0")


def secret_hash(secret: str) -> str:
    """What is stored of a random secret. (Passwords are not random: they need bcrypt.)"""
    return sha256(secret.encode()).hexdigest()
