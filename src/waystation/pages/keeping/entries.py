"""A page as it is kept: what its rows say, ready to be used."""

from __future__ import annotations

import mimetypes
import re
from typing import TYPE_CHECKING

import msgspec

from waystation.pages.http.fields import Headers, end_to_end, first, parse_date
from waystation.pages.keeping.encodings import PREFERRED
from waystation.pages.keeping.places import Place
from waystation.pages.keeping.purges import CLEAR, Verdict

if TYPE_CHECKING:
    from waystation.pages.tables import PageMeta, Pairs

_AHEAD_SECONDS = 60
_LONGEST = 10 * 365 * 86_400
LARGEST_FENCE = 2**53
_NEVER_KEPT = frozenset({206, 304})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,200}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,16000}")
_OVERHEAD = 1_500
"""What a page takes in memory beside its bodies and headers, about."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A page. `seq` is None for one that another service has generated."""

    place: Place
    owner: str | None
    s3_key: str
    generated_at: int
    revalidate_seconds: int
    swr: int
    sie: int
    status: int
    headers: Headers
    etag: str | None
    modified: float | None
    size: int | None
    digest: str | None
    encodings: tuple[str, ...]
    fence: int
    seq: int | None
    tags: tuple[str, ...]
    strict: bool
    unmarked: bool
    pinned: bool
    versions: tuple[int, ...]

    def fresh(self, now: float) -> bool:
        return self.pinned or now < self.generated_at + self.revalidate_seconds

    def is_of(self, meta: PageMeta) -> bool:
        """Whether a row still says what this one was made of."""
        return (
            self.s3_key == meta.s3_key
            and self.generated_at == meta.generated_at
            and self.fence == _fence(meta)
            and self.revalidate_seconds == _seconds(meta.revalidate_seconds)
        )

    @property
    def foreign(self) -> bool:
        return self.seq is None


class Held(msgspec.Struct):
    """A page in memory, with as many of its bodies as were asked for; `""` is the plain one.

    `verdict` is as of the purge numbered `seq`, and the row was last looked at when `checked`.
    """

    entry: Entry
    bodies: dict[str, bytes]
    verdict: Verdict = CLEAR
    seq: int = -1
    checked: float = 0.0
    gone: bool = False
    """Whether its body is gone, so that it has to be generated anew."""

    prepared: dict[str, Headers] = msgspec.field(default_factory=dict)
    """The headers that it is sent with in each encoding."""

    def size(self) -> int:
        entry = self.entry
        texts = len(entry.place.url) + len(entry.place.variant) + sum(map(len, entry.tags))
        headers = sum(len(name) + len(value) + 150 for name, value in entry.headers)
        return _OVERHEAD + 4 * texts + headers + sum(map(len, self.bodies.values()))

    def usable(self, now: float) -> bool:
        """Whether it can be used without asking anybody."""
        return self.verdict.clear and not self.gone and self.entry.fresh(now)


def entry_of(place: Place, meta: PageMeta, now: float) -> Entry | None:
    """What a row says, or None where it says nothing that could be served."""
    status = 200 if meta.status is None else meta.status
    if (
        not meta.s3_key
        or not 200 <= status <= 599
        or status in _NEVER_KEPT
        or not 0 <= meta.generated_at <= now + _AHEAD_SECONDS
    ):
        return None
    headers = _sound_headers(meta.headers) if meta.headers is not None else _guessed(meta)
    modified = parse_date(first(headers, b"last-modified") or first(headers, b"date") or "")
    return Entry(
        place=place,
        owner=meta.owner,
        s3_key=meta.s3_key,
        generated_at=meta.generated_at,
        revalidate_seconds=_seconds(meta.revalidate_seconds),
        swr=_seconds(meta.swr_seconds),
        sie=_seconds(meta.sie_seconds),
        status=status,
        headers=headers,
        etag=_sound(meta.etag),
        modified=float(meta.generated_at) if modified is None else modified,
        size=meta.size,
        digest=meta.digest,
        encodings=tuple(name for name in meta.encodings or () if name in PREFERRED),
        fence=_fence(meta),
        seq=meta.seq,
        tags=tuple(meta.tags or ()),
        strict=bool(meta.strict),
        unmarked=bool(meta.unmarked) or meta.headers is None,
        pinned=bool(meta.pinned),
        versions=tuple(meta.versions or ()),
    )


def _seconds(given: int | None) -> int:
    return min(max(0, given or 0), _LONGEST)


def _fence(meta: PageMeta) -> int:
    return meta.fence if meta.fence is not None and 0 <= meta.fence < LARGEST_FENCE else 0


def _sound_headers(pairs: Pairs) -> Headers:
    """Headers as they may be sent: what a row says, another service may have written."""
    found: Headers = []
    for name, value in pairs:
        lowered = name.lower()
        if _NAME.fullmatch(lowered) and _VALUE.fullmatch(value):
            found.append((lowered.encode("latin-1"), value.encode("latin-1")))
    return [pair for pair in end_to_end(found) if pair[0] != b"content-length"]


def pairs_of(headers: Headers) -> Pairs:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _guessed(meta: PageMeta) -> Headers:
    """The headers of a page that another service has generated: it keeps none."""
    kind = mimetypes.guess_type(meta.s3_key)[0] or "text/html"
    if kind.startswith("text/"):
        kind += "; charset=utf-8"
    return [(b"content-type", kind.encode())]


def _sound(etag: str | None) -> str | None:
    """An entity tag in its quotes. Other services may keep it without, and one that would break the
    header it is sent in is none."""
    if etag is None or not etag.isprintable() or not etag.isascii():
        return None
    opaque = etag.removeprefix("W/")
    if len(opaque) >= 2 and opaque[0] == opaque[-1] == '"' and '"' not in opaque[1:-1]:
        return etag
    return None if '"' in opaque or " " in opaque or not opaque else f'"{opaque}"'
