"""Answering requests for pages: from what is kept where HTTP lets us, and else from the origin.

A request goes one way: `answer` finds out what it is, `_kept` looks for the page, `_use` says what
can be done with it, and then it is served, regenerated, or passed on to the origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.errors import BlobError, StoreError
from waystation.pages import replies
from waystation.pages.encodings import takes
from waystation.pages.http.directives import directives
from waystation.pages.http.fields import first, has, joined, values
from waystation.pages.http.policies import DEFAULT_STALE
from waystation.pages.http.variants import MOST_NAMES, variant
from waystation.pages.origins import Origin, Varies
from waystation.pages.places import MOST_URL, Place
from waystation.pages.regeneration import RenderFailed
from waystation.pages.replies import cache_status
from waystation.pages.tables import PageVariants
from waystation.pages.terms import Reply
from waystation.patterns import Newest

if TYPE_CHECKING:
    from waystation.pages.entries import Entry, Held
    from waystation.pages.http.directives import Directives
    from waystation.pages.metrics import PageMetrics
    from waystation.pages.publishing import Rendered
    from waystation.pages.regeneration import Outcome, Regeneration, Render, Unchanged
    from waystation.pages.shelf import Shelf
    from waystation.pages.terms import Ask, Fetch, Fetched, Terms

_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_PASS_SECONDS = 10.0
_MOST_PASSED = 20_000
_VARIANTS_SECONDS = 86_400
_AHEAD = 20
"""A page that is fresh for at least so many seconds is regenerated in the last twentieth of them,
so that those which were generated together are not regenerated together."""

Step = Literal["fresh", "stale", "refresh", "validate", "miss", "pass"]


class Use(msgspec.Struct, frozen=True):
    """What can be done with a page that is kept, or why nothing can. `fwd` and `detail` are the
    words for it in `Cache-Status`."""

    step: Step
    fwd: str = ""
    detail: str | None = None


_FRESH = Use("fresh")
_AHEAD_OF_TIME = Use("refresh")


class Answers:
    """Answers requests for the pages of any site."""

    def __init__(self, shelf: Shelf, regeneration: Regeneration, metrics: PageMetrics) -> None:
        self._shelf = shelf
        self._regeneration = regeneration
        self._metrics = metrics
        self._clock = shelf.store.clock
        self._passed: Newest[tuple[Place, bool], tuple[float, str]] = Newest(_MOST_PASSED)

    async def answer(self, ask: Ask, terms: Terms, fetch: Fetch) -> Reply:
        if ask.method not in ("GET", "HEAD"):
            return await self._through(ask, terms, fetch)
        if len(ask.url) > MOST_URL:
            return await self._pass(ask, terms, fetch, Use("pass", "bypass", "url-too-long"))
        given: Rendered | None = None
        for _ in range(3):
            names: frozenset[str] = frozenset()
            origin = Origin(ask, terms, fetch, self._clock, given)
            try:
                place, names, held = await self._kept(ask, terms)
                origin.names = names
                return await self._answer(ask, terms, fetch, origin, place, held)
            except Varies as found:
                given = found.rendered if found.origin is origin else None
                if not await self._learn(Place(terms.tenant, ask.url), found.names):
                    break
            except (StoreError, BlobError):
                break
        if given is not None:
            status = cache_status(fwd="miss", status=given.status, detail="vary")
            return self._counted(replies.from_rendered(given, status), "pass", "vary")
        return await self._pass(ask, terms, fetch, Use("pass", "bypass", "storage"))

    async def _kept(self, ask: Ask, terms: Terms) -> tuple[Place, frozenset[str], Held | None]:
        """Where the page is, which request headers it depends on, and the page if it is kept."""
        if terms.vary is not None:
            listed = variant(terms.vary, ask.headers) if terms.vary else ""
            place = Place(terms.tenant, ask.url, listed)
            return place, frozenset(terms.vary), await self._shelf.find(place)
        place = Place(terms.tenant, ask.url)
        held = await self._shelf.find(place)
        if held is not None:
            return place, frozenset(), held
        names = await self._shelf.varies_by(place)
        if names is None:
            return place, frozenset(), None
        place = place.of(variant(names, ask.headers))
        return place, frozenset(names), await self._shelf.find(place)

    async def _answer(
        self,
        ask: Ask,
        terms: Terms,
        fetch: Fetch,
        origin: Origin,
        place: Place,
        held: Held | None,
    ) -> Reply:
        says = directives(ask.headers)
        use = self._use(ask, says, terms, held, origin.names)
        if held is not None and use.step in ("fresh", "stale", "refresh"):
            reply = await self._served(ask, held, use)
            if reply is not None:
                if use.step == "refresh":
                    render = self._learning(origin, Place(terms.tenant, ask.url))
                    self._regeneration.start(place, render, held, terms.versions)
                return reply
            use = Use("miss", "miss", "body-gone")
        if "only-if-cached" in says:
            status = cache_status(fwd=use.fwd or None, detail="only-if-cached")
            return self._counted(Reply(504, [status]), "pass", "only-if-cached")
        if use.step != "pass":
            use = self._must_pass(ask, says, place, use)
        if use.step == "pass":
            return await self._pass(ask, terms, fetch, use, held)
        return await self._regenerated(ask, terms, fetch, origin, place, held, use)

    def _learning(self, origin: Origin, place: Place) -> Render:
        """Renders in the background, where nobody else learns what a page depends on."""

        async def render(entry: Entry | None) -> Rendered | Unchanged:
            try:
                return await origin.render(entry)
            except Varies as found:
                await self._learn(place, found.names)
                raise

        return render

    def _use(
        self, ask: Ask, says: Directives, terms: Terms, held: Held | None, names: frozenset[str]
    ) -> Use:
        """What can be done with a page for this request."""
        if held is None:
            return Use("miss", "vary-miss" if names else "uri-miss")
        entry = held.entry
        if entry.owner not in (None, terms.owner):
            return Use("miss", "uri-miss", "other-site")
        cookies = has(ask.headers, b"cookie") and not terms.ignore_cookies
        if entry.unmarked and cookies and "cookie" not in names:
            return Use("pass", "bypass", "cookie")
        if held.verdict.hard:
            return Use("miss", "stale", "purged")
        if held.gone:
            return Use("miss", "miss", "body-gone")
        if not _understands(ask, entry):
            return Use("pass", "bypass", "encoding")
        if entry.pinned and held.verdict.clear:
            return _FRESH
        if "no-cache" in says or (not says and _pragma(ask)):
            return Use("validate", "request", "no-cache")
        return self._use_by_age(says, terms, held)

    def _use_by_age(self, says: Directives, terms: Terms, held: Held) -> Use:
        entry, now = held.entry, self._clock()
        remaining = entry.generated_at + entry.revalidate_seconds - now
        if held.verdict.soft_at is not None:
            remaining = min(remaining, held.verdict.soft_at - now)
        most = says.seconds("max-age")
        if most is not None and now - entry.generated_at > most:
            return Use("validate", "request", "max-age")
        if remaining > (says.seconds("min-fresh") or 0):
            early = entry.revalidate_seconds >= _AHEAD and remaining < _lead(held)
            return _AHEAD_OF_TIME if early else _FRESH
        if remaining > 0:
            return Use("validate", "request", "min-fresh")
        return self._use_stale(says, terms, held, -remaining)

    def _use_stale(self, says: Directives, terms: Terms, held: Held, late: float) -> Use:
        """What can be done with a page that has been stale for so many seconds."""
        entry = held.entry
        reason = "expired" if held.verdict.clear else "purged"
        if entry.strict:
            return Use("validate", "stale", reason)
        window = entry.swr
        if entry.foreign:
            swr = terms.windows.swr
            window = DEFAULT_STALE if swr is None else swr
        if late < window:
            return Use("refresh", "stale", reason)
        most = says.seconds("max-stale")
        if most is not None and (says.whole("max-stale") or late <= most):
            return Use("stale", "", reason)
        return Use("validate", "stale", reason)

    def _must_pass(self, ask: Ask, says: Directives, place: Place, use: Use) -> Use:
        """Whether a request goes to the origin as it is, because its answer would not be kept."""
        if "no-store" in says:
            return Use("pass", "request", "no-store")
        if ask.method == "HEAD":
            return Use("pass", use.fwd or "miss", use.detail or "head")
        for name in (b"range", b"if-match", b"if-unmodified-since"):
            if has(ask.headers, name):
                return Use("pass", use.fwd or "miss", name.decode())
        at, reason = self._passed.get((place, _personal(ask))) or (0.0, "")
        if 0 <= self._clock() - at < _PASS_SECONDS:
            return Use("pass", "bypass", reason)
        return use

    async def _served(self, ask: Ask, held: Held, use: Use) -> Reply | None:
        """A page that is kept, if its body still is."""
        entry = held.entry
        encoding = replies.encoding_for(entry, ask)
        body = b""
        if not replies.is_unchanged(entry, ask):
            found = held.bodies.get(encoding)
            if found is None:
                found = await self._shelf.body(held, encoding)
            if found is None:
                return None
            body = found
        now = self._clock()
        left = entry.generated_at + entry.revalidate_seconds - int(now)
        status = cache_status(hit=True, ttl=left, detail=use.detail)
        (self._metrics.hit if use.detail is None else self._metrics.stale).inc()
        return replies.from_held(held, body, encoding, ask, now, status)

    async def _regenerated(
        self,
        ask: Ask,
        terms: Terms,
        fetch: Fetch,
        origin: Origin,
        place: Place,
        held: Held | None,
        use: Use,
    ) -> Reply:
        """A page that had to be generated; an old one where that fails and HTTP permits it."""
        spare = self._spare(held, terms)
        if spare is not None and self._regeneration.resting(place):
            reply = await self._served(ask, spare, Use("stale", "stale", "origin-failed"))
            if reply is not None:
                return reply
        try:
            outcome = await self._regeneration.run(place, origin.render, held, terms.versions)
        except RenderFailed as failure:
            if spare is not None:
                self._regeneration.failed(place)
                reply = await self._served(ask, spare, Use("stale", "stale", "origin-failed"))
                if reply is not None:
                    return reply
            return self._failure(origin, failure, use)
        return await self._from(ask, terms, fetch, origin, place, outcome, use)

    async def _from(
        self,
        ask: Ask,
        terms: Terms,
        fetch: Fetch,
        origin: Origin,
        place: Place,
        outcome: Outcome,
        use: Use,
    ) -> Reply:
        if outcome.held is not None:
            held = outcome.held
            cookies = has(ask.headers, b"cookie") and not terms.ignore_cookies
            if not (outcome.collapsed and held.entry.unmarked and cookies):
                encoding = replies.encoding_for(held.entry, ask)
                body = await self._shelf.body(held, encoding)
                if body is not None:
                    status = cache_status(
                        fwd=use.fwd,
                        status=origin.status,
                        stored=outcome.reason is None,
                        collapsed=outcome.collapsed,
                        detail=outcome.reason or use.detail,
                    )
                    self._metrics.answers.labels("miss", use.detail or use.fwd).inc()
                    return replies.from_held(held, body, encoding, ask, self._clock(), status)
        if outcome.rendered is None or outcome.collapsed:
            # Somebody else's answer, which was not for everyone.
            return await self._pass(ask, terms, fetch, Use("pass", use.fwd, outcome.reason))
        if outcome.reason not in ("busy", "lost", "storage", "error"):
            moment = (self._clock(), outcome.reason or "")
            self._passed[place, _personal(ask)] = moment
        status = cache_status(fwd=use.fwd, status=origin.status, detail=outcome.reason)
        reply = replies.from_rendered(outcome.rendered, status)
        return self._counted(reply, "pass", outcome.reason or "")

    def _spare(self, held: Held | None, terms: Terms) -> Held | None:
        """An old page that may be used when there is no new one to be had."""
        if held is None or held.verdict.hard or held.gone or held.entry.strict:
            return None
        if held.entry.owner not in (None, terms.owner):
            return None
        entry = held.entry
        sie = entry.sie
        if entry.foreign:
            sie = DEFAULT_STALE if terms.windows.sie is None else terms.windows.sie
        late = self._clock() - (entry.generated_at + entry.revalidate_seconds)
        return held if late <= sie else None

    def _failure(self, origin: Origin, failure: RenderFailed, use: Use) -> Reply:
        if failure.cause is not None:
            raise failure.cause
        status = cache_status(fwd=use.fwd, status=origin.status, detail="origin-failed")
        if failure.rendered is not None and origin.status:
            return self._counted(
                replies.from_rendered(failure.rendered, status), "error", str(origin.status)
            )
        return self._counted(
            replies.problem(failure.status, str(failure), status), "error", "origin-failed"
        )

    async def _pass(
        self, ask: Ask, terms: Terms, fetch: Fetch, use: Use, held: Held | None = None
    ) -> Reply:
        """Have the origin answer, and keep nothing."""
        fetched = await fetch(ask.method, ask.headers, ask.body)
        status = cache_status(fwd=use.fwd or "bypass", status=fetched.status, detail=use.detail)
        if ask.method == "HEAD" and held is not None and _contradicts(fetched, held):
            await self._shelf.purges.purge(
                Place(terms.tenant, ask.url).scope, "url", ask.url, hard=False, settle=False
            )
        if fetched.error is not None:
            spare = None if fetched.status == 508 else self._spare(held, terms)
            if spare is not None and use.fwd == "stale":
                reply = await self._served(ask, spare, Use("stale", "stale", "origin-failed"))
                if reply is not None:
                    return reply
            if fetched.cause is not None:
                raise fetched.cause
            problem = replies.problem(fetched.status or 502, fetched.error, status)
            return self._counted(problem, "error", "origin-failed")
        return self._counted(replies.from_fetched(fetched, status), "pass", use.detail or use.fwd)

    async def _through(self, ask: Ask, terms: Terms, fetch: Fetch) -> Reply:
        """Pass on what is no question. If it may have changed a page, that page is purged."""
        fetched = await fetch(ask.method, ask.headers, ask.body)
        status = cache_status(fwd="method", status=fetched.status)
        if fetched.error is not None:
            problem = replies.problem(fetched.status or 502, fetched.error, status)
            return self._counted(problem, "error", "origin-failed")
        await self.changed(ask, terms, fetched.status, fetched.related)
        return self._counted(replies.from_fetched(fetched, status), "pass", "method")

    async def changed(self, ask: Ask, terms: Terms, status: int, related: tuple[str, ...]) -> None:
        """Purge the pages that a request may have changed, by the status of its answer."""
        if ask.method not in _SAFE and 200 <= status < 400:
            for url in dict.fromkeys([ask.url, *related]):
                await self._purged(Place(terms.tenant, url), terms)

    async def _purged(self, place: Place, terms: Terms) -> None:
        """Purge a page that may have changed, if it is kept."""
        store = self._shelf.store
        kept = (
            bool(terms.vary)
            or await store.get(place.meta, expired=True) is not None
            or await store.get(place.variants, expired=True) is not None
            or self._regeneration.under_way(place)
        )
        if kept:
            await self._shelf.purges.purge(place.scope, "url", place.url, hard=True, settle=False)

    async def _learn(self, place: Place, names: frozenset[str]) -> bool:
        """Write down that the pages of a URL depend on request headers. The page that did not seem
        to is not for everyone any more."""
        store = self._shelf.store
        row = await store.get(place.variants)
        known = frozenset(row.names) if row is not None else frozenset()
        if len(known | names) > MOST_NAMES:
            return False
        ttl = store.now() + _VARIANTS_SECONDS
        await self._shelf.set_variants(
            place, PageVariants(pk=place.pk, names=sorted(known | names), ttl=ttl)
        )
        await store.delete(place.meta)
        self._shelf.memory.drop(place)
        return True

    def _counted(self, reply: Reply, result: str, reason: str) -> Reply:
        self._metrics.answers.labels(result, reason).inc()
        return reply


def _personal(ask: Ask) -> bool:
    return has(ask.headers, b"cookie") or has(ask.headers, b"authorization")


def _understands(ask: Ask, entry: Entry) -> bool:
    """Whether a client takes a page in the encoding that the origin chose for another."""
    encoding = first(entry.headers, b"content-encoding")
    if encoding is None or "accept-encoding" not in (joined(entry.headers, b"vary") or "").lower():
        return True
    return takes(first(ask.headers, b"accept-encoding"), encoding)


def _pragma(ask: Ask) -> bool:
    return any("no-cache" in value.lower() for value in values(ask.headers, b"pragma"))


def _lead(held: Held) -> float:
    """How long before a page goes stale it is regenerated: differs from page to page."""
    entry = held.entry
    share = (hash((entry.s3_key, entry.generated_at)) & 1023) / 1024
    return share * entry.revalidate_seconds / _AHEAD


def _contradicts(fetched: Fetched, held: Held) -> bool:
    """Whether an answer to HEAD shows that the page that is kept is another."""
    if fetched.error is not None or fetched.status != 200:
        return False
    entry = held.entry
    for name in (b"etag", b"last-modified"):
        said, known = first(fetched.headers, name), first(entry.headers, name)
        if said is not None and known is not None and said != known:
            return True
    length = first(fetched.headers, b"content-length")
    return length is not None and entry.size is not None and length != str(entry.size)
