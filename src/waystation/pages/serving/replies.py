"""How an answer looks: its headers, and no more of its body than was asked for."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from waystation.pages.http.conditions import part, same_for_range, unchanged
from waystation.pages.http.fields import (
    Headers,
    end_to_end,
    first,
    has,
    members,
    parse_date,
    values,
)
from waystation.pages.keeping.encodings import chosen
from waystation.pages.serving.terms import NAME, Reply

if TYPE_CHECKING:
    from waystation.pages.keeping.entries import Entry, Held
    from waystation.pages.keeping.publishing import Rendered
    from waystation.pages.serving.terms import Ask, Fetched

_REVALIDATE = (b"cache-control", b"max-age=0, must-revalidate")
"""For pages whose origin says nothing: browsers ask each time, so that a purge reaches them."""

_NO_STORE = (b"cache-control", b"no-store")
_FOR_CACHES = frozenset({b"cache-tag", b"surrogate-key"})
_IN_304 = frozenset(
    {b"cache-control", b"content-location", b"date", b"etag", b"expires", b"vary", b"cache-status"}
)


def cache_status(
    *,
    hit: bool = False,
    fwd: str | None = None,
    status: int = 0,
    stored: bool = False,
    collapsed: bool = False,
    ttl: int | None = None,
    detail: str | None = None,
) -> tuple[bytes, bytes]:
    """What was done, as RFC 9211 has it."""
    text = NAME.decode()
    if hit:
        text += "; hit"
    if fwd is not None:
        text += f"; fwd={fwd}"
    if status:
        text += f"; fwd-status={status}"
    if ttl is not None:
        text += f"; ttl={ttl}"
    if stored:
        text += "; stored"
    if collapsed:
        text += "; collapsed"
    if detail is not None:
        text += f"; detail={detail}"
    return b"cache-status", text.encode()


def encoding_for(entry: Entry, ask: Ask) -> str:
    """The encoding that a page is served in. Parts are parts of the plain body."""
    if not entry.encodings or has(ask.headers, b"range"):
        return ""
    return chosen(first(ask.headers, b"accept-encoding"), entry.encodings)


def from_held(
    held: Held,
    body: bytes | None,
    encoding: str,
    ask: Ask,
    now: float,
    status: tuple[bytes, bytes],
) -> Reply:
    """A page that is kept, as it is asked for. Without a body it says that the client has it."""
    entry = held.entry
    age = (b"age", b"%d" % max(0, int(now) - entry.generated_at))
    kind = encoding if body is not None else f"304 {encoding}"
    prepared = held.prepared.get(kind)
    if prepared is None:
        prepared = _prepared(entry, encoding)
        if body is None:
            prepared = [pair for pair in prepared if pair[0] in _IN_304]
        held.prepared[kind] = prepared
    headers = [*_with_status(prepared, status), age]
    if body is None:
        return Reply(304, headers)
    if entry.status != 200:
        return Reply(entry.status, headers, body)
    modified = parse_date(first(entry.headers, b"last-modified") or "")
    return _whole_or_part(ask, headers, body, entry.etag, modified)


def is_unchanged(entry: Entry, ask: Ask) -> bool:
    """Whether an answer needs no body."""
    return entry.status == 200 and unchanged(ask.headers, entry.etag, entry.modified)


def from_rendered(rendered: Rendered, status: tuple[bytes, bytes]) -> Reply:
    """A page that was just generated and is not kept."""
    headers = _with_status(rendered.headers, status)
    return Reply(rendered.status, headers, rendered.body, rendered.rest)


def from_fetched(fetched: Fetched, status: tuple[bytes, bytes]) -> Reply:
    """An answer that is passed on as it came."""
    headers = [pair for pair in end_to_end(fetched.headers) if pair[0] not in _FOR_CACHES]
    return Reply(fetched.status, _with_status(headers, status), fetched.body, fetched.rest)


def problem(code: int, detail: str, status: tuple[bytes, bytes]) -> Reply:
    """That there is no page to be had, and why."""
    document = {"type": "about:blank", "title": HTTPStatus(code).phrase, "status": code}
    body = msgspec.json.encode(document | {"detail": detail})
    return Reply(code, [(b"content-type", b"application/problem+json"), _NO_STORE, status], body)


def _whole_or_part(
    ask: Ask, headers: Headers, body: bytes, etag: str | None, modified: float | None
) -> Reply:
    if not has(ask.headers, b"range") or ask.method != "GET":
        return Reply(200, headers, body)
    wanted = part(ask.headers, len(body))
    if wanted is None or not same_for_range(ask.headers, etag, modified):
        return Reply(200, headers, body)
    if wanted is False:
        return Reply(416, [*headers, (b"content-range", b"bytes */%d" % len(body))])
    assert not isinstance(wanted, bool)
    start, end = wanted
    shown = b"bytes %d-%d/%d" % (start, end - 1, len(body))
    return Reply(206, [*headers, (b"content-range", shown)], body[start:end])


def _prepared(entry: Entry, encoding: str) -> Headers:
    headers = [pair for pair in entry.headers if pair[0] != b"etag"]
    if entry.etag is not None:
        headers.append((b"etag", _tag(entry.etag, encoding)))
    if encoding:
        headers.append((b"content-encoding", encoding.encode()))
    if entry.encodings:
        headers = with_vary(headers, "accept-encoding")
    if entry.unmarked and not has(headers, b"cache-control"):
        headers.append(_REVALIDATE)
    if entry.status == 200 and not encoding and not has(headers, b"accept-ranges"):
        headers.append((b"accept-ranges", b"bytes"))
    return headers


def _with_status(headers: Headers, status: tuple[bytes, bytes]) -> Headers:
    """Headers with our own line after those of the caches behind us."""
    if not has(headers, b"cache-status"):
        return [*headers, status]
    earlier = values(headers, b"cache-status")
    kept = [pair for pair in headers if pair[0] != b"cache-status"]
    return [
        *kept,
        (b"cache-status", b", ".join([*(e.encode("latin-1") for e in earlier), status[1]])),
    ]


def _tag(etag: str, encoding: str) -> bytes:
    """A page's tag. In another encoding it is the same page but not the same bytes."""
    weak = encoding and not etag.startswith("W/")
    return (f"W/{etag}" if weak else etag).encode("latin-1")


def with_vary(headers: Headers, name: str) -> Headers:
    named = members(",".join(values(headers, b"vary")))
    if name in (each.lower() for each in named) or "*" in named:
        return headers
    kept = [pair for pair in headers if pair[0] != b"vary"]
    return [*kept, (b"vary", ", ".join([*named, name]).encode("latin-1"))]
