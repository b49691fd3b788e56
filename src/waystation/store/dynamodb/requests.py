"""Writes and reads as DynamoDB requests, with expired items made absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from waystation.aws.client import is_throttling
from waystation.store import evaluate
from waystation.store.compile import Expressions
from waystation.store.dynamodb.wire import item_to_wire, to_wire
from waystation.store.expiry import IGNORED_AFTER
from waystation.store.expressions import Constant, IfAbsent
from waystation.store.updates import Add, Assign, Discard, Remove

if TYPE_CHECKING:
    from waystation.store.actions import Write
    from waystation.store.expressions import Condition
    from waystation.store.queries import Query, SortRange
    from waystation.store.tables import Table
    from waystation.store.updates import Change
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
    condition = _guarded(expressions, write, now)
    if condition is not None:
        request["ConditionExpression"] = condition
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    return with_placeholders(request, expressions)


def over_expired_request(
    write: Write, new: RawItem | None, table_name: str, now: int
) -> dict[str, Any]:
    """A put of what an update makes of nothing, in the place of an item that has expired.

    When it makes nothing, only the check remains.
    """
    expressions = Expressions()
    table = write.key.spec.table
    request: dict[str, Any] = {
        "TableName": table_name,
        "ConditionExpression": (
            f"attribute_not_exists({expressions.name(table.pk.name)}) "
            f"OR {_expired(expressions, table, now)}"
        ),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if new is not None:
        request["Item"] = item_to_wire(new)
    else:
        request["Key"] = item_to_wire(write.key.attributes())
    return with_placeholders(request, expressions)


def with_placeholders(request: dict[str, Any], expressions: Expressions) -> dict[str, Any]:
    if expressions.names:
        request["ExpressionAttributeNames"] = expressions.names
    if expressions.values:
        wired = {name: to_wire(value) for name, value in expressions.values.items()}
        request["ExpressionAttributeValues"] = wired
    return request


def _guarded(expressions: Expressions, write: Write, now: int) -> str | None:
    """The write's condition, such that an expired item counts as absent.

    An update must not touch an expired item at all: it would bring back what was in it.
    """
    table = write.key.spec.table
    condition = None if write.condition is None else expressions.condition(write.condition)
    if table.ttl is None:
        return condition
    if write.kind == "update":
        alive = f"NOT {_expired(expressions, table, now)}"
        return alive if condition is None else f"({condition}) AND {alive}"
    if condition is None or write.condition is None:
        return None
    if evaluate.holds(write.condition, None):
        return f"({condition}) OR {_expired(expressions, table, now)}"
    return f"({condition}) AND NOT {_expired(expressions, table, now)}"


def _expired(expressions: Expressions, table: Table, now: int) -> str:
    assert table.ttl is not None
    first, last = expressions.value(now - IGNORED_AFTER), expressions.value(now)
    return f"({expressions.name(table.ttl)} BETWEEN {first} AND {last})"


def read_filter(
    expressions: Expressions, table: Table, where: Condition | None, now: int, expired: bool
) -> str | None:
    """The filter of a query or scan, without expired items unless they are wanted."""
    found = [] if where is None else [expressions.condition(where)]
    if table.ttl is not None and not expired:
        found.append(f"NOT {_expired(expressions, table, now)}")
    return " AND ".join(f"({part})" for part in found) if found else None


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


def _repeatable_change(change: Change) -> bool:
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
        if "size" in error.message and "exceeded" in error.message:
            return ItemTooLarge(error.message)
        return InvalidRequest(error.message)
    if error.code == "SerializationException":
        return InvalidRequest(error.message)
    if is_throttling(error):
        return Throttled(f"DynamoDB is throttling {table}: {error.message}")
    if error.unknown and writing:
        return OutcomeUnknown(f"the answer about {table} was lost: {error}")
    return StoreUnavailable(str(error))
