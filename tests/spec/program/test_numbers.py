"""Numbers as people type them: what is taken, what is refused and in which words."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.program.kinds import decimal_number, plain_number, whole_number

LONG = "9" * 5000


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("64", 64), ("4_194_304", 4194304), ("007", 7)])
def test_whole_numbers_are_taken(text: str, value: int) -> None:
    assert whole_number(text, minimum=0, maximum=2**40) == value


@pytest.mark.parametrize(
    "text", ["64,128", "", "-1", "+1", "1.0", "1e3", " 1", "1_", "_1", "1__0", "٣", "0x10", LONG, "1 000"]
)
def test_anything_else_is_refused_in_a_short_line(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number") as caught:
        whole_number(text, minimum=0, maximum=2**40)
    assert len(str(caught.value)) < 120


def test_a_comma_is_named() -> None:
    with pytest.raises(ValueError, match=r"'64,128' is not a whole number \(no commas\)"):
        whole_number("64,128", minimum=1, maximum=2**24)


@given(st.integers(-5, 2**70), st.integers(0, 2**62), st.integers(0, 2**62))
def test_nothing_leaves_the_bounds(value: int, one: int, other: int) -> None:
    low, high = sorted((one, other))
    if low <= value <= high:
        assert whole_number(str(value), minimum=low, maximum=high) == value
    else:
        with pytest.raises(ValueError, match="is not a whole number"):
            whole_number(str(value), minimum=low, maximum=high)


@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), (".5", 0.5), ("1e-3", 1e-3), ("10", 10.0)])
def test_decimal_numbers_are_taken(text: str, value: float) -> None:
    assert decimal_number(text, minimum=1e-3, maximum=10.0) == value


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", "٣", "1e999", LONG, "", "0.0009", "11", "1e"])
def test_decimals_that_are_none_or_outside_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number from 0\.001 to 10"):
        decimal_number(text, minimum=1e-3, maximum=10.0)


@given(st.text(max_size=12))
def test_a_plain_number_is_finite_or_none(text: str) -> None:
    value = plain_number(text)
    assert math.isnan(value) or value == float(text)
