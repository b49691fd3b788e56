"""Masking personal data and secrets, for logs, audit rows and excerpts.

Every pattern has bounded repetitions, so that the time taken grows with the length of the text
and with nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_CHARACTERS = 100_000
MASK = "***"

_SECRETS = re.compile(
    r"\b(?:ws_live_|wsr_|whsec_|whsk_|xox[abeprs]-|sk_(?:live|test)_|rk_live_|gh[opsu]_)"
    r"[\w./+=-]{4,512}"
    r"|(?<![\w-])eyJ[\w-]{8,2048}\.[\w-]{8,4096}\.[\w-]{8,1024}"
)
_BEARER = re.compile(r"\b(bearer|basic)\s{1,4}[\w.~+/=-]{6,4096}", re.IGNORECASE)
_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%'-]{1,64}@(?:[\w-]{1,63}\.){1,8}[\w-]{2,24}\b")
_TRACKING_URL = re.compile(
    r"(?<![\w.])(?:https?://|www\.)[^\s<>\"]{0,200}?(?:track|trknbr|ups\.com|usps\.com|fedex\.com|dhl\.)"
    r"[^\s<>\"]{0,512}",
    re.IGNORECASE,
)
_TRACKING = re.compile(
    r"\b1Z(?:\s?[0-9A-Z]){16}\b"  # UPS
    r"|\b[A-Z]{2}\d{9}[A-Z]{2}\b"  # postal unions
    r"|\b(?:GM|J[JV]?D|RX|LX)\d{14,22}\b",  # DHL
    re.IGNORECASE,
)
_LONG_NUMBER = re.compile(r"(?<![\d#])\d(?:[\s-]?\d){12,29}")
"""Cards and tracking numbers, whatever digits stand beside them."""
_TRACKING_WORD = re.compile(
    r"(?P<word>\b(?:tracking|fedex|dhl|ups|usps|waybill|consignment)"
    r"(?:\s(?:number|no\.?|code|id)){0,2}(?:\s(?:is|was))?[\s:#(=]{0,4})"
    r"(?=[\w-]{0,40}\d)[A-Z0-9][A-Z0-9-]{7,39}\b",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"(?P<word>\border(?:s)?(?:\s(?:number|num|no\.?|id|ref|reference)s?)?"
    r"(?:\s(?:is|was|are))?[\s:#(=]{0,4})(?P<id>(?=[A-Z-]{0,8}\d)[A-Z0-9][A-Z0-9-]{2,31})\b"
    r"(?P<more>(?:(?:,\s?|\s(?:and|or)\s|\s&\s)#?(?=[A-Z-]{0,8}\d)[A-Z0-9][A-Z0-9-]{2,31}\b){0,9})",
    re.IGNORECASE,
)
_HASH_NUMBER = re.compile(r"#(?P<id>(?=[A-Z-]{0,8}\d)[A-Z0-9][A-Z0-9-]{2,31})\b", re.IGNORECASE)
_PHONE = re.compile(
    r"(?<![\w#*])(?:\+\d{1,3}[\s.-]?|\()?(?:\d[\s().-]{0,3}){6,14}\d"
    r"(?:\s?(?:x|ext\.?)\s?\d{1,6})?(?!\w)",
    re.IGNORECASE,
)
_DATE = re.compile(r"(?:19|20)\d\d-[01]\d-[0-3]\d(?!\d)")
_MILLISECONDS = re.compile(r"1[5-9]\d{11}")
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_ADDRESS = re.compile(
    r"\b\d{1,6}[A-Z]?\s(?:[A-Z][\w.'-]{0,30}\s){1,4}"
    r"(?:street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|place|pl|square|"
    r"sq|terrace|way|close|crescent)\b\.?"
    r"(?:,?\s(?:apt|apartment|unit|suite|flat|\#)\.?\s?\w{1,6})?",
    re.IGNORECASE,
)
_POSTCODE = re.compile(r"\b[A-Z]{1,2}\d[A-Z\d]?\s\d[A-Z]{2}\b|\b[A-Z]{2}\s\d{5}(?:-\d{4})?\b")
_PLAIN = {0xA0: " ", 0x202F: " ", **dict.fromkeys(range(0x2010, 0x2016), "-"), 0x2212: "-"}
"""Spaces and hyphens that only look different."""

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
    text = text.translate(_PLAIN)
    text = _SECRETS.sub(MASK, text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _EMAIL.sub("***@***", text)
    for pattern, replacement in _PERSONAL:
        text = pattern.sub(replacement, text)
    return text


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


def _last_four(found: re.Match[str]) -> str:
    groups = found.groupdict()
    word = groups.get("word") or ("#" if found.group().startswith("#") else "")
    more = _NEXT_ORDER.sub(lambda other: MASK + _end(other.group()), groups.get("more") or "")
    return f"{word}{MASK}{_end(found['id'])}{more}"


def _end(number: str) -> str:
    return number[-4:] if len(number) > 4 else ""


_NEXT_ORDER = re.compile(r"(?=[A-Z-]{0,8}\d)[A-Z0-9][A-Z0-9-]{2,31}", re.IGNORECASE)


def _long_number(found: re.Match[str]) -> str:
    text = found.group()
    date = _DATE.match(text)
    if date is not None:
        return date.group() + _LONG_NUMBER.sub(_long_number, text[date.end() :])
    return text if _MILLISECONDS.fullmatch(text) else MASK


def _phone(found: re.Match[str]) -> str:
    text = found.group()
    date = _DATE.match(text)
    if date is not None:
        rest = text[date.end() :]
        return date.group() + _PHONE.sub(_phone, rest)
    if _IPV4.fullmatch(text) or _MILLISECONDS.fullmatch(text):
        return text
    digits = [c for c in re.split(r"x|ext", text, maxsplit=1)[0] if c.isdigit()]
    if not 7 <= len(digits) <= 15:
        return text
    return f"***-***-{''.join(digits[-4:])}"


_PERSONAL: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (_TRACKING_URL, MASK),
    (_TRACKING, MASK),
    (_LONG_NUMBER, _long_number),
    (_TRACKING_WORD, rf"\g<word>{MASK}"),
    (_ORDER, _last_four),
    (_HASH_NUMBER, _last_four),
    (_ADDRESS, MASK),
    (_POSTCODE, MASK),
    (_PHONE, _phone),
]
