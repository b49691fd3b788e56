"""Every error that Waystation raises on purpose.

WaystationError
├── StoreError
│   ├── InvalidRequest          the call itself is wrong; repeating it cannot help
│   │   ├── InvalidKey
│   │   ├── InvalidCursor
│   │   ├── ItemTooLarge
│   │   └── TokenReused
│   ├── ConditionFailed
│   ├── TransactionCancelled
│   ├── TransactionConflict     others write the same items; repeating it may help
│   ├── UnreadableItem          a stored item does not fit its declared type
│   ├── TableMissing
│   ├── TableMismatch
│   ├── NewerFormat
│   └── StoreUnavailable        the database cannot answer; repeating it may help
│       ├── Throttled
│       ├── AccessRefused       credentials are missing, wrong or expired
│       └── OutcomeUnknown      the write may or may not have happened
├── QueueError
│   ├── MessageLost             the message is no longer ours: another worker may have it
│   ├── TryLater                a handler's word: not now; `retry_after` says when
│   └── QueueUnavailable        the queue cannot answer; repeating it may help
├── BlobError                   the object store could not do what was asked
├── LeaseLost                   somebody else may hold the lease now
├── IdempotencyError
│   ├── KeyMissing
│   ├── KeyReused               the same key came with another payload
│   ├── InProgress              the work runs elsewhere; `retry_after` says when to ask again
│   ├── ResultUnavailable       the work was done, its result could not be kept
│   └── RecordedFailure         the work failed for good, and its error could not be rebuilt
├── Refusal                     a caller asked for what it cannot have
│   ├── InvalidInput            `field` names the part at fault
│   ├── Unauthenticated
│   ├── Forbidden
│   ├── NotFound
│   ├── Conflict
│   ├── TooManyRequests         `retry_after` says when to ask again
│   └── Overloaded              the same, but the fault is ours
├── ServerRefused               a command's server is not there, or would not do it
├── SettingsError               a setting is unknown or makes no sense
├── AwsError                    what an AWS service answered, before a system makes sense of it
└── DeclarationError            a table or item type is declared wrongly
"""

from __future__ import annotations

from typing import Any


class WaystationError(Exception):
    """The root: catch this to catch all of ours."""


class DeclarationError(WaystationError):
    """A table or item type contradicts itself."""


class AwsError(WaystationError):
    """An AWS service refused a call, or did not answer.

    `unknown` says that the call may have been carried out all the same.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        details: dict[str, Any] | None = None,
        unknown: bool = False,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.details = details or {}
        self.unknown = unknown


class StoreError(WaystationError):
    """The item store could not do what was asked."""


class InvalidRequest(StoreError):
    """The request is wrong in itself. `field` names the part at fault, where there is one."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidKey(InvalidRequest):
    """A key part is empty, too long, of the wrong type, or contains a separator."""


class InvalidCursor(InvalidRequest):
    """The cursor is damaged or belongs to another query."""


class ItemTooLarge(InvalidRequest):
    """The item would exceed 400 KB or 32 levels."""


class TokenReused(InvalidRequest):
    """A transaction token was used again with other content."""


class ConditionFailed(StoreError):
    """The condition did not hold. `item` is the item that was there, or None."""

    def __init__(self, message: str = "the condition did not hold", *, item: Any = None) -> None:
        super().__init__(message)
        self.item = item


class CancellationReason:
    """Why one action of a transaction could not run."""

    CONDITION = "ConditionFailed"
    CONFLICT = "Conflict"
    OTHER = "Other"

    __slots__ = ("code", "item", "message")

    def __init__(self, code: str, message: str = "", item: Any = None) -> None:
        self.code = code
        self.message = message
        self.item = item

    def __repr__(self) -> str:
        return f"CancellationReason({self.code!r}, {self.message!r}, item={self.item!r})"


class TransactionCancelled(StoreError):
    """Nothing was written. `reasons` has an entry per action, None where it was not at fault."""

    def __init__(self, reasons: list[CancellationReason | None]) -> None:
        summary = ", ".join(f"{n}: {reason.code}" for n, reason in enumerate(reasons) if reason)
        super().__init__(f"transaction cancelled ({summary})")
        self.reasons = reasons


class TransactionConflict(StoreError):
    """Other writers kept touching the same items for as long as we were willing to retry."""


class UnreadableItem(StoreError):
    """A stored item does not fit its declared type."""


class TableMissing(StoreError):
    """A declared table does not exist in the database."""


class TableMismatch(StoreError):
    """A table exists with other keys or indexes than declared."""


class NewerFormat(StoreError):
    """The file was written by a newer version of Waystation."""


class StoreUnavailable(StoreError):
    """The database cannot answer now."""


class Throttled(StoreUnavailable):
    """The database kept asking us to slow down for as long as we were willing to retry."""


class AccessRefused(StoreUnavailable):
    """Credentials are missing, wrong, expired or not allowed to do this."""


class OutcomeUnknown(StoreUnavailable):
    """The answer to a write was lost and repeating it blindly could apply it twice."""


class QueueError(WaystationError):
    """A queue could not do what was asked."""


class MessageLost(QueueError):
    """The message's visibility ran out: another worker may have it."""


class TryLater(QueueError):
    """What a handler raises to have its message again, `retry_after` seconds from now."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueUnavailable(QueueError):
    """The queue cannot answer now."""


class BlobError(WaystationError):
    """The object store could not do what was asked."""


class LeaseLost(WaystationError):
    """The lease ran out or was taken over; what was to be published under it was not."""


class IdempotencyError(WaystationError):
    """Work under an idempotency key could not be done or repeated."""


class KeyMissing(IdempotencyError):
    """There is no idempotency key, and without one the work could be done twice."""


class KeyReused(IdempotencyError):
    """The same key came with another payload."""


class InProgress(IdempotencyError):
    """The same work runs elsewhere. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ResultUnavailable(IdempotencyError):
    """The work was done and will not be done again, but its result could not be kept."""


class RecordedFailure(IdempotencyError):
    """The work failed for good earlier. `kind` is the name of the error it raised."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class Refusal(WaystationError):
    """A caller asked for something that it cannot have."""


class InvalidInput(Refusal):
    """Part of the request makes no sense; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Unauthenticated(Refusal):
    """The caller did not prove who it is."""


class Forbidden(Refusal):
    """The caller is known and may not do this."""


class NotFound(Refusal):
    """There is no such thing, or it is somebody else's."""


class Conflict(Refusal):
    """What is there already stands in the way."""


class TooManyRequests(Refusal):
    """The caller has used up its share. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(TooManyRequests):
    """There is more to do than we can take on."""


class ServerRefused(WaystationError):
    """A command's server could not be reached, or would not do it."""


class SettingsError(WaystationError):
    """A setting is unknown or makes no sense."""
