"""Pictures take the page's colours, and share a page."""

import re
import xml.etree.ElementTree as ET

from matplotlib.figure import Figure

from solver.page.content import Picture
from solver.page.themed_svg import NARROW, WIDE, colour, is_narrow, legend, patches, picture, plain_axes


def drawn(name: str) -> Picture:
    def draw(figure: Figure) -> None:
        axes = plain_axes(figure)
        axes.barh(0, 3.0, color=colour("c1"))
        axes.plot([0, 1], [0, 1], "o", color=colour("c2"))
        axes.text(0, 0, "narrow" if is_narrow(figure) else "wide")
        legend(figure, patches({"<one>": "c1"}))

    return picture(name, draw, heights=(200, 300), told=('says "it"', "caption"))


def test_every_colour_is_the_pages() -> None:
    for svg in (drawn("a").wide, drawn("a").narrow):
        assert not re.search(r"#[0-9a-f]{6}", svg)
        assert {"var(--ink)", "var(--grid)", "var(--c1)", "var(--c2)"} <= set(
            re.findall(r"var\(--\w+\)", svg)
        )


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
