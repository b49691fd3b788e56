"""Writes and reads as DynamoDB requests, with expired items made absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.aws import is_throttling
from waystation.errors import (
    AccessRefused,
    AwsError,
    InvalidRequest,
    ItemTooLarge,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TableMissing,
    Throttled,
    TokenReused,
    TransactionConflict,
)
from waystation.store.compile import Expressions
from waystation.store.dynamodb.wire import item_to_wire, to_wire
from waystation.store.expiry import IGNORED_AFTER, has_expired
from waystation.store.expressions import Attr, Constant, Every, IfAbsent, Path, absent, exists
from waystation.store.updates import Add, Assign, Discard, Remove

if TYPE_CHECKING:
    from waystation.store.actions import Write
    from waystation.store.expressions import Condition
    from waystation.store.queries import Query, SortRange
    from waystation.store.tables import Table
    from waystation.store.updates import Edit
    from waystation.store.values import RawItem

_REFUSED = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "UnrecognizedClientException",
    }
)


def write_request(write: Write, table_name: str, now: int) -> dict[str, Any]:
    """The parameters of a single write, or of one action of a transaction."""
    expressions = Expressions()
    request: dict[str, Any] = {"TableName": table_name}
    if write.item is not None:
        request["Item"] = item_to_wire(write.item)
    else:
        request["Key"] = item_to_wire(write.key.attributes())
    if write.changes:
        request["UpdateExpression"] = expressions.update(write.changes)
    condition = _guarded(write, now)
    if condition is not None:
        request["ConditionExpression"] = expressions.condition(condition)
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    return with_placeholders(request, expressions)


def over_nothing_request(
    write: Write, new: RawItem | None, table_name: str, now: int
) -> dict[str, Any]:
    """A put of what an update makes of nothing, where the item is absent or has expired.

    When it makes nothing, only the check remains.
    """
    expressions = Expressions()
    spec = write.key.spec
    gone = absent().resolve(spec)
    if spec.table.ttl is not None:
        gone = gone | _expired(spec.table, now)
    request: dict[str, Any] = {
        "TableName": table_name,
        "ConditionExpression": expressions.condition(gone),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if new is not None:
        request["Item"] = item_to_wire(new)
    else:
        request["Key"] = item_to_wire(write.key.attributes())
    return with_placeholders(request, expressions)


def found_nothing(write: Write, old: RawItem | None, now: int) -> bool:
    """Whether a write failed only because of our guards: there is no live item to update."""
    if write.kind != "update":
        return False
    if old is None:
        return not write.creates
    return has_expired(write.key.spec.table, old, now)


def with_placeholders(request: dict[str, Any], expressions: Expressions) -> dict[str, Any]:
    if expressions.names:
        request["ExpressionAttributeNames"] = expressions.names
    if expressions.values:
        wired = {name: to_wire(value) for name, value in expressions.values.items()}
        request["ExpressionAttributeValues"] = wired
    return request


def _guarded(write: Write, now: int) -> Condition | None:
    """The write's condition, such that an expired item counts as absent.

    An update must not touch an expired item at all: it would bring back what was in it. One
    that only takes away must not touch an absent one either: some would create it.
    """
    spec = write.key.spec
    parts = [] if write.condition is None else [write.condition]
    if write.kind == "update" and not write.creates:
        parts.append(exists().resolve(spec))
    if spec.table.ttl is not None and (parts or write.kind == "update"):
        expired = _expired(spec.table, now)
        if write.kind != "update" and write.allows_absent():
            return parts[0] | expired
        parts.append(~expired)
    return Every(parts) if len(parts) > 1 else parts[0] if parts else None


def _expired(table: Table, now: int) -> Condition:
    assert table.ttl is not None
    return Attr(Path((table.ttl,))).between(now - IGNORED_AFTER, now)


def read_filter(
    expressions: Expressions, table: Table, where: Condition | None, now: int, expired: bool
) -> str | None:
    """The filter of a query or scan, without expired items unless they are wanted."""
    if table.ttl is not None and not expired:
        alive = ~_expired(table, now)
        where = alive if where is None else where & alive
    return None if where is None else expressions.condition(where)


def key_condition(expressions: Expressions, query: Query[Any]) -> str:
    text = f"{expressions.name(query.pk_attribute.name)} = {expressions.value(query.pk)}"
    if query.range is None or query.sk_attribute is None:
        return text
    name = expressions.name(query.sk_attribute.name)
    return f"{text} AND {_sort_condition(expressions, name, query.range)}"


def _sort_condition(expressions: Expressions, name: str, wanted: SortRange) -> str:
    low = expressions.value(wanted.low)
    if wanted.op == "between":
        return f"{name} BETWEEN {low} AND {expressions.value(wanted.high)}"
    if wanted.op == "begins_with":
        return f"begins_with({name}, {low})"
    return f"{name} {wanted.op} {low}"


def repeatable(write: Write, returning: str | None) -> bool:
    """Whether carrying the write out twice is the same as once."""
    if write.condition is not None or returning == "old":
        return False
    return all(_repeatable_change(change) for change in write.changes)


def _repeatable_change(change: Edit) -> bool:
    if any(isinstance(part, int) for part in change.path.parts):
        return False
    match change:
        case Assign():
            value = change.value
            return isinstance(value.default if isinstance(value, IfAbsent) else value, Constant)
        case Add():
            return type(change.value.value) is set
        case Remove() | Discard():
            return True
    return False


def translate(error: AwsError, table: str, region: str, *, writing: bool) -> StoreError:
    """What an error of the service means to the caller."""
    if error.unknown and writing:
        return OutcomeUnknown(f"the answer about {table} was lost: {error}")
    if error.code == "ResourceNotFoundException":
        return TableMissing(
            f"table {table} does not exist in {region}: check the region and the environment's "
            "name, or create the tables"
        )
    if error.code in _REFUSED:
        return AccessRefused(f"DynamoDB refused the credentials: {error}")
    if error.code == "IdempotentParameterMismatchException":
        return TokenReused("this token was used for another transaction", field="token")
    if error.code == "TransactionConflictException":
        return TransactionConflict(f"a transaction holds an item of {table}")
    if error.code in ("ValidationException", "ItemCollectionSizeLimitExceededException"):
        if "exceeded" in error.message and ("size" in error.message or "Nest" in error.message):
            return ItemTooLarge(error.message)
        return InvalidRequest(error.message)
    if error.code == "SerializationException":
        return InvalidRequest(error.message)
    if is_throttling(error):
        return Throttled(f"DynamoDB is throttling {table}: {error.message}")
    return StoreUnavailable(str(error))
