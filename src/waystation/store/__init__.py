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
from waystation.store.actions import Check, Delete, Put, Update
from waystation.store.base import Store
from waystation.store.expressions import Condition, absent, attr, exists, if_absent
from waystation.store.feed import Change, ChangeFeed
from waystation.store.items import Item, key_of
from waystation.store.opening import open_store
from waystation.store.queries import Page, Query, partition
from waystation.store.spec import Key
from waystation.store.tables import Index, KeyAttribute, Table
from waystation.store.updates import (
    add,
    add_to_set,
    append,
    prepend,
    remove,
    remove_from_set,
    set_if_absent,
    set_to,
)

__all__ = [
    "CancellationReason",
    "Change",
    "ChangeFeed",
    "Check",
    "Condition",
    "ConditionFailed",
    "Delete",
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
    "Store",
    "StoreError",
    "Table",
    "TransactionCancelled",
    "Update",
    "absent",
    "add",
    "add_to_set",
    "append",
    "attr",
    "exists",
    "if_absent",
    "key_of",
    "open_store",
    "partition",
    "prepend",
    "remove",
    "remove_from_set",
    "set_if_absent",
    "set_to",
]
