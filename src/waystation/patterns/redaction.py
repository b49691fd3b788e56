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
    r"\b(?:ws_live_|wsr_|whsec_|whsk_|xox[abeprs]-|sk_(?:live|test)_|rk_live_|gh[opsu]_)[\w./+=-]{4,512}"
    r"|\beyJ[\w-]{8,2048}\.[\w-]{8,4096}\.[\w-]{8,1024}"
)
_BEARER = re.compile(r"\b(bearer|basic)[ ]{1,4}[\w.~+/=-]{6,4096}", re.IGNORECASE)
_EMAIL = re.compile(
    r"(?<![\w.+%-])[\w.+%'-]{1,64}@(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,24}\b", re.IGNORECASE
)
_TRACKING_URL = re.compile(
    r"https?://[^\s<>\"]{0,512}?(?:track|ups\.com|usps\.com|fedex\.com|dhl\.)[^\s<>\"]{0,512}",
    re.IGNORECASE,
)
_CARD = re.compile(r"(?<![\d#])(?:\d[ -]?){12,18}\d(?!\d)")
_TRACKING = re.compile(
    r"\b1Z[0-9A-Z]{16}\b"  # UPS
    r"|\b(?:9[1-5]\d{2})(?:[ ]?\d{4}){4}(?:[ ]?\d{2})?\b"  # USPS, 20 or 22 digits
    r"|\b[A-Z]{2}\d{9}[A-Z]{2}\b"  # postal unions
    r"|\bJ[JV]?D\d{16,20}\b",  # DHL parcel
    re.IGNORECASE,
)
_TRACKING_WORD = re.compile(
    r"(?P<word>\b(?:tracking|fedex|dhl|ups|usps|waybill|consignment)"
    r"(?:[ ](?:number|no\.?|code|id|#)){0,2}(?:[ ](?:is|was))?[ ]?[:#]?[ ]{0,2})"
    r"(?=[\w-]{0,40}\d)[A-Z0-9][A-Z0-9-]{7,39}\b",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"(?P<word>\border(?:s)?(?:[ ](?:number|num|no\.?|id|ref|reference))?"
    r"(?:[ ](?:is|was))?[ ]?[:#]?[ ]{0,2}#?)(?P<id>(?=[A-Z-]{0,8}\d)[A-Z0-9][A-Z0-9-]{2,31})\b",
    re.IGNORECASE,
)
_HASH_NUMBER = re.compile(r"#(?P<id>(?=[A-Z-]{0,8}\d)[A-Z0-9][A-Z0-9-]{2,31})\b", re.IGNORECASE)
_PHONE = re.compile(r"(?<![\w#*.-])(?:\+\d{1,3}[ .-]?|\()?(?:\d[ ().-]{0,3}){6,14}\d(?![\w-])")
_ADDRESS = re.compile(
    r"\b\d{1,6}[A-Z]?[ ](?:[A-Z][\w.'-]{0,30}[ ]){1,4}"
    r"(?:street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|place|pl|square|"
    r"sq|terrace|way|close|crescent)\b\.?"
    r"(?:,?[ ](?:apt|apartment|unit|suite|flat|\#)\.?[ ]?\w{1,6})?",
    re.IGNORECASE,
)
_POSTCODE = re.compile(r"\b[A-Z]{1,2}\d[A-Z\d]?[ ]\d[A-Z]{2}\b|\b[A-Z]{2}[ ]\d{5}(?:-\d{4})?\b")

_HIDDEN_NAMES = frozenset(
    {
        *("authorization", "cookie", "set_cookie", "key", "api_key", "password", "password_hash"),
        *("secret", "signing_secret", "client_secret", "signature", "token", "access_token"),
        *("refresh_token", "bot_token", "code", "code_verifier", "email", "phone", "address"),
        *("body", "headers"),
    }
)


def redact(text: str) -> str:
    """The text with personal data and secrets masked; the last four digits stay where they help."""
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS] + "…"
    text = _SECRETS.sub(MASK, text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _EMAIL.sub("***@***", text)
    for pattern, replacement in _PERSONAL:
        text = pattern.sub(replacement, text)
    return text


def excerpt(text: str, characters: int = 80) -> str:
    """The beginning of a redacted text, at most `characters` long."""
    plain = " ".join(redact(text).split())
    return plain if len(plain) <= characters else plain[: characters - 1] + "…"


def masked_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a log line: by name what is never shown, by content the rest."""
    return {name: _masked(name, value) for name, value in fields.items()}


def _masked(name: str, value: Any) -> Any:
    lowered = name.lower().replace("-", "_")
    if lowered in _HIDDEN_NAMES:
        return MASK if value is not None else None
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return masked_fields(value)
    if isinstance(value, list | tuple):
        return [_masked(name, part) for part in value]
    return value


def _card(found: re.Match[str]) -> str:
    digits = [int(c) for c in found.group() if c.isdigit()]
    doubled = (d if n % 2 == 0 else sum(divmod(2 * d, 10)) for n, d in enumerate(reversed(digits)))
    return MASK if sum(doubled) % 10 == 0 else found.group()


def _last_four(found: re.Match[str]) -> str:
    word = found.groupdict().get("word") or ("#" if found.group().startswith("#") else "")
    shown = found["id"][-4:] if len(found["id"]) > 4 else ""
    return f"{word}{MASK}{shown}"


def _phone(found: re.Match[str]) -> str:
    digits = [c for c in found.group() if c.isdigit()]
    if not 7 <= len(digits) <= 15 or _is_date(found.group()):
        return found.group()
    return f"***-***-{''.join(digits[-4:])}"


def _is_date(text: str) -> bool:
    return re.match(r"(?:19|20)\d\d-[01]\d-[0-3]\d", text) is not None


_PERSONAL: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (_TRACKING_URL, MASK),
    (_TRACKING, MASK),
    (_CARD, _card),
    (_TRACKING_WORD, rf"\g<word>{MASK}"),
    (_ORDER, _last_four),
    (_HASH_NUMBER, _last_four),
    (_ADDRESS, MASK),
    (_POSTCODE, MASK),
    (_PHONE, _phone),
]
