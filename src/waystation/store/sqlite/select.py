"""Queries in SQL. Every statement ends in LIMIT, whose value comes last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.store.sqlite.schema import column

if TYPE_CHECKING:
    from waystation.store.queries import Query, SortRange
    from waystation.store.sqlite.schema import Layout
    from waystation.store.templates import KeyValue
    from waystation.store.values import RawItem


def query_statement(
    layout: Layout, query: Query[Any], start: RawItem | None, reverse: bool
) -> tuple[str, list[Any]]:
    """The rows of a query, from after `start` on."""
    table = layout.table
    pk, sk = "pk", "sk"
    order = ["sk"]
    names = [table.sk.name if table.sk else None]
    if query.index is not None:
        pk, sk = layout.index_columns(query.index.name)
        order = [sk, "pk", "sk"]
        names = [query.index.sk.name if query.index.sk else None, table.pk.name, *names]
    clauses, arguments = [f"{pk}=?"], [column(query.pk)]
    if query.range is not None:
        clause, bounds = _range(sk, query.range)
        clauses.append(clause)
        arguments += bounds
    if start is not None:
        places = ", ".join("?" * len(order))
        clauses.append(f"({', '.join(order)}) {'<' if reverse else '>'} ({places})")
        arguments += ["" if name is None else column(start[name]) for name in names]
    direction = " DESC" if reverse else ""
    sql = (
        f"SELECT {layout.selected} FROM {layout.quoted} WHERE {' AND '.join(clauses)} "  # noqa: S608
        f"ORDER BY {', '.join(part + direction for part in order)} LIMIT ?"
    )
    return sql, arguments


def scan_statement(layout: Layout, start: RawItem | None) -> tuple[str, list[Any]]:
    """All rows, from after `start` on."""
    table = layout.table
    clause, arguments = "", []
    if start is not None:
        clause = "WHERE (pk, sk) > (?, ?) "
        sk = "" if table.sk is None else column(start[table.sk.name])
        arguments = [column(start[table.pk.name]), sk]
    sql = f"SELECT {layout.selected} FROM {layout.quoted} {clause}"  # noqa: S608
    return f"{sql}ORDER BY pk, sk LIMIT ?", arguments


def _range(sk: str, wanted: SortRange) -> tuple[str, list[Any]]:
    low = column(wanted.low)
    if wanted.op == "between":
        return f"{sk} BETWEEN ? AND ?", [low, column(wanted.high)]
    if wanted.op != "begins_with":
        return f"{sk} {wanted.op} ?", [low]
    end = _after_prefix(wanted.low)
    return (f"{sk} >= ?", [low]) if end is None else (f"{sk} >= ? AND {sk} < ?", [low, end])


def _after_prefix(prefix: KeyValue) -> str | bytes | None:
    """The first key after all that begin with a prefix, or None when there is none."""
    if isinstance(prefix, bytes):
        stripped = prefix.rstrip(b"\xff")
        return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
    assert isinstance(prefix, str)
    text = prefix.rstrip("\U0010ffff")
    if not text:
        return None
    code = ord(text[-1])
    return text[:-1] + chr(0xE000 if code == 0xD7FF else code + 1)
