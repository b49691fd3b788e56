"""Answering requests for pages: from what is kept where HTTP lets us, and else from the origin.

A request goes one way: `answer` finds out what it is, `_kept` looks for the page, `uses.py` says
what can be done with it, and then it is served, regenerated, or passed on to the origin.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import BlobError, StoreError
from waystation.pages.http.directives import directives
from waystation.pages.http.fields import first
from waystation.pages.http.variants import MOST_NAMES, MOST_VARIANT, variant
from waystation.pages.keeping.places import MOST_URL, Place
from waystation.pages.keeping.regeneration import Job, RenderFailed, Varies
from waystation.pages.serving import replies, uses
from waystation.pages.serving.origins import Origin
from waystation.pages.serving.replies import cache_status
from waystation.pages.serving.terms import Reply
from waystation.pages.serving.uses import Use
from waystation.pages.tables import Listed, PageVariants
from waystation.patterns import Newest

if TYPE_CHECKING:
    from waystation.pages.http.fields import Headers
    from waystation.pages.keeping.entries import Entry, Held
    from waystation.pages.keeping.publishing import Rendered
    from waystation.pages.keeping.regeneration import Outcome, Regeneration, Render, Unchanged
    from waystation.pages.keeping.shelf import Shelf
    from waystation.pages.metrics import PageMetrics
    from waystation.pages.serving.terms import Ask, Fetch, Fetched, Terms

log = logging.getLogger(__name__)

_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_FAILURES = frozenset({500, 502, 503, 504})
_PASS_SECONDS = 10.0
_MOST_PASSED = 20_000
_MOST_RELATED = 2
_MOST_LISTED = 20
_VARIANTS_SECONDS = 86_400
_OTHER_TRIES = ("busy", "lost", "storage", "error", "allowance")
"""Reasons for which a page was not kept this time, and may be another time."""


class Visit:
    """One request on its way: what is asked for, on which terms, and how the origin is asked."""

    def __init__(self, ask: Ask, terms: Terms, fetch: Fetch, primary: Place) -> None:
        self.ask = ask
        self.terms = terms
        self.fetch = fetch
        self.says = directives(ask.headers)
        self.primary = primary
        """The page's place before it is known what it depends on."""


class Answers:
    """Answers requests for the pages of any site."""

    def __init__(self, shelf: Shelf, regeneration: Regeneration, metrics: PageMetrics) -> None:
        self._shelf = shelf
        self._regeneration = regeneration
        self._metrics = metrics
        self._clock = shelf.store.clock
        self._passed: Newest[tuple[str, bool], tuple[float, str]] = Newest(_MOST_PASSED)

    async def answer(self, ask: Ask, terms: Terms, fetch: Fetch) -> Reply:
        visit = Visit(ask, terms, fetch, _primary(ask, terms))
        if ask.method not in ("GET", "HEAD"):
            return await self._through(visit)
        if len(ask.url) > MOST_URL:
            return await self._pass(visit, Use("pass", "bypass", "url-too-long"))
        given: Rendered | None = None
        for _ in range(3):
            origin = Origin(ask, terms, fetch, self._clock, given)
            try:
                place, origin.names, held = await self._kept(visit)
                if len(place.variant) > MOST_VARIANT:
                    break
                return await self._answer(visit, origin, place, held)
            except Varies as found:
                given = None
                if found.asker is origin:
                    given = msgspec.structs.replace(found.rendered, seq=found.seq)
                if not await self._learned(visit.primary, found.names):
                    break
            except (StoreError, BlobError) as error:
                log.warning("a page is passed on: %s", error)
                break
        if given is not None:
            status = cache_status(fwd="miss", status=given.status, detail="vary")
            return self._counted(replies.from_rendered(given, status), "pass", "vary")
        return await self._pass(visit, Use("pass", "bypass", "storage"))

    async def hit(self, ask: Ask, terms: Terms) -> Reply | None:
        """A page that is in memory and fresh; None for everything else, and nothing is done."""
        visit = Visit(ask, terms, _nothing, _primary(ask, terms))
        _, names, held = await self._kept(visit)
        if held is None or len(ask.url) > MOST_URL:
            return None
        use = uses.use_of(ask, visit.says, terms, held, names, self._clock())
        encoding = replies.encoding_for(held.entry, ask)
        if use.step != "fresh":
            return None
        body = None
        if not replies.is_unchanged(held.entry, ask):
            body = held.bodies.get(encoding)
            if body is None:
                return None
        return self._from_held(ask, held, use, encoding, body)

    async def _kept(self, visit: Visit) -> tuple[Place, frozenset[str], Held | None]:
        """Where the page is, which request headers it depends on, and the page if it is kept."""
        headers, place = visit.ask.headers, visit.primary
        if visit.terms.vary is not None:
            if visit.terms.vary:
                place = place.of(variant(visit.terms.vary, headers))
            return place, frozenset(visit.terms.vary), await self._shelf.find(place)
        held = await self._shelf.find(place)
        if held is not None:
            return place, frozenset(), held
        names = await self._shelf.varies_by(place)
        if names is None:
            return place, frozenset(), None
        place = place.of(variant(names, headers))
        return place, frozenset(names), await self._shelf.find(place)

    async def _answer(self, visit: Visit, origin: Origin, place: Place, held: Held | None) -> Reply:
        ask, terms = visit.ask, visit.terms
        use = uses.use_of(ask, visit.says, terms, held, origin.names, self._clock())
        if held is not None and use.step in ("fresh", "stale", "refresh"):
            reply = await self._served(ask, held, use)
            if reply is not None:
                if use.step == "refresh":
                    render = self._learning(origin, visit.primary)
                    job = Job(place, render, terms.owner, terms.versions)
                    self._regeneration.start(job, held, held.seq)
                return reply
            use = Use("miss", "miss", "body-gone")
        if "only-if-cached" in visit.says:
            reply = Reply(504, [cache_status(detail="only-if-cached")])
            return self._counted(reply, "pass", "only-if-cached")
        if use.step != "pass":
            use = self._remembered(visit, place, uses.must_pass(ask, visit.says, use))
        if use.step == "pass":
            return await self._pass(visit, use, held)
        return await self._regenerated(visit, origin, place, held, use)

    def _remembered(self, visit: Visit, place: Place, use: Use) -> Use:
        """Whether the last answer to such a request could not be kept."""
        key = (place.pk, visit.terms.keeps_apart(visit.ask.headers))
        at, reason = self._passed.get(key) or (0.0, "")
        if use.step != "pass" and 0 <= self._clock() - at < _PASS_SECONDS:
            return Use("pass", "bypass", reason)
        return use

    def _learning(self, origin: Origin, primary: Place) -> Render:
        """Renders in the background, where nobody else learns what a page depends on."""

        async def render(entry: Entry | None) -> Rendered | Unchanged:
            try:
                return await origin.render(entry)
            except Varies as found:
                await self._learned(primary, found.names)
                raise

        return render

    async def _served(self, ask: Ask, held: Held, use: Use) -> Reply | None:
        """A page that is kept, if its body still is."""
        encoding = replies.encoding_for(held.entry, ask)
        if replies.is_unchanged(held.entry, ask):
            return self._from_held(ask, held, use, encoding, None)
        found = await self._shelf.body(held, encoding)
        return None if found is None else self._from_held(ask, held, use, *found)

    def _from_held(
        self, ask: Ask, held: Held, use: Use, encoding: str, body: bytes | None
    ) -> Reply:
        entry, now = held.entry, self._clock()
        left = entry.generated_at + entry.revalidate_seconds - int(now)
        status = cache_status(hit=True, ttl=left, detail=use.detail)
        (self._metrics.hit if use.detail is None else self._metrics.stale).inc()
        return replies.from_held(held, body, encoding, ask, now, status)

    async def _regenerated(
        self, visit: Visit, origin: Origin, place: Place, held: Held | None, use: Use
    ) -> Reply:
        """A page that had to be generated; an old one where that fails and HTTP permits it."""
        spare = uses.spare(held, visit.terms, self._clock())
        instead = Use("stale", "stale", "origin-failed")
        if spare is not None and self._regeneration.resting(place):
            reply = await self._served(visit.ask, spare, instead)
            if reply is not None:
                return reply
        job = Job(place, origin.render, visit.terms.owner, visit.terms.versions)
        try:
            outcome = await self._regeneration.run(job, held)
        except RenderFailed as failure:
            if spare is not None:
                reply = await self._served(visit.ask, spare, instead)
                if reply is not None:
                    return reply
            return self._failure(origin, failure, use)
        return await self._from(visit, origin, place, outcome, use)

    async def _from(
        self, visit: Visit, origin: Origin, place: Place, outcome: Outcome, use: Use
    ) -> Reply:
        """What came of a regeneration, for who asked for it or waited for it."""
        held = outcome.held
        if held is not None and not (outcome.shared and not self._is_theirs(visit, held, origin)):
            encoding = replies.encoding_for(held.entry, visit.ask)
            found = await self._shelf.body(held, encoding)
            if found is not None:
                encoding, body = found
                known = replies.is_unchanged(held.entry, visit.ask)
                status = cache_status(
                    fwd=use.fwd,
                    status=origin.status,
                    stored=outcome.reason is None,
                    collapsed=outcome.shared,
                    detail=outcome.reason or use.detail,
                )
                self._metrics.answers.labels("miss", use.detail or use.fwd).inc()
                now = self._clock()
                shown = None if known else body
                return replies.from_held(held, shown, encoding, visit.ask, now, status)
        if outcome.rendered is None or outcome.shared:
            # Somebody else's answer, which was not for everyone.
            return await self._pass(visit, Use("pass", use.fwd, outcome.reason))
        if outcome.reason not in _OTHER_TRIES:
            key = (place.pk, visit.terms.keeps_apart(visit.ask.headers))
            self._passed[key] = (self._clock(), outcome.reason or "")
        status = cache_status(fwd=use.fwd, status=origin.status, detail=outcome.reason)
        reply = replies.from_rendered(outcome.rendered, status)
        return self._counted(reply, "pass", outcome.reason or "")

    def _is_theirs(self, visit: Visit, held: Held, origin: Origin) -> bool:
        """Whether a page that was generated for another request answers this one, too."""
        if not uses.is_of(held.entry, visit.terms):
            return False
        return "cookie" in origin.names or not uses.not_for(visit.ask, visit.terms, held.entry)

    def _failure(self, origin: Origin, failure: RenderFailed, use: Use) -> Reply:
        if failure.cause is not None:
            raise failure.cause
        status = cache_status(fwd=use.fwd, status=origin.status, detail="origin-failed")
        if failure.rendered is not None and origin.status:
            reply = replies.from_rendered(failure.rendered, status)
            return self._counted(reply, "error", str(origin.status))
        reply = replies.problem(failure.status, str(failure), status)
        return self._counted(reply, "error", "origin-failed")

    async def _pass(self, visit: Visit, use: Use, held: Held | None = None) -> Reply:
        """Have the origin answer, and keep nothing."""
        ask = visit.ask
        fetched = await visit.fetch(ask.method, ask.headers, ask.body)
        if fetched.error is not None or fetched.status in _FAILURES:
            reply = await self._spared(visit, use, held)
            if reply is not None:
                return reply
        if ask.method == "HEAD" and held is not None and held.verdict.clear:
            await self._contradicted(visit, fetched, held)
        return self._passed_on(fetched, use.fwd or "bypass", use.detail)

    async def _spared(self, visit: Visit, use: Use, held: Held | None) -> Reply | None:
        """An old page instead of an answer that could not be had."""
        spare = uses.spare(held, visit.terms, self._clock()) if use.fwd == "stale" else None
        if spare is None:
            return None
        return await self._served(visit.ask, spare, Use("stale", "stale", "origin-failed"))

    def _passed_on(self, fetched: Fetched, fwd: str, detail: str | None) -> Reply:
        if fetched.error is None:
            status = cache_status(fwd=fwd, status=fetched.status, detail=detail)
            return self._counted(replies.from_fetched(fetched, status), "pass", detail or fwd)
        if fetched.cause is not None:
            raise fetched.cause
        status = cache_status(fwd=fwd, detail="origin-failed")
        reply = replies.problem(fetched.status or 502, fetched.error, status)
        return self._counted(reply, "error", "origin-failed")

    async def _contradicted(self, visit: Visit, fetched: Fetched, held: Held) -> None:
        """Purge a page if an answer to HEAD shows that it is not what it was."""
        if fetched.error is not None or fetched.status != 200:
            return
        for name in (b"etag", b"last-modified"):
            said, known = first(fetched.headers, name), first(held.entry.headers, name)
            if said is not None and known is not None and said != known:
                await self._purged(visit.primary, hard=False)
                return

    async def _through(self, visit: Visit) -> Reply:
        """Pass on what is no question. If it may have changed a page, that page is purged."""
        ask = visit.ask
        fetched = await visit.fetch(ask.method, ask.headers, ask.body)
        if fetched.error is None:
            await self.changed(ask, visit.terms, fetched.status, fetched.related)
        return self._passed_on(fetched, "method", None)

    async def changed(self, ask: Ask, terms: Terms, status: int, related: tuple[str, ...]) -> None:
        """Purge the pages that a request may have changed, by the status of its answer."""
        if ask.method in _SAFE or not 200 <= status < 400:
            return
        for url in dict.fromkeys([ask.url, *related[:_MOST_RELATED]]):
            place = _primary(msgspec.structs.replace(ask, url=url), terms)
            try:
                if len(url) <= MOST_URL and await self._is_kept(place):
                    await self._purged(place, hard=True)
            except StoreError as error:  # it is done, and must not seem to have failed
                log.warning("a page that may have changed was not purged: %s", error)

    async def _is_kept(self, place: Place) -> bool:
        """Whether there is, or may soon be, a page of a URL."""
        store = self._shelf.store
        if await store.get(place.meta, expired=True) is not None:
            return True
        if await self._regeneration.under_way(place):
            return True
        if await store.get(place.variants) is not None:
            return True
        listed = Listed.query(place.scope).begins_with(place.listed_url)
        page = await store.query(listed, limit=_MOST_LISTED)
        return any(row.url == place.url for row in page.items)

    async def _purged(self, place: Place, *, hard: bool) -> None:
        await self._shelf.purges.purge(place.scope, "url", place.url, hard=hard, settle=False)

    async def _learned(self, place: Place, names: frozenset[str]) -> bool:
        """Write down that the pages of a URL depend on request headers. The page that did not seem
        to is not for everyone any more."""
        store = self._shelf.store
        try:
            row = await store.get(place.variants)
            known = frozenset(row.names) if row is not None else frozenset()
            if len(known | names) > MOST_NAMES:
                return False
            ttl = store.now() + _VARIANTS_SECONDS
            row = PageVariants(pk=place.pk, names=sorted(known | names), ttl=ttl)
            await self._shelf.set_variants(place, row)
            await store.delete(place.meta)
        except StoreError:
            return False
        self._shelf.memory.drop(place)
        return True

    def _counted(self, reply: Reply, result: str, reason: str) -> Reply:
        self._metrics.answers.labels(result, reason).inc()
        return reply


async def _nothing(method: str, headers: Headers, body: bytes) -> Fetched:
    raise AssertionError("a hit asks nobody")


def _primary(ask: Ask, terms: Terms) -> Place:
    return Place(terms.tenant, ask.url, f"host:{ask.host}" if ask.host else "")
