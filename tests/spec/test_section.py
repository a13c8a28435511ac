"""The one section reader: every wrong value and every key that nobody asked for is one clear error."""

from collections.abc import Callable

import pytest

from spec.errors import ConfigError
from spec.section import Section

VALUES: dict[str, object] = {
    "count": 3,
    "share": 0.5,
    "below": -7,
    "endless": float("inf"),
    "undefined": float("nan"),
    "long": 10**400,
    "truth": True,
    "word": "x",
    "blank": "  ",
    "mixed": ["x", 1],
    "runs": [{"name": "a"}, {"name": "b"}],
    "twins": [{"name": "a"}, {"name": "a"}],
    "numbers": [1, 2],
}


def section() -> Section:
    return Section(where="file", name="top", values=VALUES)


def test_values_come_with_their_types() -> None:
    read = section()
    assert (read.integer("count"), read.number("share"), read.flag("truth"), read.text("word")) == (3, 0.5, True, "x")
    assert (read.integer("absent", 7), read.flag("absent", False), read.texts("absent")) == (7, False, ())
    measured = read.measure("count", 1, 10)
    assert (measured, type(measured)) == (3.0, float)
    assert [one.name for one in read.sections("runs", maximum=2)] == ["top.runs[0]", "top.runs[1]"]
    assert [one.name for one in read.sections("runs", named_by="name", maximum=2)] == ["top.runs.a", "top.runs.b"]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda s: s.integer("absent"), "top.absent = None: required: a whole number of at least 1"),
        (lambda s: s.integer("truth"), "top.truth = True: a whole number"),
        (lambda s: s.integer("count", maximum=2), "top.count = 3: a whole number from 1 to 2"),
        (lambda s: s.number("endless"), "top.endless = inf: a number above 0 and up to 1e+12"),
        (lambda s: s.number("undefined"), "top.undefined = nan: a number above 0 and up to 1e+12"),
        (lambda s: s.number("long"), "a number above 0 and up to 1e+12"),
        (lambda s: s.number("count", maximum=2.0), "top.count = 3: a number above 0 and up to 2"),
        (lambda s: s.number("below", positive=False), "top.below = -7: a number from 0 to 1e+12"),
        (lambda s: s.number("share", 1.0, maximum=0.25), "top.share = 0.5: a number above 0 and up to 0.25"),
        (lambda s: s.number("truth"), "top.truth = True: a number above 0 and up to 1e+12"),
        (lambda s: s.measure("share", 1, 10, "s"), "top.share = 0.5: a number from 1 to 10 s"),
        (lambda s: s.measure("absent", 1, 10), "top.absent = None: required: a number from 1 to 10"),
        (lambda s: s.flag("absent"), "top.absent = None: required: True or False"),
        (lambda s: s.flag("count"), "top.count = 3: True or False"),
        (lambda s: s.text("blank"), "top.blank = '  ': text that is not empty"),
        (lambda s: s.text("count"), "top.count = 3: text that is not empty"),
        (lambda s: s.texts("mixed"), "top.mixed = '<list of 2>': a list of texts"),
        (lambda s: s.choice("word", ("y", "z")), "top.word = 'x': one of y, z"),
        (lambda s: s.section("word"), "top.word = 'x': a table"),
        (lambda s: s.sections("runs", maximum=1), "required: from 1 to 1 tables [[top.runs]]"),
        (lambda s: s.sections("numbers", maximum=2), "required: from 1 to 2 tables [[top.numbers]]"),
        (lambda s: s.sections("twins", named_by="name", maximum=2), "a different name for each table"),
        (lambda s: s.sections("runs", named_by="title", maximum=2), "top.runs[0].title = None: required: text"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused(ask: Callable[[Section], object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ask(section())
    assert says in str(refused.value)
    assert str(refused.value).startswith("file: ")


def test_close_refuses_what_nobody_read_and_lists_what_was() -> None:
    read = section()
    read.integer("count")
    with pytest.raises(ConfigError, match=r"top.share = 0.5: unknown key, .*; known: count$"):
        read.close()
    read.close(harmless=VALUES)
