"""`Idempotency-Key` on every POST: a repetition gets the first answer again.

Answers are kept encrypted, because some of them hold secrets that are shown once. Answers that
ask to try again (server faults, throttling) and refusals of the caller are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.errors import InvalidInput, Unauthenticated
from waystation.server.asgi import Capture, Response, header, read_body, replayed

if TYPE_CHECKING:
    from waystation.accounts.service import Accounts, Principal
    from waystation.patterns.idempotency import Idempotency, Run
    from waystation.patterns.vault import Vault
    from waystation.server.asgi import App, Receive, Scope, Send

MAX_KEY = 255
_NOT_KEPT = frozenset({401, 403, 408, 409, 425, 429})
_REPLAYED = (b"idempotent-replayed", b"true")


class _NotKept(Exception):
    """Carries an answer out of the work without completing it."""

    def __init__(self, response: Response) -> None:
        self.response = response


class IdempotentPosts:
    """In front of the API: everything passes, POSTs with a key pass once."""

    def __init__(
        self, app: App, accounts: Accounts, idempotency: Idempotency, vault: Vault
    ) -> None:
        self._app = app
        self._accounts = accounts
        self._idempotency = idempotency
        self._vault = vault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        again = replayed(body, receive)
        key = header(scope, b"idempotency-key") if scope["method"] == "POST" else None
        if key is None:
            await self._app(scope, again, send)
            return
        if not 0 < len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
            raise InvalidInput(
                "Idempotency-Key", f"a key is 1 to {MAX_KEY} printable ASCII characters"
            )
        response = await self._once(scope, again, body, key)
        await response(send)

    async def _once(self, scope: Scope, receive: Receive, body: bytes, key: str) -> Response:
        caller = await self._caller(scope)
        done = False

        async def work(run: Run) -> bytes:
            nonlocal done
            done = True
            capture = Capture()
            await self._app(scope, receive, capture)
            response = capture.response()
            if response.status >= 500 or response.status in _NOT_KEPT:
                raise _NotKept(response)
            return self._vault.seal(msgspec.msgpack.encode(response), caller)

        payload = [scope["path"], scope.get("query_string", b""), body]
        try:
            sealed = await self._idempotency.run(caller, key, work, payload=payload, result=bytes)
        except _NotKept as answered:
            return answered.response
        response = msgspec.msgpack.decode(self._vault.open(sealed, caller), type=Response)
        return (
            response
            if done
            else Response(response.status, response.body, [*response.headers, _REPLAYED])
        )

    async def _caller(self, scope: Scope) -> str:
        """Whose key it is: an account's, or an address's while there is no account."""
        try:
            principal: Principal = await self._accounts.authenticate(
                header(scope, b"authorization")
            )
        except Unauthenticated:
            client = scope.get("client")
            return f"http:{client[0] if client else 'unknown'}"
        scope["principal"] = principal
        return f"http:{principal.user_id}"
