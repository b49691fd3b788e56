"""Items: msgspec structs with key templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

import msgspec

from waystation.errors import DeclarationError, InvalidKey
from waystation.store.queries import item_query
from waystation.store.spec import Key, Spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from waystation.store.foreign import Mend
    from waystation.store.queries import Query
    from waystation.store.tables import Table

I = TypeVar("I", bound="Item")  # noqa: E741 - I for Item


@dataclass_transform(field_specifiers=(msgspec.field,))
class _ItemMeta(msgspec.StructMeta):
    """Takes the table and key templates from the class statement."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        table: Table | None = None,
        pk: str | None = None,
        sk: str | None = None,
        indexes: Mapping[str, tuple[str, str] | str] | None = None,
        key_only: tuple[str, ...] = (),
        version: str | None = None,
        mend: Mend | None = None,
        nulls: tuple[str, ...] = (),
        **struct_options: Any,
    ) -> _ItemMeta:
        cls = super().__new__(mcls, name, bases, namespace, **struct_options)
        if table is not None and pk is not None:
            spec = Spec(cls, table, pk, sk, indexes or {}, key_only, version, mend, nulls)  # type: ignore[arg-type]
            cls.spec = spec  # type: ignore[attr-defined]
            table.specs.append(spec)
        elif table is not None or pk is not None:
            raise DeclarationError(f"{name}: a table and a pk template go together")
        return cls


class Item(msgspec.Struct, metaclass=_ItemMeta, gc=False):
    """A typed item.

        class Source(Item, table=main, pk="USER#{user_id}", sk="SRC#{source_id}",
                     indexes={"GSI3": ("SRCID#{source_id}", "SOURCE")}, rename="camel"):
            user_id: str
            source_id: str
            name: str

    Fields that are None are not stored, but for those in `nulls`, which are stored as NULL: other
    services may want to see that there is nothing. `key_only` fields are stored nowhere but in the
    key. `version` names an int field that makes every put conditional on nobody else having written
    the item since it was read. `mend` makes sense of rows that other services have written.
    """

    spec: ClassVar[Spec]

    @classmethod
    def key(cls, *parts: object) -> Key[Self]:
        """The key of the item with these key fields: the partition key's, then the sort key's."""
        fields = cls.spec.key_fields
        if len(parts) != len(fields):
            raise InvalidKey(f"{cls.__name__}.key takes {', '.join(fields) or 'no fields'}")
        return cls.spec.key(parts)

    @classmethod
    def query(cls, *parts: object, index: str | None = None) -> Query[Self]:
        """The items of one partition, of the table or of an index.

        The first parts fill the partition key; further ones narrow the sort key from the left.
        """
        return item_query(cls.spec, parts, index)


def key_of(item: I) -> Key[I]:
    """Where an item lives."""
    return item.spec.key_of(item)
