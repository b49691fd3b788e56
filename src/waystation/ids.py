"""Ids: random for things, sortable by time for messages, hashes for secrets."""

from __future__ import annotations

import os
from hashlib import sha256

_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
_TO_ALPHABET = _ALPHABET * 4
"""256 is a multiple of 64, so that every character is equally likely."""

_BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"
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
    noise = int.from_bytes(os.urandom(8)) % 36**_RANDOM_DIGITS
    return base36(int(now * 1000), _TIME_DIGITS) + base36(noise, _RANDOM_DIGITS)


def base36(number: int, width: int) -> str:
    """A number in `width` digits; more if it needs them."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _BASE36[digit] + digits
    return digits.rjust(width, "0")


def secret_hash(secret: str) -> str:
    """What is stored of a random secret. (Passwords are not random: they need bcrypt.)"""
    return sha256(secret.encode()).hexdigest()
