"""Order numbers in what customers write."""

from __future__ import annotations

import re

_NUMBER = r"(?P<id>(?=[A-Z-]{0,8}\d)[A-Z0-9][A-Z0-9-]{2,19})"
_NAMED = re.compile(
    r"\border(?:s|\s?(?:number|num|no\.?|id|ref(?:erence)?))?(?:\s(?:is|was|it'?s))?[\s:#(=-]{1,4}"
    + _NUMBER
    + r"\b",
    re.IGNORECASE,
)
_HASHED = re.compile(r"(?<![\w&])#\s?" + _NUMBER + r"\b", re.IGNORECASE)
_BARE = re.compile(
    r"(?<![\w.,/:$€£+-])(?P<id>[A-Z]{0,4}-?\d{4,12})(?![\w/:%-]|[.,]\d)", re.IGNORECASE
)
_DIGITS = re.compile(r"\d")
_YEAR = re.compile(r"(?:19|20)\d\d")
_LOOKED_AT = 4_000


def order_number(text: str, *, asked: bool = False) -> str | None:
    """The order that a message names. Where we have `asked` for it, a number will do by itself."""
    text = text[:_LOOKED_AT]
    for pattern in (_NAMED, _HASHED):
        for found in pattern.finditer(text):
            if len(_DIGITS.findall(found["id"])) >= 3:
                return normal(found["id"])
    if asked:
        bare = [found["id"] for found in _BARE.finditer(text)]
        sure = [number for number in bare if not _YEAR.fullmatch(number)]
        if sure:
            return normal(sure[0])
    return None


def normal(number: str) -> str:
    """One spelling of an order's number."""
    return number.strip("#- ").upper()
