"""Kinds of values, and the numbers that are typed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.program.kinds import (
    Flag,
    Kind,
    Number,
    Several,
    Text,
    Whole,
    Word,
    decimal_number,
    plain_number,
    whole_number,
)

WORDS = ("norm", "rotary", "softmax")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Whole(), "4_194_304", 4194304),
        (Whole(least=0), "0", 0),
        (Number(least=0, most=1), "0.25", 0.25),
        (Number(least=0, most=1), "1", 1.0),
        (Flag(), "True", True),
        (Flag(), "false", False),
        (Word(("ring", "all_to_all")), "ring", "ring"),
        (Word(("core_attn", "")), "none", ""),
        (Word(("none", "full")), "none", "none"),
        (Several(Word(WORDS)), "softmax+norm", ("norm", "softmax")),
        (Several(Word(WORDS)), "none", ()),
        (Several(Word(WORDS), unordered=True), "softmax+norm", frozenset({"norm", "softmax"})),
        (Several(Whole(least=0, most=3)), "0+3+0", (0, 3)),
        (Text(means="stages"), "Ett|tL", "Ett|tL"),
    ],
)
def test_text_is_read(kind: Kind, text: str, value: object) -> None:
    assert kind.read(text) == value
    assert kind.accept(value) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Whole(), "0"),
        (Whole(most=3), "4"),
        (Number(least=0, most=1), "1.1"),
        (Flag(), "1"),
        (Word(("ring",)), "none"),
        (Several(Word(WORDS)), "norm+"),
        (Several(Word(WORDS)), "norm+gelu"),
        (Several(Whole(least=0, most=3)), "0+4"),
        (Text(means="stages"), " "),
    ],
)
def test_other_text_is_refused(kind: Kind, text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        kind.read(text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Whole(), True),
        (Whole(), 2.0),
        (Whole(), "2"),
        (Number(least=0, most=1), True),
        (Number(least=0, most=1), float("nan")),
        (Number(least=0, most=1), "0.5"),
        (Flag(), "true"),
        (Flag(), 1),
        (Word(("ring",)), ["ring"]),
        (Several(Word(WORDS)), [["norm"]]),
        (Several(Word(WORDS)), 3),
        (Text(means="stages"), 3),
    ],
)
def test_a_files_value_of_another_type_is_refused(kind: Kind, value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        kind.accept(value)


LONG = "9" * 5000


@pytest.mark.parametrize(("text", "value"), [("4_194_304", 4194304), ("007", 7)])
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


@given(st.text("0123456789+-._eEinfatyx \0\u0660\uff11\u2212", max_size=12))
def test_a_plain_number_is_finite_or_none(text: str) -> None:
    value = plain_number(text)
    assert math.isnan(value) or value == float(text)
