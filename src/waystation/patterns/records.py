"""The records of idempotent work: how it stands, what came of it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from waystation.errors import RecordedFailure
from waystation.store import Item, Table

Errors = tuple[type[Exception], ...]

_MAX_ARGUMENTS = 4000

idempotency = Table("waystation-idempotency", pk="pk", ttl="expires_at")


class Failure(msgspec.Struct):
    """An error that the same work would meet again. Arguments are None where they are not kept."""

    kind: str
    message: str
    arguments: list[Any] | None = None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        plain = all(isinstance(part, str | int | bool | None) for part in error.args)
        small = sum(len(str(part)) for part in error.args) <= _MAX_ARGUMENTS
        return cls(
            _name(type(error)), str(error)[:1000], list(error.args) if plain and small else None
        )

    def rebuilt(self, kinds: Errors) -> Exception:
        """The error as it was, if it is one of those that were declared."""
        for kind in kinds:
            if _name(kind) == self.kind and self.arguments is not None:
                try:
                    return kind(*self.arguments)
                except TypeError:
                    break
        return RecordedFailure(self.kind, self.message)


class Record(
    Item,
    table=idempotency,
    pk="IDEM#{scope}#{key_hash}",
    key_only=("scope", "key_hash"),
    kw_only=True,
):
    """What is known of the work under a key. `fence` counts the attempts."""

    scope: str
    key_hash: str
    status: Literal["open", "completed", "failed"] = "open"
    lease_token: str | None = None
    lease_expires_at: int | None = None
    fence: int = 0
    fingerprint: bytes | None = None
    result: bytes | None = None
    result_lost: str | None = None
    failure: Failure | None = None
    steps: dict[str, bytes] = msgspec.field(default_factory=dict)
    created_at: int | None = None
    completed_at: int | None = None
    expires_at: int | None = None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
