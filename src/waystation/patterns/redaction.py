"""Masking personal data and secrets, for logs, audit rows and excerpts."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

from waystation.patterns.personal_data import BEARER, EMAIL, MASK, PERSONAL, SECRETS

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_CHARACTERS = 100_000
_HIDDEN = re.compile(  # names of fields whose content is never shown
    r"(?:^|_)(?:authorization|cookie|key|password|password_hash|secret|signature|token|"
    r"code_verifier|email|phone|address|body|headers)$|^code$"
)
_WORD_IN_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Where a new word begins in a camelCase name."""


def redact(text: str) -> str:
    """The text with personal data and secrets masked; the last four digits stay where they help."""
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS] + "…"
    if not text.isascii():
        text = text.translate(_lookalikes())
    text = SECRETS.sub(MASK, text)
    text = BEARER.sub(rf"\1 {MASK}", text)
    text = EMAIL.sub("***@***", text)
    for pattern, replacement in PERSONAL:
        text = pattern.sub(replacement, text)
    return text


@cache
def _lookalikes() -> dict[int, str]:
    """Digits, spaces and hyphens that only look different, or that nobody sees."""
    return {
        **{n: str(unicodedata.digit(chr(n))) for n in range(128, 0x20000) if chr(n).isdecimal()},
        **dict.fromkeys(range(0x2010, 0x2016), "-"),
        **dict.fromkeys((0xA0, 0x2007, 0x2009, 0x202F), " "),
        **dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF), ""),
        0x2212: "-",
        0xFF20: "@",
        0xFF0E: ".",
    }


def excerpt(text: str, characters: int = 80) -> str:
    """The beginning of a redacted text, at most `characters` long."""
    plain = redact(" ".join(text[: 50 * characters].split()))
    return plain if len(plain) <= characters else plain[: characters - 1] + "…"


def masked_fields(fields: Mapping[Any, Any]) -> dict[str, Any]:
    """Fields of a log line: by name what is never shown, by content the rest."""
    return {str(name): _masked(str(name), value) for name, value in fields.items()}


def _masked(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if _HIDDEN.search(_WORD_IN_CAPITALS.sub("_", name).lower().replace("-", "_")):
        return MASK
    if isinstance(value, int | float):
        return value
    if isinstance(value, dict):
        return masked_fields(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked(name, part) for part in value]
    return redact(str(value))
