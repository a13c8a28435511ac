"""Style of all pictures of a profile (axes, units, footers, files), and selection of their samples."""

from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from profdb.cases import Family
from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.columns import STATUSES, SampleTable
from spec.arrays import ints
from spec.files import atomic_path
from spec.origin import ORIGIN_NAMES, Origin

DPI = 130
COLOURS: tuple[str, ...] = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Distinguishable for colour-blind readers: Okabe and Ito, "Color Universal Design", 2008; and one brown."""
MARKERS = "osD^vP*X"

LEGEND_LINE = 1.6
"""Height of a legend's line over its font size in matplotlib (spacing 0.5, and the overhang of letters)."""

PANEL_SHARE = 0.75
"""Share of a panel's height that title and labels leave for the curves."""

TINY = 1e-12
"""Height of an axis without curves."""

BYTE_STEPS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
RATE_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def byte_label(value: float, _: object = None) -> str:
    """Returns ``4194304`` as ``4 MiB``."""
    for step, unit in BYTE_STEPS:
        if value >= step:
            return f"{value / step:.4g} {unit}"
    return f"{value:.4g} B"


def time_label(value: float, _: object = None) -> str:
    """Returns ``0.00012`` as ``120 us``."""
    for step, unit in TIME_STEPS:
        if value >= step * 0.9999:
            return f"{value / step:.4g} {unit}"
    return f"{value:.2g} s"


def count_label(value: float, _: object = None) -> str:
    """Returns ``4096`` as ``4k`` and ``512`` as ``512``: tokens by powers of two."""
    return f"{value / 1024:.4g}k" if value >= 1024 else f"{value:.4g}"


def rate_label(value: float, _: object = None) -> str:
    """Returns ``3e12`` as ``3T``."""
    for step, unit in RATE_STEPS:
        if value >= step:
            return f"{value / step:.4g}{unit}"
    return f"{value:.4g}"


def powers_axis(axes: Axes, name: str, label: str, formatter: object, base: int = 2) -> None:
    """Gives a panel a logarithmic ``x`` or ``y`` axis with readable numbers."""
    axis = axes.xaxis if name == "x" else axes.yaxis
    (axes.set_xscale if name == "x" else axes.set_yscale)("log", base=base)
    axis.set_major_locator(LogLocator(base=base, numticks=7))
    axis.set_major_formatter(FuncFormatter(formatter))  # type: ignore[arg-type]
    axis.set_minor_formatter(NullFormatter())
    axis.set_label_text(label)


def legend_above(axes: Axes, *, columns: int = 1, fontsize: float = 8.0) -> None:
    """Places the legend in space of its own above the curves; a linear axis starts at zero.

    The height of the curves is that of everything drawn so far; a panel without curves stays as it is.
    """
    if not axes.has_data():
        return
    figure, grid = axes.figure, axes.get_subplotspec()
    rows = grid.get_gridspec().nrows if grid is not None else 1
    panel = PANEL_SHARE * figure.get_figheight() / rows * 72.0  # type: ignore[union-attr]
    lines = -(-len(axes.get_legend_handles_labels()[0]) // columns)
    # Share of the axis that the legend's lines take, at most half.
    share = min(0.5, (lines * LEGEND_LINE + 1.0) * fontsize / panel)
    axes.legend(fontsize=fontsize, loc="upper left", ncols=columns)
    # The curves' range becomes 1 - share of the axis: a factor on a logarithmic axis, a quotient on a linear one.
    if axes.get_yscale() == "log":
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** (share / (1.0 - share)))
    else:
        axes.set_ylim(0.0, max(float(axes.dataLim.ymax), TINY) / (1.0 - share))


def new_figure(columns: int, *, rows: int = 1, width: float = 6.4, height: float = 4.6) -> tuple[Figure, list[Axes]]:
    """Returns a figure of ``rows`` x ``columns`` panels, row by row."""
    # Files only: no display is needed.
    mpl.use("Agg")
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.grid(True, which="major", alpha=0.35, linewidth=0.7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure, list(panels.flat)


def footer(machine: MachineFacts, origins: Iterable[Origin]) -> str:
    """Returns machine, date, and the origins of the numbers."""
    kinds = sorted(set(origins))
    what = "samples " + ", ".join(ORIGIN_NAMES[kind] for kind in kinds)
    facts = [machine.gpu, f"torch {machine.torch}" if machine.torch else "", machine.date[:10], what]
    return "   ".join(fact for fact in facts if fact)


def save_figure(figure: Figure, path: Path, caption: str) -> Path:
    """Returns the path of the picture, written with its caption below and replacing an older one in one step."""
    figure.supxlabel(caption, fontsize=8, color="#555555")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=DPI)
    return path


def usable(profile: ProfileDatabase, family: Family) -> SampleTable | None:
    """Returns the family's samples that have trials; None without any."""
    if family not in profile.tables:
        return None
    table = profile.tables[family]
    rows = ints(np.flatnonzero(table.status == STATUSES.index("ok")))
    return table.take(rows) if rows.size else None
