"""The item store: declare tables and items, then read and write them on either engine."""

from waystation.errors import (
    CancellationReason,
    ConditionFailed,
    InvalidCursor,
    InvalidKey,
    InvalidRequest,
    ItemTooLarge,
    StoreError,
    TransactionCancelled,
)
from waystation.store.actions import (
    Action,
    Check,
    Delete,
    Put,
    Revise,
    Update,
    Write,
    prepare,
    with_sums,
)
from waystation.store.base import Store
from waystation.store.claims import Claims
from waystation.store.expressions import Condition, absent, attr, exists, if_absent
from waystation.store.feed import Change, ChangeFeed, Checkpoint, FeedHolder, checkpoints
from waystation.store.items import Item, key_of
from waystation.store.opening import open_store
from waystation.store.queries import Page, Query, partition
from waystation.store.spec import Key
from waystation.store.tables import Index, KeyAttribute, Table, scoped_name
from waystation.store.updates import (
    Edit,
    add,
    add_to_set,
    append,
    prepend,
    remove,
    remove_from_set,
    set_if_absent,
    set_or_remove,
    set_to,
)
from waystation.store.values import RawItem

__all__ = [
    "Action",
    "CancellationReason",
    "Change",
    "ChangeFeed",
    "Check",
    "Checkpoint",
    "Claims",
    "Condition",
    "ConditionFailed",
    "Delete",
    "Edit",
    "FeedHolder",
    "Index",
    "InvalidCursor",
    "InvalidKey",
    "InvalidRequest",
    "Item",
    "ItemTooLarge",
    "Key",
    "KeyAttribute",
    "Page",
    "Put",
    "Query",
    "RawItem",
    "Revise",
    "Store",
    "StoreError",
    "Table",
    "TransactionCancelled",
    "Update",
    "Write",
    "absent",
    "add",
    "add_to_set",
    "append",
    "attr",
    "checkpoints",
    "exists",
    "if_absent",
    "key_of",
    "open_store",
    "partition",
    "prepare",
    "prepend",
    "remove",
    "remove_from_set",
    "scoped_name",
    "set_if_absent",
    "set_or_remove",
    "set_to",
    "with_sums",
]
