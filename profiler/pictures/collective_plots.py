"""Pictures of collectives: bandwidth and latency over size for one operation and one split."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from profdb.cases import Family
from profdb.cost_model import ProfileCostModel
from profdb.queries import CollectiveQuery, P2PQuery
from profdb.sample import ProfileDatabase
from profdb.store.columns import SampleTable
from profiler.pictures.plot_style import (
    COLOURS,
    byte_label,
    footer,
    legend_above,
    new_figure,
    powers_axis,
    save_figure,
    time_label,
    usable,
)
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective, busbw_factor
from spec.origin import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Samples of one operation and group shape: sizes with median and quartiles of the trials (seconds)."""

    collective: Collective
    intra: int
    inter: int
    siblings: int
    size_bytes: IntArray
    median_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    origins: tuple[Origin, ...]

    @property
    def name(self) -> str:
        """Returns the name of the picture's file."""
        return f"{self.collective.value}_intra_{self.intra}_inter_{self.inter}"

    @property
    def busbw_factor(self) -> float:
        """Returns busbw / algbw (spec.collectives)."""
        return float(busbw_factor(self.collective, self.intra * self.inter))


def all_series(profile: ProfileDatabase) -> list[Series]:
    """Returns every operation and group shape in the profile, in order of name."""
    table = usable(profile, Family.COLLECTIVE)
    if table is None:
        return []
    labels = table.labels["collective"].labels()
    keys = sorted(
        set(
            zip(
                labels,
                table.numbers["intra"].tolist(),
                table.numbers["inter"].tolist(),
                table.numbers["siblings"].tolist(),
                strict=True,
            )
        )
    )
    return [series_of(table, *key) for key in keys]


def worth_drawing(series: list[Series]) -> list[Series]:
    """Returns one series for each name, the one with the most siblings, as in training."""
    # Later entries replace earlier ones: of each name the one with the most siblings stays.
    by_name = {one.name: one for one in sorted(series, key=lambda one: one.siblings)}
    return [by_name[name] for name in sorted(by_name)]


def series_of(table: SampleTable, word: str, intra: int, inter: int, siblings: int) -> Series:
    """Returns the samples of one key, by size."""
    numbers = table.numbers
    rows = np.flatnonzero(
        table.labels["collective"].equals(word)
        & (numbers["intra"] == intra)
        & (numbers["inter"] == inter)
        & (numbers["siblings"] == siblings)
    )
    rows = rows[np.argsort(numbers["size_bytes"][rows], kind="stable")]
    offsets = table.trial_offsets
    # Rows x 3: the quartiles of each sample's trials.
    quartiles = np.asarray(
        [np.percentile(table.trials_s[offsets[row] : offsets[row + 1]], [25.0, 50.0, 75.0]) for row in rows.tolist()]
    )
    return Series(
        collective=Collective(word),
        intra=intra,
        inter=inter,
        siblings=siblings,
        size_bytes=numbers["size_bytes"][rows],
        low_s=quartiles[:, 0],
        median_s=quartiles[:, 1],
        high_s=quartiles[:, 2],
        origins=tuple(Origin(code) for code in np.unique(table.origin[rows]).tolist()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCurve:
    """A fit at ``size_bytes``, and its relative error as a factor (``band``)."""

    size_bytes: IntArray
    seconds: FloatArray
    band: FloatArray


def fitted_curve(cost_model: ProfileCostModel, series: Series, size_bytes: IntArray) -> FittedCurve:
    """Returns the profile's own curve through the series."""
    place: dict[str, Any] = {
        "size_bytes": size_bytes,
        "intra": series.intra,
        "inter": series.inter,
        "siblings": series.siblings,
    }
    if series.collective is Collective.P2P:
        fit = cost_model.p2p_s(P2PQuery(**place))
    else:
        fit = cost_model.collective_s(CollectiveQuery(collective=series.collective, **place))
    return FittedCurve(size_bytes=size_bytes, seconds=fit.seconds, band=1.0 + fit.relative_std)


def draw_fit(
    axes: Axes, series: Series, curve: FittedCurve, value: Callable[[FloatArray, IntArray], FloatArray], label: str
) -> None:
    """Draws the middle half of each sample's trials and the fitted curve in its band of error; the panel shows
    ``value`` of seconds and sizes."""
    # The colour of the medians, which the caller has drawn first.
    colour = axes.lines[0].get_color()
    ends = (value(s, series.size_bytes) for s in (series.high_s, series.low_s))
    axes.vlines(series.size_bytes, *ends, color=colour, alpha=0.6, label="middle half of the trials")
    values = value(curve.seconds, curve.size_bytes)
    axes.plot(curve.size_bytes, values, "-", color=colour, linewidth=1.2, label=label)
    low, high = values / curve.band, values * curve.band
    axes.fill_between(curve.size_bytes, low, high, color=colour, alpha=0.12, label="fit error")
    powers_axis(axes, "x", "size of the whole array on one rank", byte_label)


def draw_bandwidth(axes: Axes, series: Series, curve: FittedCurve) -> None:
    """Draws busbw and algbw over size."""
    sizes, factor = series.size_bytes, series.busbw_factor

    def busbw(seconds: FloatArray, size_bytes: IntArray) -> FloatArray:
        return size_bytes / 1e9 * factor / seconds

    axes.plot(sizes, busbw(series.median_s, sizes), "o", color=COLOURS[0], label="busbw, median")
    # Otherwise the two are equal.
    if factor != 1.0:
        algbw = sizes / 1e9 / series.median_s
        axes.plot(sizes, algbw, "s", color=COLOURS[1], markersize=4, label="algbw, median")
    draw_fit(axes, series, curve, busbw, "fit (busbw)")
    axes.set_ylabel("bandwidth, GB/s")
    axes.set_title("bandwidth")
    legend_above(axes)


def draw_latency(axes: Axes, series: Series, curve: FittedCurve) -> None:
    """Draws time over size."""
    axes.plot(series.size_bytes, series.median_s, "o", color=COLOURS[2], label="median")
    draw_fit(axes, series, curve, lambda seconds, _: seconds, "fit")
    powers_axis(axes, "y", "time of one call", time_label, base=10)
    axes.set_title("time")
    legend_above(axes)


def draw_series(profile: ProfileDatabase, cost_model: ProfileCostModel, series: Series, folder: Path) -> Path:
    """Returns the path of ``<op>_intra_<i>_inter_<j>.jpg``: bandwidth and latency with samples, fit and error."""
    figure, (bandwidth, latency) = new_figure(2)
    smallest, largest = float(series.size_bytes.min()), float(series.size_bytes.max())
    # 200 whole sizes, evenly spaced on the logarithmic axis.
    sizes = np.unique(np.geomspace(smallest, max(largest, smallest + 1), 200).astype(np.int64))
    curve = fitted_curve(cost_model, series, sizes)
    draw_bandwidth(bandwidth, series, curve)
    draw_latency(latency, series, curve)
    figure.suptitle(
        f"{series.collective.value}: {series.intra} ranks in each of {series.inter} domain(s), "
        f"{series.siblings} such group(s) per domain at once",
        fontweight="bold",
    )
    return save_figure(figure, folder / f"{series.name}.jpg", footer(profile.machine, series.origins))
