"""Pictures take the page's colours, and share a page."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from matplotlib.figure import Figure

from solver.report.sections import Picture
from solver.report.themed_svg import (
    LETTER,
    NARROW,
    POINTS,
    WIDE,
    colour,
    is_narrow,
    legend,
    patches,
    picture,
    plain_axes,
    shorten,
)


def drawn(name: str) -> Picture:
    def draw(figure: Figure) -> None:
        axes = plain_axes(figure)
        axes.barh(0, 3.0, color=colour("c1"))
        axes.plot([0, 1], [0, 1], "o", color=colour("c2"))
        axes.text(0, 0, "narrow" if is_narrow(figure) else "wide")
        legend(figure, patches({"<one>": "c1"}))

    return picture(name, draw, heights=(200, 300), words=('says "it"', "caption"))


def test_every_colour_is_the_pages() -> None:
    for svg in (drawn("a").wide, drawn("a").narrow):
        assert not re.search(r"#[0-9a-f]{6}", svg)
        assert {"var(--ink)", "var(--grid)", "var(--c1)", "var(--c2)"} <= set(re.findall(r"var\(--\w+\)", svg))


def test_each_width_has_its_picture_and_both_say_what_they_show() -> None:
    found = drawn("a")
    for svg, width, height, word in ((found.wide, WIDE, 200, "wide"), (found.narrow, NARROW, 300, "narrow")):
        root = ET.fromstring(svg)
        assert (root.get("role"), root.get("aria-label")) == ("img", 'says "it"')
        assert root.get("viewBox") == f"0 0 {width} {height}"
        assert word in "".join(root.itertext())
        assert "<one>" in "".join(root.itertext())


def test_names_are_a_pictures_own_and_what_refers_to_them_finds_them() -> None:
    pictures = [svg for name in ("a", "b") for svg in (drawn(name).wide, drawn(name).narrow)]
    names = [re.findall(r'\bid="([^"]+)"', svg) for svg in pictures]
    flat = [name for of_one in names for name in of_one]
    assert len(flat) == len(set(flat))
    for svg, own in zip(pictures, names, strict=True):
        asked = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg))
        assert asked
        assert {name for pair in asked for name in pair if name} <= set(own)


def wide_and_narrow() -> list[Figure]:
    return [Figure(figsize=(width / POINTS, 200 / POINTS), layout="constrained") for width in (WIDE, NARROW)]


@pytest.mark.filterwarnings("error")
def test_a_long_plan_leaves_its_bar_room() -> None:
    """All of the text would take the axes' width, and its layout warns."""
    words = " ".join(f"recompute-{part}" for part in range(20))
    for figure in wide_and_narrow():
        axes = plain_axes(figure, grid="x")
        axes.barh(0, 3.0)
        axes.text(0, -0.34, shorten(figure, words))
        figure.draw_without_rendering()
        left, right = (axes.transData.transform((at, 0))[0] for at in axes.get_xlim())
        assert right - left > 0.75 * figure.get_figwidth() * figure.dpi
        assert shorten(figure, words).endswith("…")
        assert shorten(figure, "mtp dp8") == "mtp dp8"


@pytest.mark.parametrize("length", [9_400.0, 18_200.0, 20_200.0, 43_000.0, 97_000.0])
def test_numbers_of_milliseconds_stand_apart(length: float) -> None:
    """By two letters at least, of every step that takes seconds."""
    seen: list[int] = []

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, grid="x")
        axes.barh(0, length)
        axes.set(yticks=[])
        figure.draw_without_rendering()
        boxes = [one.get_window_extent() for one in axes.get_xticklabels() if one.get_text()]
        assert all(one.x1 + 2 * LETTER < other.x0 for one, other in pairwise(boxes))
        seen.append(len(boxes))

    picture("ticks", draw, heights=(200, 200), words=("", ""))
    assert min(seen) >= 2
