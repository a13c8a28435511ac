"""What each kind of setting reads from a command line and accepts from a file."""

import pytest

from spec.program.kinds import Flag, Kind, Number, Several, Text, Whole, Word

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
        (Whole(), "-1"),
        (Whole(), "1.5"),
        (Whole(), "64,128"),
        (Whole(), "9" * 21),
        (Whole(), "\u0664"),
        (Whole(most=3), "4"),
        (Number(least=0, most=1), "nan"),
        (Number(least=0, most=1), "inf"),
        (Number(least=0, most=1), "1.1"),
        (Number(least=0, most=1), "all"),
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
