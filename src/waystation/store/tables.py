"""Tables and indexes as they are declared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from waystation.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from waystation.store.spec import Spec

KeyType = Literal["S", "N", "B"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_LONGEST_ATTRIBUTE = 255


class KeyAttribute:
    """The name and type of an attribute that is part of a key."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type: KeyType = "S") -> None:  # noqa: A002 - DynamoDB's word
        if not 0 < len(name) <= _LONGEST_ATTRIBUTE:
            raise DeclarationError(
                f"a key attribute's name has 1 to {_LONGEST_ATTRIBUTE} characters"
            )
        self.name = name
        self.type = type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyAttribute) and (self.name, self.type) == (
            other.name,
            other.type,
        )

    def __hash__(self) -> int:
        return hash((self.name, self.type))


class Index:
    """A global secondary index, which has the items that have its keys.

    `project` says what of an item is written to the index again with every change: all of it, its
    `"keys"`, or attributes by their names. On DynamoDB less is cheaper to write, and a query reads
    the rest from the table; it finds the same whatever is projected, on every engine.
    """

    __slots__ = ("name", "pk", "project", "sk")

    def __init__(
        self,
        name: str,
        *,
        pk: str | KeyAttribute,
        sk: str | KeyAttribute | None = None,
        project: Literal["all", "keys"] | Sequence[str] = "all",
    ) -> None:
        check_name(name, "an index")
        self.name = name
        self.pk = _key_attribute(pk)
        self.sk = None if sk is None else _key_attribute(sk)
        if isinstance(project, str) and project not in ("all", "keys"):
            raise DeclarationError(f"index {name}: project is all, keys or a list of attributes")
        self.project = project


class Table:
    """A table: its keys, indexes, TTL attribute, and whether its changes can be followed.

    With `stream="dynamodb"` they are followed there only: to hear of what other services write,
    which nobody does to an embedded database.

    `apart` are attributes that are large and seldom change. They are part of the item like any
    other; the embedded engine keeps them elsewhere, so that changing the rest does not write them
    again.
    """

    def __init__(
        self,
        name: str,
        *,
        pk: str | KeyAttribute,
        sk: str | KeyAttribute | None = None,
        indexes: Sequence[Index] = (),
        ttl: str | None = None,
        stream: bool | Literal["dynamodb"] = False,
        apart: Sequence[str] = (),
    ) -> None:
        check_name(name, "a table")
        self.name = name
        self.apart = frozenset(apart)
        self.pk = _key_attribute(pk)
        self.sk = None if sk is None else _key_attribute(sk)
        self.indexes = {index.name: index for index in indexes}
        self.ttl = ttl
        self.stream = stream
        self.specs: list[Spec] = []
        """The item types declared on this table, in order of declaration."""
        if ttl in {key.name for key in self.key_attributes()}:
            raise DeclarationError(f"table {name}: the TTL attribute cannot be a key")
        if self.apart & {ttl, *(key.name for key in self.key_attributes())}:
            raise DeclarationError(f"table {name}: keys and the TTL cannot be apart")
        if self.apart and stream is True:
            raise DeclarationError(f"table {name}: what is followed cannot be apart")
        if len(self.indexes) != len(indexes):
            raise DeclarationError(f"table {name}: two indexes have the same name")
        types = {key.name: key for key in self.key_attributes()}
        for key in self.key_attributes():
            if types[key.name] != key:
                raise DeclarationError(f"table {name}: {key.name} is declared with two types")

    def key_attributes(self) -> list[KeyAttribute]:
        """Every attribute that is part of the table's key or of an index."""
        found = [self.pk, self.sk]
        for index in self.indexes.values():
            found += [index.pk, index.sk]
        return [key for key in found if key is not None]

    def __repr__(self) -> str:
        return f"Table({self.name!r})"


def check_name(name: str, what: str) -> None:
    """Refuse a name that DynamoDB would refuse, whichever engine it is for."""
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{name[:80]!r} cannot be the name of {what}: 3 to 255 letters, digits, _, . and -"
        )


def _key_attribute(key: str | KeyAttribute) -> KeyAttribute:
    return KeyAttribute(key) if isinstance(key, str) else key


def scoped_name(table: Table, env: str, names: Mapping[str, str] | None = None) -> str:
    """The table's name in the database: `dev-ferryhook-main`, or the bare name without an env.

    `names` has the whole names of tables that are called otherwise, by their declared names.
    """
    if names and table.name in names:
        return names[table.name]
    return f"{env}-{table.name}" if env else table.name
