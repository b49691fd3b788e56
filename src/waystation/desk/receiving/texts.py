"""What a customer wrote, out of what a vendor sends: without markup and quotes.

Everything here takes time that grows with the length of the text and with nothing else.
"""

from __future__ import annotations

import html
import re
import unicodedata

MOST = 8_000
"""Characters of a message that are looked at."""

_MOST_MARKS = 8
_MARKUP = re.compile(r"<(/?[a-zA-Z!])([^<>]{0,2000})>")
_BREAK = re.compile(r"<(?:br|/p|/div|/li|/tr|/h[1-6])\b[^<>]{0,200}>", re.IGNORECASE)
_UNSEEN = re.compile(r"<(/?)(script|style|head|blockquote)\b[^<>]{0,500}>", re.IGNORECASE)
_ODD_REFERENCE = re.compile(r"&#(?:\d{8,}|[xX][0-9a-fA-F]{7,});?")
_QUOTE = re.compile(
    r"\n[ \t]{0,20}(?:On\b[^\n]{1,200}\bwrote:|-{2,10} ?(?:Original Message|Forwarded message)\b"
    r"|_{10,60}[ \t]{0,5}\n[ \t]{0,20}From:)",
    re.IGNORECASE,
)
_QUOTED_LINE = re.compile(r"^[ \t]{0,20}>[^\n]*$", re.MULTILINE)
_SPACES = re.compile(r"\s+")


def plain(text: str) -> str:
    """The text as its writer saw it, without the older messages below it."""
    if _MARKUP.search(text):
        text = _MARKUP.sub(" ", _BREAK.sub("\n", _visible(text)))
    text = _tame(html.unescape(_ODD_REFERENCE.sub(" ", text)))
    quote = _QUOTE.search("\n" + text)
    if quote is not None and quote.start() > 0:
        text = text[: quote.start()]
    without = _QUOTED_LINE.sub("", text)
    return (without if without.strip() else text).strip()


def _visible(text: str) -> str:
    """A text without the elements that nobody sees, or that quote somebody else."""
    parts, at, inside = [], 0, ""
    for tag in _UNSEEN.finditer(text):
        name = tag[2].lower()
        if not inside and not tag[1]:
            parts.append(text[at : tag.start()])
            inside = name
        elif inside == name and tag[1]:
            inside, at = "", tag.end()
    if not inside:
        parts.append(text[at:])
    return " ".join(parts)


def _tame(text: str) -> str:
    """A text without endless runs of marks on one letter, which take long to put in order."""
    if text.isascii():
        return text
    kept, run = [], 0
    for c in text:
        run = run + 1 if unicodedata.category(c)[0] == "M" else 0
        if run <= _MOST_MARKS:
            kept.append(c)
    return "".join(kept)


def normalised(text: str) -> str:
    """What two copies of one message have in common, whatever became of their spaces."""
    return _SPACES.sub(" ", unicodedata.normalize("NFKC", _tame(text))).strip().casefold()
