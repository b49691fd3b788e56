"""Declaring tables and items, and what is refused while doing so."""

from __future__ import annotations

import types
from typing import Any, Literal

import msgspec
import pytest

from tests.contract.model import Note, Thing, things
from waystation.accounts.tables import main
from waystation.errors import DeclarationError, InvalidKey, InvalidRequest, UnreadableItem
from waystation.relay.tables import Source
from waystation.store import Index, Item, KeyAttribute, Table, attr, exists, key_of, open_store
from waystation.store.tables import scoped_name


class Branch(msgspec.Struct):
    name: str
    weight: float = 0.0
    children: list[Branch] = []


class Address(msgspec.Struct):
    city: str
    floor: int | None = None


def table(**options: Any) -> Table:
    return Table("declared", pk="PK", sk="SK", **options)


def test_a_key_is_made_of_its_fields() -> None:
    key = Note.key("ann", 5, "n1")
    assert (key.pk, key.sk) == ("OWNER#ann", "NOTE#0000000000005#n1")


def test_a_key_takes_exactly_its_fields() -> None:
    with pytest.raises(InvalidKey, match="owner, at, note_id"):
        Note.key("ann")


@pytest.mark.parametrize("part", [None, 1.5, True, b"x", ["x"]])
def test_a_key_part_of_the_wrong_type_is_refused_by_name(part: Any) -> None:
    with pytest.raises(InvalidKey) as refused:
        Thing.key("ann", part)
    assert refused.value.field == "thing_id"


async def test_the_fields_of_a_key_may_be_called_anything() -> None:
    odd = table(indexes=[Index("odd", pk="odd_pk", sk="odd_sk")])

    class Odd(
        Item,
        table=odd,
        pk="{type}#{len}",
        sk="{raw:03d}#{item}#{pk}",
        indexes={"odd": ("{careful_pk}", "%s'\\{{#{str}")},
    ):
        type: Any
        len: Any
        raw: Any
        item: Any
        pk: Any
        careful_pk: Any
        str: Any = None

    one = Odd("t", "l", 7, "i", "p", "c", "s")
    assert (key_of(one).pk, key_of(one).sk) == ("t#l", "007#i#p")
    assert Odd.key("t", "l", 7, "i", "p") == key_of(one)
    async with await open_store("sqlite://:memory:", [odd]) as store:
        await store.put(one)
        await store.put(Odd("t", "l", 8, "i", "p", "c"))
        assert list((await store.query(Odd.query("c", index="odd"))).items) == [one]


@pytest.mark.parametrize("kind", ["N", "B"])
def test_a_key_is_of_its_attributes_type(kind: Any) -> None:
    class Wrong(Item, table=Table("wrong", pk=KeyAttribute("PK", kind)), pk="USER#{name}"):
        name: str

    with pytest.raises(InvalidKey):
        Wrong.key("ann")


def test_a_negative_number_would_not_sort() -> None:
    with pytest.raises(InvalidKey) as refused:
        Note.key("ann", -1, "n")
    assert refused.value.field == "at"


def test_keys_are_equal_by_place() -> None:
    assert Thing.key("ann", "1") == key_of(Thing("ann", "1", a=5))
    assert len({Thing.key("ann", "1"), Thing.key("ann", "1"), Thing.key("ann", "2")}) == 2


@pytest.mark.parametrize("separator", ["#", ":", "|", "/"])
def test_every_separator_of_a_template_is_refused_in_its_parts(separator: str) -> None:
    declared = Table("separated", pk="pk")

    class Separated(Item, table=declared, pk=f"a{separator}{{one}}{separator}{{two}}"):
        one: str
        two: str

    with pytest.raises(InvalidKey) as refused:
        Separated.key("x", f"y{separator}z")
    assert refused.value.field == "two"


def test_a_part_may_hold_separators_that_the_template_does_not_use() -> None:
    assert Thing.key("a:b/c|d", "1").pk == "OWNER#a:b/c|d"


def test_an_item_type_may_be_a_singleton() -> None:
    declared = Table("single", pk="pk")

    class Switches(Item, table=declared, pk="SWITCHES"):
        safe_mode: bool = True

    assert Switches.key() == key_of(Switches())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"pk": "A#{missing}", "sk": "B"}, "missing"),
        ({"pk": "A#{name}"}, "sort key"),
        ({"pk": "A#{name", "sk": "B"}, "template"),
        ({"pk": "A#{0}", "sk": "B"}, "field name"),
        ({"pk": "A#{size:x}", "sk": "B"}, "010d"),
        ({"pk": "A#{name}", "sk": "B#{name}"}, "twice"),
        ({"pk": "A#{name}", "sk": "B", "indexes": {"NONE": ("X", "Y")}}, "NONE"),
        ({"pk": "A#{name}", "sk": "B", "indexes": {"GSI1": "X"}}, "shape"),
        ({"pk": "A#{name}", "sk": "B", "key_only": ("size",)}, "key-only"),
        ({"pk": "A#{name}", "sk": "B", "version": "nothing"}, "nothing"),
        ({"pk": "A#{name}", "sk": "B", "rename": {"size": "PK"}}, "key attribute"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(
    options: dict[str, Any], complaint: str
) -> None:
    declared = table(indexes=[Index("GSI1", pk="G1", sk="G1SK")])
    with pytest.raises(DeclarationError, match=complaint):
        types.new_class(
            "Declared",
            (Item,),
            {"table": declared, **options},
            lambda namespace: namespace.update(__annotations__={"name": str, "size": int}),
        )


def test_a_table_without_a_template_is_refused() -> None:
    with pytest.raises(DeclarationError):

        class Half(Item, table=table()):
            name: str


def test_two_indexes_of_one_name_are_refused() -> None:
    with pytest.raises(DeclarationError):
        table(indexes=[Index("G", pk="a"), Index("G", pk="b")])


def test_an_attribute_with_two_types_is_refused() -> None:
    with pytest.raises(DeclarationError):
        table(indexes=[Index("G", pk=KeyAttribute("SK", "N"))])


@pytest.mark.parametrize(
    ("env", "name"), [("dev", "dev-things"), ("prod", "prod-things"), ("", "things")]
)
def test_table_names_are_scoped_by_environment(env: str, name: str) -> None:
    assert scoped_name(things, env) == name


def test_a_condition_has_no_truth_value() -> None:
    with pytest.raises(TypeError):
        bool(attr("a") == 1)
    with pytest.raises(TypeError):
        _ = exists() and attr("a").exists()


@pytest.mark.parametrize("path", ["", ".a", "a.", "a..b", "a[", "a[x]", "[0]", "a]b"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        attr(path)


async def test_an_item_whose_fields_have_other_types_is_refused_before_it_is_written() -> None:
    async with await open_store("sqlite://:memory:", [things]) as store:
        wrong: Any = 5
        with pytest.raises(InvalidRequest, match="textBody"):
            await store.put(Note("ann", 1, "n", text_body=wrong))
        assert await store.get(Note.key("ann", 1, "n")) is None


async def test_an_item_that_no_longer_fits_its_type_is_reported_with_its_key() -> None:
    declared = Table("evolving", pk="pk")

    class Before(Item, table=declared, pk="E#{name}"):
        name: str
        size: str

    changed = Table("evolving", pk="pk")

    class After(Item, table=changed, pk="E#{name}"):
        name: str
        size: int

    async with await open_store("sqlite://:memory:", [declared]) as store:
        await store.put(Before("x", "large"))
        with pytest.raises(UnreadableItem, match="E#x"):
            await store.get(After.key("x"))


async def test_a_field_added_later_has_its_default_on_old_items() -> None:
    declared = Table("growing", pk="pk")

    class Before(Item, table=declared, pk="E#{name}"):
        name: str

    changed = Table("growing", pk="pk")

    class After(Item, table=changed, pk="E#{name}"):
        name: str
        kind: Literal["a", "b"] = "a"

    async with await open_store("sqlite://:memory:", [declared]) as store:
        await store.put(Before("x"))
        assert await store.get(After.key("x")) == After("x", "a")


async def test_nested_structs_come_back_as_they_were() -> None:
    declared = Table("nested", pk="pk")

    class Person(Item, table=declared, pk="P#{name}"):
        name: str
        home: Address
        others: list[Address]

    person = Person("ann", Address("Oslo"), [Address("Rome", 3)])
    async with await open_store("sqlite://:memory:", [declared]) as store:
        await store.put(person)
        assert await store.get(key_of(person)) == person


@pytest.mark.parametrize("part", ["5", "abc", 10**13])
def test_a_padded_number_must_be_a_number_that_fits(part: Any) -> None:
    with pytest.raises(InvalidKey) as refused:
        Note.key("ann", part, "n")
    assert refused.value.field == "at"


def test_a_ttl_attribute_cannot_be_a_key() -> None:
    with pytest.raises(DeclarationError, match="TTL"):
        table(ttl="expires", indexes=[Index("GSI", pk=KeyAttribute("expires", "N"))])


@pytest.mark.parametrize("parts", [("a", -1), ("a", True), ("a", 1.5), (0,), ("a", "")])
def test_a_path_of_parts_that_are_none_is_refused(parts: Any) -> None:
    with pytest.raises(InvalidRequest):
        attr(*parts)


async def test_a_foreign_row_does_not_stop_a_scan() -> None:
    declared = Table("foreign", pk="pk")

    class Visit(Item, table=declared, pk="V#{at:05d}"):
        at: int

    class Other(Item, table=declared, pk="V#{name}"):
        name: str

    async with await open_store("sqlite://:memory:", [declared]) as store:
        await store.put(Other("abc"))
        await store.put(Visit(7))
        assert list((await store.scan(Visit)).items) == [Visit(7)]


@pytest.mark.parametrize(
    ("field", "value"),
    [("status", "nonsense"), ("status", 1), ("event_count", "5"), ("name", None), ("name", 1.5)],
)
async def test_a_source_with_a_field_of_another_type_is_refused(field: str, value: Any) -> None:
    source = Source(source_id="s", user_id="u", name="n", provider="custom", created_at="now")
    async with await open_store("sqlite://:memory:", [main]) as store:
        await store.put(source)
        setattr(source, field, value)
        with pytest.raises(InvalidRequest) as refused:
            await store.put(source)
        assert refused.value.field == field
        found = await store.get(Source.key("u", "s"))
        assert found is not None
        assert getattr(found, field) != value


async def test_an_item_with_a_number_beyond_64_bits_comes_back() -> None:
    source = Source(source_id="s", user_id="u", name="né", provider="x", created_at="now")
    source.event_count = 10**30
    async with await open_store("sqlite://:memory:", [main]) as store:
        await store.put(source)
        assert await store.get(Source.key("u", "s")) == source


async def test_a_struct_may_hold_itself() -> None:
    declared = Table("trees", pk="pk")

    class Tree(Item, table=declared, pk="T#{name}"):
        name: str
        root: Branch
        spot: tuple[int, float] = (0, 0.0)

    tree = Tree("oak", Branch("a", 0.5, [Branch("b"), Branch("c", 1.5)]), (1, 2.5))
    async with await open_store("sqlite://:memory:", [declared]) as store:
        await store.put(tree)
        assert await store.get(key_of(tree)) == tree


@pytest.mark.parametrize("name", ["", "ab", "a b c", "é-table", "a/b/c", "x" * 256])
def test_names_that_dynamodb_refuses_are_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="cannot be the name of a table"):
        Table(name, pk="pk")
    with pytest.raises(DeclarationError, match="cannot be the name of an index"):
        Index(name, pk="pk")


@pytest.mark.parametrize("name", ["", "k" * 256])
def test_keys_that_dynamodb_refuses_are_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="1 to 255 characters"):
        Table("abc", pk=name)


async def test_an_environment_counts_towards_a_name() -> None:
    with pytest.raises(DeclarationError, match="cannot be the name of a table"):
        await open_store("sqlite://:memory:", [Table("x" * 250, pk="pk")], env="production")


def test_a_projection_is_one_of_three_kinds() -> None:
    with pytest.raises(DeclarationError, match="all, keys or a list"):
        Index("GSI", pk="pk", project="some")


def test_a_key_cannot_be_null() -> None:
    with pytest.raises(DeclarationError, match="cannot be NULL"):

        class Nothing(Item, table=table(), pk="{name}", nulls=("name",)):
            name: str | None
