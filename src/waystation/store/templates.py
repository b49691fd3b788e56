"""Key templates such as `USER#{user_id}`: render, prefix and match."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

from waystation.errors import DeclarationError, InvalidKey, InvalidRequest
from waystation.store import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.store.tables import KeyAttribute

KeyValue = str | int | Decimal | bytes
Maker = Callable[..., KeyValue]

SEPARATORS = "#:|/"
LAST = "\U0010ffff"
"""Sorts after every key part; refused inside one, so that it can end a range exactly."""

_PADDED = re.compile(r"0[1-9]\d*d")

MAX_PARTITION_BYTES = 2048
MAX_SORT_BYTES = 1024


class Template:
    """A parsed key template.

    `{field}` alone keeps the field's own type, which is how number and binary keys are
    declared; anything else makes a string. `{attempt:03d}` pads a number so that it sorts.
    """

    __slots__ = (
        "_limits",
        "_literals",
        "_mark",
        "_separators",
        "_specs",
        "fields",
        "pattern",
        "plain",
        "text",
    )

    def __init__(self, text: str) -> None:
        self.text = text
        self._literals: list[str] = []
        self._specs: list[str] = []
        fields: list[str] = []
        tail = ""
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise DeclarationError(f"key template {text!r}: {error}") from None
        for literal, field, spec, _ in parsed:
            if field is None:
                tail = literal
                continue
            if not field.isidentifier():
                raise DeclarationError(f"key template {text!r}: {field!r} is not a field name")
            if spec and not _PADDED.fullmatch(spec):
                raise DeclarationError(f"key template {text!r}: {spec!r} is not like 010d")
            self._literals.append(literal)
            self._specs.append(spec or "")
            fields.append(field)
        self.fields = tuple(fields)
        self._literals.append(tail)
        self.plain = self._literals == ["", ""] and not self._specs[0]
        self._separators = [c for c in SEPARATORS if any(c in part for part in self._literals)]
        # With one separator a quick look finds it; otherwise every part is looked at closely.
        self._mark = self._separators[0] if len(self._separators) == 1 else ""
        self._limits = [10 ** int(spec[:-1]) if spec else 1 << 63 for spec in self._specs]
        self.pattern = self._compile()

    def _compile(self) -> re.Pattern[str]:
        part = f"([^{re.escape(''.join(self._separators))}]+)" if self._separators else "(.+)"
        pattern = re.escape(self._literals[0])
        for literal in self._literals[1:]:
            pattern += part + re.escape(literal)
        return re.compile(pattern, re.DOTALL)

    def render(self, values: Sequence[object]) -> KeyValue:
        """The key for these field values."""
        return _plain(self.fields[0], values[0]) if self.plain else self.prefix(values)

    def maker(self, attribute: KeyAttribute, limit: int) -> Maker:
        """A function that makes the key which an attribute holds, of the field values."""
        names = [f"value{n}" for n in range(len(self.fields))]
        lines = [f"def made({', '.join(names)}):", *self.source(names, attribute, limit, "careful")]
        names_used = {"careful": self.careful(attribute, limit)}
        return compiled([*lines, " return key"], names_used)  # type: ignore[no-any-return]

    def careful(self, attribute: KeyAttribute, limit: int) -> Callable[..., KeyValue]:
        """The same for any values: it says what is wrong with them."""

        def made(*values: object) -> KeyValue:
            key = self.render(values)
            check_key(attribute, key, limit)
            return key

        return made

    def source(
        self,
        names: Sequence[str],
        attribute: KeyAttribute,
        limit: int,
        careful: str,
        tests: dict[str, str] | None = None,
    ) -> list[str]:
        """The lines of a function that make `key` of values by these names: the usual ones on the
        spot, the others by the function that is called `careful`. What has to be tested for that is
        added to `tests`, each with the name of its result, if it is to be tested elsewhere."""
        text = _braced(self._literals[0])
        for name, spec, literal in zip(names, self._specs, self._literals[1:], strict=True):
            text += (f"{{{name}:{spec}}}" if spec else f"{{{name}}}") + _braced(literal)
        slowly = f"key = {careful}({', '.join(names)})"
        if self.plain or attribute.type != "S" or not all(map(str.isascii, self._literals)):
            return [f" {slowly}"]
        usual = [self._usual(n, name) for n, name in enumerate(names)]
        if tests is not None:
            usual = [tests.setdefault(test, f"usual_{len(tests)}") for test in usual]
        return [
            f" key = f{text!r} if {' and '.join(usual) or True} else ''",
            f" if not 0 < len(key) <= {limit}: {slowly}",
        ]

    def _usual(self, n: int, name: str) -> str:
        """The source of a test whether a field's value needs no closer look."""
        if self._specs[n]:
            return f"type({name}) is int and 0 <= {name} < {self._limits[n]}"
        apart = "".join(f" and {mark!r} not in {name}" for mark in self._separators)
        return f"type({name}) is str and {name} and {name}.isascii(){apart}"

    def prefix(self, values: Sequence[object]) -> str:
        """What every key that begins with these field values begins with."""
        text = self._literals[0]
        mark = self._mark
        for n, value in enumerate(values):
            # The usual parts in one go; _part says what is wrong with the others.
            spec = self._specs[n]
            if type(value) is int and 0 <= value < self._limits[n]:
                value = format(value, spec)
            elif (
                type(value) is not str or spec or not value or mark in value or not value.isascii()
            ):
                value = self._part(n, value)
            text += value + self._literals[n + 1]
        return text

    def bounds(self, values: Sequence[object], value: object) -> tuple[str, str]:
        """The first and last possible keys whose next field after `values` is `value`."""
        n = len(values)
        if n >= len(self.fields):
            raise InvalidRequest(f"key template {self.text!r} has no field left to compare")
        first = self.prefix(values) + self._part(n, value)
        after = self._literals[n + 1]
        last = n == len(self.fields) - 1
        return first + after, first + after + ("" if last else LAST)

    def match(self, key: KeyValue) -> dict[str, object] | None:
        """The field values in a key, or None when the key does not fit this template."""
        if self.plain:
            return {self.fields[0]: key}
        if not isinstance(key, str):
            return None
        found = self.pattern.fullmatch(key)
        if found is None:
            return None
        values: dict[str, object] = {}
        for field, spec, text in zip(self.fields, self._specs, found.groups(), strict=True):
            if spec and not text.isdecimal():
                return None
            values[field] = int(text) if spec else text
        return values

    def _part(self, n: int, value: object) -> str:
        field, spec = self.fields[n], self._specs[n]
        if isinstance(value, int) and not isinstance(value, bool):
            if value < 0:
                raise InvalidKey(f"{field} is negative and would not sort", field=field)
            text = format(value, spec)
            if spec and len(text) > len(format(0, spec)):
                raise InvalidKey(f"{field} has too many digits for {self.text}", field=field)
            return text
        if spec or not isinstance(value, str):
            wanted = "a whole number" if spec else "a string"
            raise InvalidKey(f"{field} must be {wanted}, not {type(value).__name__}", field=field)
        if not value:
            raise InvalidKey(f"{field} is empty", field=field)
        for forbidden in (*self._separators, LAST):
            if forbidden in value:
                raise InvalidKey(f"{field} contains {forbidden!r}", field=field)
        return value


class KeySource:
    """The lines of a function that make keys of an `item`: `reads` get the fields that they need,
    some of which may be `absent`, and `lines` make the keys by their names."""

    def __init__(
        self,
        keys: Sequence[tuple[str, KeyAttribute, Template, int]],
        tests: dict[str, str] | None = None,
    ) -> None:
        self.reads: list[str] = []
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        """What the lines refer to."""

        read: dict[str, None] = {}
        for result, attribute, template, limit in keys:
            careful = f"careful_{result}"
            self.names[careful] = template.careful(attribute, limit)
            fields = [f"of_{field}" for field in template.fields]  # a field may be called anything
            read |= dict.fromkeys(template.fields)
            self.lines += template.source(fields, attribute, limit, careful, tests)
            self.lines.append(f" {result} = key")
        self.reads = [f" of_{field} = item.{field}" for field in read]
        self.absent = " or ".join(f"of_{field} is None" for field in read) or "False"


def compiled(lines: Sequence[str], names: dict[str, Any]) -> Any:
    """The function `made` of these lines.

    Several keys are made for every write. Functions that are written for their templates make the
    usual ones in a fourth of the time.
    """
    known = dict(names)
    exec("\n".join(lines), known)  # noqa: S102 - of a declaration, not of anybody's data
    return known["made"]


def _braced(literal: str) -> str:
    return literal.replace("{", "{{").replace("}", "}}")


def _plain(field: str, value: object) -> KeyValue:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, int | Decimal | float) and not isinstance(value, bool):
        return numbers.canonical(value)
    raise InvalidKey(f"{field} cannot be a key: {type(value).__name__}", field=field)


def check_key(attribute: KeyAttribute, value: object, limit: int) -> None:
    """Refuse a key value of the wrong type, empty, or longer than DynamoDB takes."""
    if type(value) is str and attribute.type == "S" and value.isascii() and 0 < len(value) <= limit:
        return
    name = attribute.name
    if attribute.type == "N":
        if not isinstance(value, int | Decimal) or isinstance(value, bool):
            raise InvalidKey(f"{name} must be a number", field=name)
        return
    if attribute.type == "B":
        if not isinstance(value, bytes):
            raise InvalidKey(f"{name} must be binary", field=name)
        length = len(value)
    else:
        if not isinstance(value, str):
            raise InvalidKey(f"{name} must be a string", field=name)
        length = _utf8_length(name, value)
    if not length:
        raise InvalidKey(f"{name} is empty", field=name)
    if length > limit:
        raise InvalidKey(f"{name} has {length} bytes; {limit} are allowed", field=name)


def _utf8_length(name: str, value: str) -> int:
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"{name} contains half a surrogate pair", field=name) from None
