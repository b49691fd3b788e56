"""What a customer wrote, out of what a vendor sends: without markup and quotes."""

from __future__ import annotations

import html
import re
import unicodedata

MOST = 8_000
"""Characters of a message that are looked at."""

_MARKUP = re.compile(r"<(/?[a-zA-Z!])([^<>]{0,2000})>")
_BREAK = re.compile(r"<(?:br|/p|/div|/li|/tr|/h[1-6])\b[^<>]{0,200}>", re.IGNORECASE)
_UNSEEN = re.compile(
    r"<(script|style|head|blockquote)\b[^<>]{0,500}>.{0,32768}?(?:</\1\s{0,5}>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_QUOTE = re.compile(
    r"\n[ \t]{0,20}(?:On\b[^\n]{1,200}\bwrote:|-{2,10} ?(?:Original Message|Forwarded message)\b"
    r"|_{10,}[ \t]{0,5}\n[ \t]{0,20}From:)",
    re.IGNORECASE,
)
_QUOTED_LINE = re.compile(r"^[ \t]{0,20}>[^\n]*$", re.MULTILINE)
_SPACES = re.compile(r"\s+")


def plain(text: str) -> str:
    """The text as its writer saw it, without the older messages below it."""
    if _MARKUP.search(text):
        text = _MARKUP.sub(" ", _BREAK.sub("\n", _UNSEEN.sub(" ", text)))
    text = html.unescape(text)
    quote = _QUOTE.search("\n" + text)
    if quote is not None and quote.start() > 0:
        text = text[: quote.start()]
    without = _QUOTED_LINE.sub("", text)
    return (without if without.strip() else text).strip()[:MOST]


def normalised(text: str) -> str:
    """What two copies of one message have in common, whatever became of their spaces."""
    return _SPACES.sub(" ", unicodedata.normalize("NFKC", text)).strip().casefold()
