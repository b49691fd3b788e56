"""Numbers as DynamoDB has them: 38 significant digits, exponents -130 to 125, no NaN.

A number has one canonical form here: an `int` when it is integral, otherwise a `Decimal`
without trailing zeros, so that 1, 1.0 and 1e0 are one value and one key.
"""

from __future__ import annotations

from decimal import Decimal

from waystation.errors import InvalidRequest

Number = int | Decimal

MAX_DIGITS = 38
MAX_EXPONENT = 125
MIN_EXPONENT = -130
_SAFE = 10**MAX_DIGITS


def canonical(value: int | float | Decimal) -> Number:
    """The canonical form of a number, or InvalidRequest when DynamoDB could not hold it."""
    if isinstance(value, int):
        return value if -_SAFE < value < _SAFE else _canonical_decimal(Decimal(value))
    if isinstance(value, float):
        value = Decimal(repr(value))
    return _canonical_decimal(value)


def _canonical_decimal(value: Decimal) -> Number:
    if not value.is_finite():
        raise InvalidRequest(f"{value} is not a number that can be stored")
    digits, exponent = significant(value)
    if not digits:
        return 0
    adjusted = exponent + len(digits) - 1
    if len(digits) > MAX_DIGITS:
        raise InvalidRequest(f"a number has more than {MAX_DIGITS} significant digits")
    if adjusted > MAX_EXPONENT or adjusted < MIN_EXPONENT:
        raise InvalidRequest("a number is outside 1E-130 to 9.9E+125")
    if exponent >= 0:
        return int(value)
    return Decimal((value.as_tuple().sign, tuple(map(int, digits)), exponent))


def significant(value: Number) -> tuple[str, int]:
    """The digits without leading or trailing zeros, and the power of ten they are scaled by."""
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    return stripped, exponent + len(text) - len(stripped)


def add(left: Number, right: Number) -> Number:
    """Exact sum; InvalidRequest when it needs more digits than DynamoDB keeps."""
    if isinstance(left, int) and isinstance(right, int):
        return canonical(left + right)
    # Exact: scale both to integers, because Decimal's context would round.
    exponent = min(_exponent(left), _exponent(right))
    total = _scaled(left, exponent) + _scaled(right, exponent)
    sign = 1 if total < 0 else 0
    return _canonical_decimal(Decimal((sign, tuple(map(int, str(abs(total)))), exponent)))


def negate(value: Number) -> Number:
    """Exact: the minus sign would round a Decimal to its context."""
    return value.copy_negate() if isinstance(value, Decimal) else -value


def _exponent(value: Number) -> int:
    exponent = Decimal(value).as_tuple().exponent
    assert isinstance(exponent, int)
    return min(exponent, 0)


def _scaled(value: Number, exponent: int) -> int:
    if isinstance(value, int):
        return value * int("1" + "0" * -exponent)
    sign, digits, own = value.as_tuple()
    assert isinstance(own, int)
    whole = int("".join(map(str, digits)) + "0" * (own - exponent))
    return -whole if sign else whole


def to_text(value: Number) -> str:
    """The number as DynamoDB's wire format writes it."""
    return str(value) if isinstance(value, int) else f"{value:E}"


def from_text(text: str) -> Number:
    """Read a number from DynamoDB's wire format."""
    try:
        return int(text)
    except ValueError:
        return canonical(Decimal(text))


def order_key(value: Number) -> bytes:
    """Bytes that sort as the numbers do.

    Sign, then exponent, then digits; a negative number has everything after the sign
    complemented and a terminator, so that the larger magnitude sorts first.
    """
    digits, exponent = significant(value)
    if not digits:
        return b"\x80"
    magnitude = (exponent + len(digits) + 1000).to_bytes(2, "big") + digits.encode()
    if value > 0:
        return b"\xc0" + magnitude
    return b"\x40" + bytes(255 - byte for byte in magnitude) + b"\xff"
