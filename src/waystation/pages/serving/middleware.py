"""The page cache in front of an app of your own, as ASGI middleware.

What cannot be cached reaches the client as the app sends it, piece by piece; what can is read to
its end, kept and then sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from waystation.errors import InvalidInput
from waystation.pages.http.fields import Headers, end_to_end, first
from waystation.pages.http.policies import policy_of
from waystation.pages.keeping.places import MOST_URL
from waystation.pages.serving.replies import cache_status, problem
from waystation.pages.serving.terms import Ask, Fetched
from waystation.pages.serving.urls import page_url, site_url

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from waystation.clock import Clock
    from waystation.pages.library import PageCache
    from waystation.pages.serving.terms import Reply, Terms

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

LARGEST = 16 * 1024 * 1024
_AHEAD = 16
_NO_BODY = frozenset({204, 304})
_EXTENSIONS = frozenset(
    {
        *("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"),
        *("http.response.push", "http.response.early_hint"),
    }
)
"""Ways of answering that pass over what we keep."""

TenantOf = Callable[["Scope"], str | None]
"""Whose page a request is for. Where it says None, the request is refused."""


class PageCacheMiddleware:
    """Caches the pages of an ASGI app.

    With `paths`, only paths that begin with one of them are cached. A cache with tenants needs
    `tenant`, which says whose page a request is for.
    """

    def __init__(
        self,
        app: App,
        *,
        cache: PageCache,
        tenant: TenantOf | None = None,
        paths: Sequence[str] | None = None,
        ignore_params: Sequence[str] = (),
        largest: int = LARGEST,
    ) -> None:
        self._app = app
        self._cache = cache
        self._tenant = tenant
        self._paths = None if paths is None else tuple(paths)
        self._ignored = tuple(ignore_params)
        self._largest = largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._is_ours(scope):
            await self._app(scope, receive, send)
            return
        ask = self._asked(scope)
        try:
            terms = self._cache.terms(None if self._tenant is None else self._tenant(scope))
        except InvalidInput as error:
            status = cache_status(fwd="bypass", detail="tenant")
            await _send(problem(400, f"{error.field}: {error}", status), ask.method, send)
            return
        if ask.method in ("GET", "HEAD"):
            await self._answered(scope, receive, send, ask, terms)
        else:
            await self._passed(scope, receive, send, ask, terms)

    def _is_ours(self, scope: Scope) -> bool:
        return self._paths is None or scope["path"].startswith(self._paths)

    def _asked(self, scope: Scope) -> Ask:
        """What a request is for. Pages may differ by host and scheme: each has its own."""
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        query = scope.get("query_string", b"").decode("latin-1")
        path = raw.decode("latin-1")
        url = f"{path}?{query}" if query else path
        headers = end_to_end([(bytes(n).lower(), bytes(v)) for n, v in scope["headers"]])
        if scope["method"] in ("GET", "HEAD"):
            if self._cache.ignores_cookies:
                headers = [pair for pair in headers if pair[0] != b"cookie"]
            if len(url) <= MOST_URL:
                url = page_url(path, query, self._ignored)
        host = f"{scope.get('scheme', 'http')}://{first(headers, b'host') or ''}"
        return Ask(scope["method"], url, headers, host=host)

    async def _answered(
        self, scope: Scope, receive: Receive, send: Send, ask: Ask, terms: Terms
    ) -> None:
        clock = self._cache.pages.store.clock
        origin = _AppOrigin(self._app, scope, ask, terms, self._largest, clock)
        try:
            reply = await self._cache.pages.answers.answer(ask, terms, origin.fetch)
            if reply.rest is None:
                await _send(reply, ask.method, send)
            else:
                await _while_there(receive, _send(reply, ask.method, send))
        finally:
            origin.leave()

    async def _passed(
        self, scope: Scope, receive: Receive, send: Send, ask: Ask, terms: Terms
    ) -> None:
        """Let the app answer as if there were no cache. What its answer may have changed is purged
        before the client hears of it."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(bytes(n).lower(), bytes(v)) for n, v in message.get("headers", [])]
                related = _related(headers, ask.url, scope)
                await self._cache.pages.answers.changed(ask, terms, message["status"], related)
            await send(message)

        await self._app(scope, receive, watched)


class _AppOrigin:
    """One request's way to the app."""

    def __init__(
        self, app: App, scope: Scope, ask: Ask, terms: Terms, largest: int, clock: Clock
    ) -> None:
        self._app = app
        self._scope = scope
        self._ask = ask
        self._terms = terms
        self._largest = largest
        self._clock = clock
        self._streams: list[_Run] = []
        self._left = False

    async def fetch(self, method: str, headers: Headers, body: bytes) -> Fetched:
        query = self._ask.url.partition("?")[2].encode("latin-1")
        scope = {**self._scope, "method": method, "headers": list(headers), "query_string": query}
        scope["extensions"] = {
            name: value
            for name, value in (self._scope.get("extensions") or {}).items()
            if name not in _EXTENSIONS
        }
        run = _Run(self._app, scope)
        begun = time.monotonic()
        try:
            status, got = await run.start()
            kept = self._may_keep(method, status, got)
            content = await run.body(self._largest) if kept else b""
        except BaseException as error:
            run.stop()
            if not isinstance(error, Exception):
                raise
            return Fetched(500, [], error=f"the app failed: {type(error).__name__}", cause=error)
        rest = None
        if not run.ended:
            self._streams.append(run)
            rest = run.rest()
            if self._left:  # nobody is there any more to read it
                self.leave()
        related = _related(got, self._ask.url, self._scope)
        seconds = time.monotonic() - begun
        return Fetched(status, got, content, seconds, related=related, rest=rest)

    def _may_keep(self, method: str, status: int, headers: Headers) -> bool:
        """Whether it is worth reading an answer to its end before the client sees it begin."""
        kind = first(headers, b"content-type") or ""
        if method != "GET" or kind.startswith("text/event-stream"):
            return False
        windows = self._terms.windows
        return policy_of(status, headers, self._ask.headers, windows, self._clock()).refused is None

    def leave(self) -> None:
        """The client has what it asked for, or has gone. What an app does after its answer is its
        own business."""
        self._left = True
        for run in self._streams:
            if not run.ended:
                run.stop()


class _Run:
    """The app at work on one request, in a task of its own: it is held up where nobody reads."""

    _working: ClassVar[set[asyncio.Task[None]]] = set()

    def __init__(self, app: App, scope: dict[str, Any]) -> None:
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(_AHEAD)
        self._gone = asyncio.Event()
        self._given = False
        self.ended = False
        self._task = asyncio.create_task(self._work(app, scope))
        self._working.add(self._task)
        self._task.add_done_callback(self._finished)

    async def _work(self, app: App, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        except asyncio.CancelledError:
            raise
        except BaseException:
            await self._send(None)
            raise
        await self._send(None)

    async def _send(self, message: Message | None) -> None:
        if not self.ended:
            await self._messages.put(message)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if self.ended and not task.cancelled() and (error := task.exception()) is not None:
            log.error("an app failed after its answer", exc_info=error)

    async def _receive(self) -> Message:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def start(self) -> tuple[int, Headers]:
        while True:
            message = await self._messages.get()
            if message is None:
                await self._task  # raises what went wrong
                raise RuntimeError("the app did not answer")
            if message["type"] == "http.response.start":
                headers = [(bytes(n).lower(), bytes(v)) for n, v in message.get("headers", [])]
                return message["status"], headers

    async def body(self, most: int) -> bytes:
        """The body, and if it is longer than `most`, as much of it as has been read by then."""
        parts: list[bytes] = []
        size = 0
        while not self.ended and size <= most:
            parts.append(await self._piece())
            size += len(parts[-1])
        return b"".join(parts)

    async def _piece(self) -> bytes:
        message = await self._messages.get()
        if message is None:
            self._end()
            await self._task
            raise RuntimeError("the app did not finish its answer")
        if message["type"] != "http.response.body":
            return b""
        if not message.get("more_body", False):
            self._end()
        return bytes(message.get("body", b""))

    def _end(self) -> None:
        self.ended = True
        self._gone.set()

    async def rest(self) -> AsyncIterator[bytes]:
        while not self.ended:
            yield await self._piece()

    def stop(self) -> None:
        self._gone.set()
        self._task.cancel()


async def _while_there(receive: Receive, sending: Coroutine[Any, Any, None]) -> None:
    """Send for as long as there is a client: a stream may have no end of its own."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watching, work = asyncio.create_task(gone()), asyncio.create_task(sending)
    try:
        await asyncio.wait({watching, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
    finally:
        watching.cancel()
        work.cancel()
        await asyncio.gather(watching, work, return_exceptions=True)


def _related(headers: Headers, url: str, scope: Scope) -> tuple[str, ...]:
    """URLs of the app that an answer names as what was created or changed."""
    host = next((bytes(v).decode("latin-1") for n, v in scope["headers"] if n == b"host"), "host")
    origin = f"{scope.get('scheme', 'http')}://{host}"
    named = [v.decode("latin-1") for n, v in headers if n in (b"location", b"content-location")]
    found = (site_url(each, origin + url, origin) for each in named)
    return tuple(each for each in found if each is not None)


async def _send(reply: Reply, method: str, send: Send) -> None:
    headers = list(reply.headers)
    bodiless = method == "HEAD" or reply.status in _NO_BODY
    if reply.rest is None and reply.status not in _NO_BODY:
        known = any(name == b"content-length" for name, _ in headers)
        if not (method == "HEAD" and known):
            headers = [pair for pair in headers if pair[0] != b"content-length"]
            headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if reply.rest is None or bodiless:
        await send({"type": "http.response.body", "body": b"" if bodiless else reply.body})
        return
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    async for piece in reply.rest:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
