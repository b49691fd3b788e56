"""Numbers keep their value and their order."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import InvalidRequest
from waystation.store import numbers

digits = st.integers(-(10**38) + 1, 10**38 - 1)
storable = st.builds(
    lambda n, e: numbers.canonical(Decimal(n).scaleb(e)) if n else 0,
    st.integers(-(10**20), 10**20),
    st.integers(-100, 100),
)


@given(storable, storable)
def test_key_bytes_sort_as_the_numbers_do(left: numbers.Number, right: numbers.Number) -> None:
    assert (numbers.order_key(left) < numbers.order_key(right)) == (left < right)
    assert (numbers.order_key(left) == numbers.order_key(right)) == (left == right)


@given(storable)
def test_the_wire_keeps_every_digit(number: numbers.Number) -> None:
    found = numbers.from_text(numbers.to_text(number))
    assert found == number
    assert type(found) is type(number)


@given(digits, digits)
def test_sums_are_exact_or_refused(left: int, right: int) -> None:
    try:
        assert numbers.add(left, right) == left + right
    except InvalidRequest:
        assert len(str(abs(left + right)).strip("0")) > 38


@given(storable, storable)
def test_sums_of_fractions_are_exact_or_refused(
    left: numbers.Number, right: numbers.Number
) -> None:
    from fractions import Fraction

    try:
        total = numbers.add(left, right)
    except InvalidRequest:
        return
    assert Fraction(total) == Fraction(left) + Fraction(right)


def test_forms_of_one_number_are_one() -> None:
    forms: list[int | float | Decimal] = [1, 1.0, Decimal("1.00"), Decimal("1E0"), Decimal("10E-1")]
    assert {repr(numbers.canonical(form)) for form in forms} == {"1"}
