"""All pictures of a profile, and one page with an overview.

``cal/linear.jpg``, ``cal/attention.jpg``, ``cal/memory_bound.jpg``,
``comm/<op>_intra_<i>_inter_<j>.jpg``, ``overview.jpg``.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from profdb.cases import Family
from profdb.cost_model import ProfileCostModel
from profdb.sample import ProfileDatabase
from profiler.pictures.collective_plots import Series, all_series, draw_series, worth_drawing
from profiler.pictures.compute_plots import (
    causal_rates,
    draw_attention,
    draw_kernel_rates,
    draw_linear,
    draw_linear_rates,
    draw_memory_bound,
    dtypes_of,
    kernels_of,
)
from profiler.pictures.plot_style import (
    COLOURS,
    MARKERS,
    byte_label,
    count_label,
    footer,
    legend_above,
    new_figure,
    powers_axis,
    save_figure,
    time_label,
    usable,
)
from spec.origin import ORIGIN_NAMES, Origin


def draw_profile(profile: ProfileDatabase, folder: Path) -> list[Path]:
    """Returns the files of all pictures of the profile, drawn into ``folder``.

    The profile needs valid fits (profdb.fitting.with_fits), else fitting happens here.
    """
    cost_model = ProfileCostModel(profile)
    paths = [
        draw_linear(profile, folder / "cal" / "linear.jpg"),
        draw_attention(profile, folder / "cal" / "attention.jpg"),
        draw_memory_bound(profile, folder / "cal" / "memory_bound.jpg"),
    ]
    series = worth_drawing(all_series(profile))
    paths += [draw_series(profile, cost_model, one, folder / "comm") for one in series]
    paths.append(draw_overview(profile, series, folder / "overview.jpg"))
    return [path for path in paths if path is not None]


def draw_overview(profile: ProfileDatabase, series: list[Series], path: Path) -> Path:
    """Returns the path of six panels: machine, products, attention, kernels, collectives by bandwidth and by time."""
    figure, panels = new_figure(3, rows=2, width=5.6, height=4.2)
    draw_facts(panels[0], profile)
    linear = usable(profile, Family.GEMM)
    if linear is None:
        say_absent(panels[1], "no matrix products")
    else:
        dtype = dtypes_of(linear)[0]
        draw_linear_rates(panels[1], linear, dtype)
        panels[1].set_title(f"matrix products, {dtype}")
    draw_attention_overview(panels[2], profile)
    kernels = usable(profile, Family.MEMORY_BOUND)
    if kernels is None:
        say_absent(panels[3], "no memory-bound kernels")
    else:
        draw_kernel_rates(panels[3], kernels, "forward")
        panels[3].set_title("memory-bound kernels, forward")
    draw_collectives_overview(panels[4], panels[5], series)
    figure.suptitle(f"Profile of {profile.machine.gpu}", fontweight="bold")
    origins = {Origin(code) for table in profile.tables.values() for code in np.unique(table.origin).tolist()}
    return save_figure(figure, path, footer(profile.machine, origins))


def say_absent(axes: Axes, text: str) -> None:
    """Makes a panel an empty one that says why."""
    axes.axis("off")
    axes.text(0.5, 0.5, f"{text} in this profile", ha="center", va="center", color="#777777")


def draw_facts(axes: Axes, profile: ProfileDatabase) -> None:
    """Writes machine facts and the number of samples of each family."""
    machine = profile.machine
    lines = [
        f"{machine.gpu}, {machine.memory_bytes / 2**30:.1f} GiB",
        f"{machine.nodes} node(s) x {machine.gpus_per_node}"
        + (f", cluster {machine.cluster}" if machine.cluster else ""),
        f"torch {machine.torch or '-'}, NCCL {machine.nccl or '-'}, driver {machine.driver or '-'}",
        *(f"best {name}: {flops / 1e12:.4g} TFLOP/s" for name, flops in sorted(machine.best_flops.items())),
        "",
        f"{'samples':<14}{'all':>6}{'ok':>6}  origin",
    ]
    for family, table in profile.tables.items():
        origins = ", ".join(ORIGIN_NAMES[code] for code in np.unique(table.origin).tolist())
        lines.append(f"{family.value:<14}{table.size:>6}{int((table.status == 0).sum()):>6}  {origins}")
    axes.axis("off")
    axes.text(0.0, 1.0, "\n".join(lines), va="top", family="monospace", fontsize=9)


def draw_attention_overview(axes: Axes, profile: ProfileDatabase) -> None:
    """Draws the median rate over length, a line for each kernel and direction."""
    table = usable(profile, Family.ATTENTION)
    if table is None:
        say_absent(axes, "no attention")
        return
    number = 0
    kernels = kernels_of(table)
    # Unfused attention only if nothing else was measured: its rates are far below the others.
    for kernel in [name for name in kernels if name != "core"] or kernels:
        for direction in ("forward", "backward"):
            part, rate = causal_rates(table, kernel, direction)
            if not part.size:
                continue
            lengths = part.numbers["q_len"]
            places = np.unique(lengths)
            middle = [float(np.median(rate[lengths == place])) for place in places]
            axes.plot(places, middle, marker=MARKERS[number], color=COLOURS[number], label=f"{kernel}, {direction}")
            number += 1
    powers_axis(axes, "x", "tokens of the sequence", count_label)
    axes.set_ylabel("TFLOP/s, median over head shapes")
    axes.set_title("causal attention")
    legend_above(axes)


def draw_collectives_overview(bandwidth: Axes, latency: Axes, series: list[Series]) -> None:
    """Draws every operation over its largest measured group."""
    if not series:
        say_absent(bandwidth, "no collectives")
        say_absent(latency, "no collectives")
        return
    # Of each operation the group with the most ranks.
    widest: dict[str, Series] = {}
    for one in series:
        largest = widest.get(one.collective.value)
        if largest is None or one.intra * one.inter > largest.intra * largest.inter:
            widest[one.collective.value] = one
    for number, one in enumerate(widest.values()):
        style: dict[str, Any] = {"marker": MARKERS[number], "color": COLOURS[number], "markersize": 4, "linewidth": 1.0}
        label = f"{one.collective.value} {one.intra} x {one.inter}"
        rate = one.size_bytes / 1e9 * one.busbw_factor / one.median_s
        bandwidth.plot(one.size_bytes, rate, label=label, **style)
        latency.plot(one.size_bytes, one.median_s, label=label, **style)
    for axes in (bandwidth, latency):
        powers_axis(axes, "x", "size of the whole array on one rank", byte_label)
    bandwidth.set_ylabel("busbw, GB/s")
    legend_above(bandwidth, columns=2, fontsize=7.0)
    bandwidth.set_title("collectives over the largest group drawn (ranks x domains)")
    powers_axis(latency, "y", "time of one call", time_label, base=10)
    legend_above(latency, columns=2, fontsize=7.0)
    latency.set_title("the same, time")
