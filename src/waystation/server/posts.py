"""`Idempotency-Key` on every POST: a repetition gets the first answer again.

Answers are kept encrypted, because some of them hold secrets that are shown once. Answers that
ask to try again (server faults, throttling) and refusals of the caller are not kept.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import InvalidInput, Unauthenticated
from waystation.patterns import Limit, LocalLimiter, sender_key
from waystation.seam import Response
from waystation.server.asgi import Capture, header, read_body, replayed, send_response

if TYPE_CHECKING:
    from waystation.clock import Clock
    from waystation.patterns import Idempotency, Run, Vault
    from waystation.seam import Callers
    from waystation.server.asgi import App, Receive, Scope, Send

MAX_KEY = 255
_NOT_KEPT = frozenset({401, 403, 404, 405, 408, 409, 425, 429})
_STRANGERS = Limit(120, 60)
"""Keyed requests of those who have not signed in: each is a write."""
_REPLAYED = (b"idempotent-replayed", b"true")


class _NotKept(Exception):
    """Carries an answer out of the work without completing it."""

    def __init__(self, response: Response) -> None:
        self.response = response


class IdempotentPosts:
    """In front of the API: everything passes, POSTs with a key pass once."""

    def __init__(
        self,
        app: App,
        callers: Callers,
        idempotency: Idempotency,
        sign_ins: Idempotency,
        vault: Vault,
        clock: Clock,
    ) -> None:
        """`sign_ins` remembers only for as long as a retry takes: it holds tokens."""
        self._app = app
        self._callers = callers
        self._idempotency = idempotency
        self._sign_ins = sign_ins
        self._vault = vault
        self._key = vault.key("requests")
        self._strangers = LocalLimiter(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        again = replayed(body, receive)
        key = header(scope, b"idempotency-key") if scope["method"] == "POST" else None
        if key is None:
            await self._app(scope, again, send)
            return
        if not 0 < len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
            raise InvalidInput(
                "Idempotency-Key", f"must have 1 to {MAX_KEY} printable ASCII characters"
            )
        response = await self._once(scope, again, body, key)
        await send_response(response, send)

    async def _once(self, scope: Scope, receive: Receive, body: bytes, key: str) -> Response:
        payload = self._fingerprint(scope, body)
        caller = await self._caller(scope, payload)
        if caller is None:
            return await self._answer(scope, receive)  # to be refused: nothing to remember
        done = False

        async def work(run: Run) -> bytes:
            nonlocal done
            done = True
            response = await self._answer(scope, receive)
            if response.status >= 500 or response.status in _NOT_KEPT:
                raise _NotKept(response)
            return self._vault.seal(msgspec.msgpack.encode(response), caller)

        once = (
            self._sign_ins if scope["path"].startswith(self._callers.sign_in) else self._idempotency
        )
        try:
            sealed = await once.run(caller, key, work, payload=payload, result=bytes)
        except _NotKept as answered:
            return answered.response
        response = msgspec.msgpack.decode(self._vault.open(sealed, caller), type=Response)
        if done:
            return response
        return Response(response.status, response.body, [*response.headers, _REPLAYED])

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        capture = Capture()
        await self._app(scope, receive, capture)
        return capture.response()

    def _fingerprint(self, scope: Scope, body: bytes) -> bytes:
        """What a request was, by a keyed hash: a body may hold a password."""
        parts = [scope["path"].encode(), scope.get("query_string", b""), body]
        return hmac.digest(self._key, msgspec.msgpack.encode(parts), "sha256")

    async def _caller(self, scope: Scope, payload: bytes) -> str | None:
        """Whose key it is: an account's, for callers with the same rights.

        Who signs in has no account yet. What they send names them, wherever they send it from.
        """
        if scope["path"].startswith(self._callers.sign_in):
            client = scope.get("client")
            self._strangers.take(sender_key(client[0] if client else None), _STRANGERS)
            return f"http:anonymous:{payload.hex()}"
        try:
            principal = await self._callers.authenticate(header(scope, b"authorization"))
        except Unauthenticated:
            return None
        scope["principal"] = principal
        return f"http:{principal.user_id}:{principal.permissions}"
