"""Pictures that take their colours from the page they stand in: matplotlib's SVG, with variables for colours.

A picture is drawn with stand-in colours, one for each of ROLES, which become ``var(--role)``: the page's
style sheet says what each is, in the light and in the dark.
"""

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from solver.report.sections import Picture

WIDE, NARROW = 920, 380
"""Pixels across: of a picture on a desk's screen, and of one on a telephone's."""

POINTS = 72.0
"""Matplotlib's SVG has so many units an inch; a unit is a pixel of the page."""

LETTER = 6.6
"""Pixels of a letter of a legend or above a bar, about."""

TICK, STEPS = 90, (1, 2, 2.5, 5, 10)
"""Pixels from tick to tick at least, beside numbers of six letters, and what lies between them."""

ROLES = ("ink", "muted", "grid", "surface", *(f"c{at}" for at in range(1, 15)))
"""Text, text beside it, lines, ground, and what is distinguished by colour."""

STAND_INS = {role: f"#01{at:02x}fe" for at, role in enumerate(ROLES)}
NAMESPACES = {"": "http://www.w3.org/2000/svg", "xlink": "http://www.w3.org/1999/xlink"}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "parallel-strategy-solver",
    "font.size": 12.0,
    "axes.edgecolor": STAND_INS["muted"],
    "axes.labelcolor": STAND_INS["ink"],
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": STAND_INS["grid"],
    "grid.linewidth": 0.8,
    "text.color": STAND_INS["ink"],
    "xtick.color": STAND_INS["muted"],
    "ytick.color": STAND_INS["muted"],
    "xtick.labelcolor": STAND_INS["ink"],
    "ytick.labelcolor": STAND_INS["ink"],
    "legend.frameon": False,
    "legend.fontsize": 12.0,
}


def colour(role: str) -> str:
    """Returns what stands for a role of ROLES while a picture is drawn."""
    return STAND_INS[role]


def picture(name: str, draw: Callable[[Figure], None], *, heights: tuple[int, int], words: tuple[str, str]) -> Picture:
    """Returns the picture of ``draw`` on a wide and on a narrow figure, ``heights`` pixels high; ``words`` are alternative
    text and caption. A figure knows by its width which it is."""
    alt, caption = words
    wide, narrow = (
        _svg(f"{name}-{kind}", draw, (width, height), alt)
        for kind, width, height in zip(("wide", "narrow"), (WIDE, NARROW), heights, strict=True)
    )
    return Picture(wide=wide, narrow=narrow, alt=alt, caption=caption)


def is_narrow(figure: Figure) -> bool:
    """Returns whether a figure is for a narrow page."""
    return bool(figure.get_figwidth() * POINTS < (WIDE + NARROW) / 2)


def plain_axes(figure: Figure, *, grid: str = "both") -> Axes:
    """Returns the one panel of a figure, with grid lines of one axis ("x", "y") or of both."""
    axes = figure.add_subplot()
    axes.tick_params(length=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    numbers_across(figure, axes)
    if grid != "both":
        axes.grid(visible=False, axis="y" if grid == "x" else "x")
    return axes


def numbers_across(figure: Figure, axes: Axes) -> None:
    """Sets numbers below a panel that is as wide as the figure, no closer than they can be read."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.xaxis.set_major_locator(MaxNLocator(int(figure.get_figwidth() * POINTS / TICK), steps=STEPS))


def shorten(figure: Figure, words: str) -> str:
    """Returns as much of ``words`` as a line of the figure holds; a layout makes room for all of a text, and of a plan with many
    settings would leave its bars none."""
    room = int(figure.get_figwidth() * POINTS / LETTER) - 4
    return words if len(words) <= room else f"{words[: room - 1]}…"


def patches(roles: Mapping[str, str]) -> list[Patch]:
    """Returns what a legend shows of each word's role."""
    return [Patch(facecolor=colour(role), label=word) for word, role in roles.items()]


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Adds a legend above the panels, in as many columns as there is room for."""
    longest = max((len(str(one.get_label())) for one in handles), default=1)
    room = int(figure.get_figwidth() * POINTS / (LETTER * longest + 40))
    columns = min(max(room, 1), 5)
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, handlelength=1.2, columnspacing=1.2)


def _svg(name: str, draw: Callable[[Figure], None], size: tuple[int, int], alt: str) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(size[0] / POINTS, size[1] / POINTS), layout="constrained")
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _inlined(text.getvalue(), name, alt)


def _inlined(text: str, name: str, alt: str) -> str:
    """The ``svg`` element alone: colours are the page's, names are its own on a page of several, a reader of the
    screen hears ``alt``."""
    for prefix, address in NAMESPACES.items():
        ET.register_namespace(prefix, address)
    root = ET.fromstring(text)
    svg = f"{{{NAMESPACES['']}}}"
    for metadata in root.findall(f"{svg}metadata"):
        root.remove(metadata)
    for one in root.iter():
        for key, value in one.attrib.items():
            if key == "id":
                one.set(key, f"{name}-{value}")
            else:
                one.set(key, re.sub(r"(url\(#|^#)(?=[A-Za-z])", rf"\g<1>{name}-", value))
    del root.attrib["width"], root.attrib["height"]
    root.set("role", "img")
    root.set("aria-label", alt)
    svg_text = ET.tostring(root, encoding="unicode")
    for role, stand_in in STAND_INS.items():
        svg_text = svg_text.replace(stand_in, f"var(--{role})")
    return svg_text
