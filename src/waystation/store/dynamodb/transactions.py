"""Transactions on DynamoDB: conflicts, expired items and tokens."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from waystation.aws import wait_before
from waystation.errors import (
    AwsError,
    CancellationReason,
    InvalidRequest,
    TokenReused,
    TransactionCancelled,
    TransactionConflict,
)
from waystation.store.dynamodb import requests
from waystation.store.expiry import has_expired

if TYPE_CHECKING:
    from waystation.store.actions import Write
    from waystation.store.dynamodb.engine import DynamoStore
    from waystation.store.values import RawItem

_ATTEMPTS = 10
_REMEMBERED_TOKENS = 10_000
_TOKEN_SECONDS = 600
_VERBS = {"put": "Put", "update": "Update", "delete": "Delete", "check": "ConditionCheck"}
_PASSING = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})
_CODES = {
    "ConditionalCheckFailed": CancellationReason.CONDITION,
    "TransactionConflict": CancellationReason.CONFLICT,
}


class _Form:
    """How a transaction is put to DynamoDB: the time it goes by, and the updates of nothing."""

    __slots__ = ("now", "over_nothing", "token")

    def __init__(self, token: str, now: int) -> None:
        self.token = token
        self.now = now
        self.over_nothing: set[int] = set()


class Transactions:
    """Runs transactions for one store."""

    def __init__(self, store: DynamoStore) -> None:
        self._store = store
        self._forms: dict[str, _Form] = {}

    async def run(self, writes: list[Write], token: str | None) -> None:
        form = self._form(token)
        try:
            await self._run(writes, form)
        except (TransactionCancelled, InvalidRequest) as error:
            # Nothing happened: the next use of the token starts afresh, at its own time.
            if not isinstance(error, TokenReused):
                self._forms.pop(form.token, None)
            raise

    async def _run(self, writes: list[Write], form: _Form) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._attempt(writes, form)
            except AwsError as error:
                reasons = error.details.get("CancellationReasons", [])
            else:
                return
            self._check(writes, reasons, form)
            if form.token not in self._forms:
                form.token = uuid.uuid4().hex  # the next attempt is another request
            if any(reason["Code"] in _PASSING for reason in reasons):
                await asyncio.sleep(wait_before(attempt))
        raise TransactionConflict("other writers kept touching the same items")

    def _check(self, writes: list[Write], reasons: list[dict[str, Any]], form: _Form) -> None:
        """Raise what stopped the transaction, unless another attempt may succeed."""
        for n, reason in enumerate(reasons):
            if reason["Code"] == "ValidationError":
                raise InvalidRequest(f"action {n}: {reason.get('Message')}")
        failures: list[tuple[str, str, RawItem | None] | None] = []
        for n, (write, reason) in enumerate(zip(writes, reasons, strict=True)):
            if reason["Code"] in _PASSING or self._needs_other_form(n, write, reason, form):
                failures.append(None)
            else:
                failures.append(self._failure(write, reason, form.now))
        if any(failures):
            raise self._store._cancelled(writes, failures)

    def _needs_other_form(self, n: int, write: Write, reason: dict[str, Any], form: _Form) -> bool:
        """Whether an update failed only because no live item was there, or because one now is.

        The form then says how the next attempt writes it.
        """
        if write.kind != "update" or reason["Code"] != "ConditionalCheckFailed":
            return False
        if n in form.over_nothing:
            form.over_nothing.discard(n)
            return True
        old = self._store.failed_item(reason)
        if not requests.found_nothing(write, old, form.now) or not write.allows_absent():
            return False
        write.outcome(None)  # an update that makes no sense of nothing is refused here and now
        form.over_nothing.add(n)
        return True

    async def _attempt(self, writes: list[Write], form: _Form) -> None:
        actions = []
        for n, write in enumerate(writes):
            table = self._store.table_name(write.key.spec.table)
            if n in form.over_nothing:
                new = write.outcome(None)
                request = requests.over_nothing_request(write, new, table, form.now)
                actions.append({"ConditionCheck" if new is None else "Put": request})
            else:
                request = requests.write_request(write, table, form.now)
                actions.append({_VERBS[write.kind]: request})
        await self._store.call(
            "TransactWriteItems",
            {"TransactItems": actions, "ClientRequestToken": form.token},
            table=self._store.table_name(writes[0].key.spec.table),
            writing=True,
        )

    def _form(self, token: str | None) -> _Form:
        """A fresh form, or the one a token was used with: a repetition must be the same request.

        Another process that repeats a transaction has another form of it and may be told that
        the token was used, but will not apply it twice.
        """
        now = self._store.now()
        if token is None:
            return _Form(uuid.uuid4().hex, now)
        form = self._forms.get(token)
        if form is None or now - form.now >= _TOKEN_SECONDS:
            self._forms.pop(token, None)
            while len(self._forms) >= _REMEMBERED_TOKENS:
                del self._forms[next(iter(self._forms))]
            form = self._forms[token] = _Form(token, now)
        return form

    def _failure(
        self, write: Write, reason: dict[str, Any], now: int
    ) -> tuple[str, str, RawItem | None] | None:
        if reason["Code"] == "None":
            return None
        old = self._store.failed_item(reason)
        if old is not None and has_expired(write.key.spec.table, old, now):
            old = None
        code = _CODES.get(reason["Code"], CancellationReason.OTHER)
        return code, reason.get("Message") or reason["Code"], old
