"""Transactions on DynamoDB: conflicts, expired items and tokens."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from typing import TYPE_CHECKING, Any

from waystation.aws.client import wait_before
from waystation.errors import AwsError, CancellationReason, TransactionConflict
from waystation.store.dynamodb import requests
from waystation.store.expiry import has_expired

if TYPE_CHECKING:
    from waystation.store.actions import Write
    from waystation.store.dynamodb.engine import DynamoStore
    from waystation.store.values import RawItem

_ATTEMPTS = 12
_REMEMBERED_TOKENS = 10_000
_TOKEN_SECONDS = 600
_VERBS = {"put": "Put", "update": "Update", "delete": "Delete", "check": "ConditionCheck"}
_PASSING = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})
_CODES = {
    "ConditionalCheckFailed": CancellationReason.CONDITION,
    "ValidationError": CancellationReason.INVALID,
    "TransactionConflict": CancellationReason.CONFLICT,
}


class Transactions:
    """Runs transactions for one store."""

    def __init__(self, store: DynamoStore) -> None:
        self._store = store
        self._times: dict[str, int] = {}

    async def run(self, writes: list[Write], token: str | None) -> None:
        now = self._time_of(token)
        over_expired: set[int] = set()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._attempt(writes, over_expired, token, now)
            except AwsError as error:
                reasons = error.details.get("CancellationReasons", [])
            else:
                return
            failures: list[tuple[str, str, RawItem | None] | None] = []
            for n, (write, reason) in enumerate(zip(writes, reasons, strict=True)):
                if reason["Code"] in _PASSING or self._turned(n, write, reason, over_expired, now):
                    failures.append(None)
                else:
                    failures.append(self._failure(write, reason, now))
            if any(failures):
                raise self._store._cancelled(writes, failures)
            if any(reason["Code"] in _PASSING for reason in reasons):
                await asyncio.sleep(wait_before(attempt))
        raise TransactionConflict("other writers kept touching the same items")

    def _turned(
        self,
        n: int,
        write: Write,
        reason: dict[str, Any],
        over_expired: set[int],
        now: int,
    ) -> bool:
        """Whether an update failed only over an expired item, or over its being replaced.

        `over_expired` then says how the next attempt writes it.
        """
        if write.kind != "update" or reason["Code"] != "ConditionalCheckFailed":
            return False
        if n in over_expired:
            over_expired.discard(n)
            return True
        old = self._store.failed_item(reason)
        if old is None or not has_expired(write.key.spec.table, old, now):
            return False
        if write.allows_absent():
            over_expired.add(n)
            return True
        return False

    async def _attempt(
        self, writes: list[Write], over_expired: set[int], token: str | None, now: int
    ) -> None:
        actions = []
        for n, write in enumerate(writes):
            table = self._store.table_name(write.key.spec.table)
            if n in over_expired:
                new = write.outcome(None)
                request = requests.over_expired_request(write, new, table, now)
                actions.append({"ConditionCheck" if new is None else "Put": request})
            else:
                request = requests.write_request(write, table, now)
                actions.append({_VERBS[write.kind]: request})
        request = {"TransactItems": actions, "ClientRequestToken": _token(token, over_expired)}
        await self._store.call(
            "TransactWriteItems",
            request,
            table=self._store.table_name(writes[0].key.spec.table),
            writing=True,
        )

    def _time_of(self, token: str | None) -> int:
        """The time a token was first used: a repetition must be the same request to the letter."""
        now = self._store.now()
        if token is None:
            return now
        first = self._times.get(token)
        if first is not None and now - first < _TOKEN_SECONDS:
            return first
        while len(self._times) >= _REMEMBERED_TOKENS:
            del self._times[next(iter(self._times))]
        self._times[token] = now
        return now

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


def _token(token: str | None, over_expired: set[int]) -> str:
    """A token for this form of the request. Ours makes the client's own repetitions safe."""
    if token is None:
        return uuid.uuid4().hex
    if not over_expired:
        return token
    return hashlib.sha256(f"{token} {sorted(over_expired)}".encode()).hexdigest()[:36]
