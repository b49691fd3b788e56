"""Asking the origin for a page, and making of its answer what may be kept."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from waystation.pages.http.conditions import matches
from waystation.pages.http.fields import (
    Headers,
    end_to_end,
    first,
    format_date,
    has,
    members,
    values,
)
from waystation.pages.http.policies import Policy, policy_of
from waystation.pages.http.variants import MOST_NAMES, varies_by
from waystation.pages.keeping.publishing import Rendered
from waystation.pages.keeping.regeneration import RenderFailed, Unchanged, Varies
from waystation.pages.serving.uses import is_of

if TYPE_CHECKING:
    from waystation.clock import Clock
    from waystation.pages.keeping.entries import Entry
    from waystation.pages.serving.terms import Ask, Fetch, Fetched, Terms

MOST_TAGS = 100
MOST_TAG = 200
_NOT_ASKED = frozenset(
    {
        *(b"if-none-match", b"if-modified-since", b"if-match", b"if-unmodified-since"),
        *(b"if-range", b"range", b"accept-encoding"),
    }
)
_FOR_CACHES = frozenset({b"cache-tag", b"surrogate-key"})
_NOT_KEPT = _FOR_CACHES | {b"age", b"content-length"}
_NOT_RENEWED = frozenset(
    {b"content-encoding", b"content-length", b"content-md5", b"content-range", b"etag", b"age"}
)
_FAILURES = frozenset({500, 502, 503, 504})


class Origin:
    """One request's way to the origin."""

    def __init__(
        self, ask: Ask, terms: Terms, fetch: Fetch, clock: Clock, given: Rendered | None = None
    ) -> None:
        """`given` is what the origin has said already."""
        self._ask = ask
        self._terms = terms
        self._fetch = fetch
        self._clock = clock
        self._given = given
        self.names: frozenset[str] = frozenset()
        """The request headers that the page is known to depend on."""

        self.status = 0 if given is None else given.status
        """What the origin answered last."""

    async def render(self, entry: Entry | None) -> Rendered | Unchanged:
        if self._given is not None:
            return self._given
        if entry is not None and not is_of(entry, self._terms):
            entry = None
        fetched = await self._asked(entry)
        if fetched.status == 304 and entry is not None:
            renewed = self._renewed(fetched, entry)
            if renewed is not None:
                return renewed
            fetched = await self._asked(None)
        rendered = self.rendered(fetched)
        if fetched.status == 304:
            raise RenderFailed("the origin said 304 to a request without conditions", rendered)
        if fetched.status in _FAILURES and (rendered.policy.refused or entry is not None):
            raise RenderFailed(f"the origin said {fetched.status}", rendered, fetched.status)
        unknown = varies_by(fetched.headers) - self.names
        if unknown and rendered.policy.refused is None:
            raise Varies(self, rendered, unknown)
        return rendered

    async def _asked(self, entry: Entry | None) -> Fetched:
        headers = [pair for pair in self._ask.headers if pair[0] not in _NOT_ASKED]
        headers.append((b"accept-encoding", b"identity"))
        if entry is not None:
            headers += validators(entry)
        fetched = await self._fetch("GET", headers, b"")
        if fetched.error is not None:
            self.status = 0
            raise RenderFailed(fetched.error, status=fetched.status or 502, cause=fetched.cause)
        self.status = fetched.status
        return fetched

    def rendered(self, fetched: Fetched) -> Rendered:
        """What the origin answered, and what may be done with it."""
        policy = self._policy(fetched.status, fetched.headers, fetched.seconds)
        tags = self._tags(fetched.headers)
        if policy.refused is None:
            if fetched.rest is not None:
                policy = Policy("too-large")
            elif len(tags) > MOST_TAGS or any(len(tag) > MOST_TAG for tag in tags):
                policy = Policy("tags")
        headers = [pair for pair in end_to_end(fetched.headers) if pair[0] not in _FOR_CACHES]
        if policy.refused is None:
            headers = self._kept(headers, policy)
        if not has(headers, b"date"):
            headers.append((b"date", format_date(self._clock())))
        etag = first(headers, b"etag")
        if etag is None and fetched.status == 200 and policy.refused is None:
            etag = f'"{sha256(fetched.body).hexdigest()[:32]}"'
        return Rendered(
            fetched.status,
            headers,
            fetched.body,
            policy,
            etag,
            tags,
            self._terms.owner,
            self._terms.account,
            fetched.rest,
        )

    def _kept(self, headers: Headers, policy: Policy) -> Headers:
        """The headers that are kept with a page."""
        kept = [pair for pair in headers if pair[0] not in _NOT_KEPT]
        kept = [pair for pair in kept if pair[0] not in policy.dropped]
        return _with_vary(kept, self._terms.vary or ())

    def _renewed(self, fetched: Fetched, entry: Entry) -> Unchanged | None:
        """A stored page with the headers that the origin has just confirmed or changed; None where
        what it says is about another page, or not for everyone."""
        tag, own = first(fetched.headers, b"etag"), first(entry.headers, b"etag")
        if tag is not None and (own is None or not matches(own, tag)):
            return None
        new = [pair for pair in end_to_end(fetched.headers) if pair[0] not in _NOT_RENEWED]
        if not has(new, b"date"):
            new.append((b"date", format_date(self._clock())))
        replaced = {name for name, _ in new}
        headers = [pair for pair in entry.headers if pair[0] not in replaced] + new
        age = [pair for pair in fetched.headers if pair[0] == b"age"]
        policy = self._policy(entry.status, headers + age, fetched.seconds)
        if policy.refused is not None or varies_by(headers) - self.names:
            return None
        return Unchanged(self._kept(headers, policy), policy)

    def _policy(self, status: int, headers: Headers, seconds: float) -> Policy:
        policy = policy_of(
            status, headers, self._ask.headers, self._terms.windows, self._clock(), seconds
        )
        if policy.refused is not None:
            return policy
        terms, names = self._terms, varies_by(headers)
        apart = terms.keeps_apart(self._ask.headers)
        if policy.unmarked and apart and "cookie" not in self.names:
            return Policy("cookie" if has(self._ask.headers, b"cookie") else "authorization")
        listed = terms.vary is None or names <= set(terms.vary)
        if not listed or len(names) > MOST_NAMES or names & terms.unkeyed:
            return Policy("vary")
        return policy

    def _tags(self, headers: Headers) -> tuple[str, ...]:
        found = [tag for line in values(headers, b"cache-tag") for tag in members(line)]
        found += [tag for line in values(headers, b"surrogate-key") for tag in line.split()]
        return tuple(dict.fromkeys([*self._terms.tags, *found]))


def validators(entry: Entry) -> Headers:
    """What asks the origin whether a page is still as it was."""
    found: Headers = []
    etag = first(entry.headers, b"etag")
    modified = first(entry.headers, b"last-modified")
    if etag is not None:
        found.append((b"if-none-match", etag.encode("latin-1")))
    if modified is not None:
        found.append((b"if-modified-since", modified.encode("latin-1")))
    return found


def _with_vary(headers: Headers, names: tuple[str, ...]) -> Headers:
    """Headers that say, to caches behind us as well, what the page depends on."""
    missing = [name for name in names if name not in varies_by(headers)]
    return [*headers, (b"vary", ", ".join(missing).encode())] if missing else headers
