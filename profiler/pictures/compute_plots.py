"""Pictures of matrix products, attention and memory-bound kernels."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from ops.memory_bound import bytes_moved_per_element
from profdb.cases import Family
from profdb.fits.families import BACKWARD_PRODUCTS, attended_pairs
from profdb.sample import ProfileDatabase
from profdb.store.columns import SampleTable
from profiler.pictures.plot_style import (
    COLOURS,
    MARKERS,
    count_label,
    footer,
    legend_above,
    new_figure,
    powers_axis,
    rate_label,
    save_figure,
    usable,
)
from spec.arrays import BoolArray, FloatArray, IntArray, bools
from spec.origin import Origin

LAYOUTS = {"NT": "forward (NT)", "NN": "input gradient (NN)", "TN": "weight gradient (TN)"}
MOST_LINES = 8
CROWD = 300


def label_mask(table: SampleTable, **labels: str) -> BoolArray:
    """Returns a mask of the samples with these labels."""
    return bools(np.all([table.labels[name].equals(value) for name, value in labels.items()], axis=0))


def origins_of(table: SampleTable) -> tuple[Origin, ...]:
    """Returns the origins of the samples."""
    return tuple(Origin(code) for code in np.unique(table.origin).tolist())


def gemm_flops(table: SampleTable) -> FloatArray:
    """Returns 2 m k n of every product."""
    sizes = {name: table.numbers[name].astype(np.float64) for name in ("batch", "m", "k", "n")}
    return np.asarray(2.0 * sizes["batch"] * sizes["m"] * sizes["k"] * sizes["n"])


def medians_by_octave(work: FloatArray, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the median rate in each doubling of work."""
    octave = np.round(np.log2(work))
    places = np.unique(octave)
    return 2.0**places, np.asarray([np.median(rate[octave == place]) for place in places])


def commonest(labels: list[str]) -> str:
    """Returns the word that occurs most often."""
    return max(sorted(set(labels)), key=labels.count)


def dtypes_of(table: SampleTable) -> list[str]:
    """Returns the dtypes of the products, bf16 first; GPUs before Ampere have fp16 alone."""
    return sorted(set(table.labels["dtype_in"].labels()), key=lambda name: (name != "bf16", name))


def kernels_of(table: SampleTable) -> list[str]:
    """Returns the attention kernels, fused ones first; GPUs before Ampere have core alone."""
    return [name for name in ("flash", "cudnn", "core") if table.labels["kernel"].equals(name).any()]


def draw_linear_rates(axes: Axes, table: SampleTable, dtype: str) -> None:
    """Draws TFLOP/s over work for one dtype, in one colour per layout."""
    for number, (layout, label) in enumerate(LAYOUTS.items()):
        chosen = label_mask(table, layout=layout, dtype_in=dtype)
        rows = np.flatnonzero(chosen & (table.numbers["batch"] == 1))
        if not rows.size:
            continue
        part = table.take(rows)
        work = gemm_flops(part)
        rate = work / part.medians_s() / 1e12
        # With thousands of samples only their density should show behind the medians.
        faint = 0.45 if rows.size < CROWD else 0.12
        axes.plot(work, rate, MARKERS[number], color=COLOURS[number], markersize=3, alpha=faint)
        axes.plot(
            *medians_by_octave(work, rate),
            "-",
            color=COLOURS[number],
            linewidth=2.0,
            path_effects=[withStroke(linewidth=4.0, foreground="white")],
            zorder=3,
            label=f"{label}, median",
        )
    powers_axis(axes, "x", "work of one product, FLOP (2 m k n)", rate_label, base=10)
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{dtype}: every sample, and the median of each doubling of work")
    legend_above(axes)


def draw_linear(profile: ProfileDatabase, path: Path) -> Path | None:
    """Returns the path of the picture of TFLOP/s over work, with one panel for each dtype."""
    table = usable(profile, Family.GEMM)
    if table is None:
        return None
    dtypes = dtypes_of(table)
    figure, panels = new_figure(len(dtypes))
    for axes, dtype in zip(panels, dtypes, strict=True):
        draw_linear_rates(axes, table, dtype)
    figure.suptitle("Linear layers: matrix products as launched", fontweight="bold")
    return save_figure(figure, path, footer(profile.machine, origins_of(table)))


def attention_flops(table: SampleTable, mask: str, direction: str) -> FloatArray:
    """Returns the FLOP of query-key pairs inside the mask (the count of profdb.fits.families)."""
    sizes = {name: column.astype(np.float64) for name, column in table.numbers.items()}
    pairs = attended_pairs(table.numbers, mask)
    flops = 2.0 * sizes["batch"] * sizes["heads"] * pairs * (sizes["qk_dim"] + sizes["v_dim"])
    return np.asarray(flops * (BACKWARD_PRODUCTS if direction == "backward" else 1.0))


def causal_rates(table: SampleTable, kernel: str, direction: str, **labels: str) -> tuple[SampleTable, FloatArray]:
    """Returns the causal calls of a kernel with as many queries as keys, and their TFLOP/s."""
    rows = label_mask(table, kernel=kernel, direction=direction, mask="causal", **labels)
    part = table.take(np.flatnonzero(rows & (table.numbers["q_len"] == table.numbers["kv_len"])))
    return part, attention_flops(part, "causal", direction) / part.medians_s() / 1e12


def head_shapes(table: SampleTable) -> list[tuple[int, int, int, int]]:
    """Returns the (heads, kv_heads, qk_dim, v_dim) with the most lengths, most first."""
    columns = [table.numbers[name].tolist() for name in ("heads", "kv_heads", "qk_dim", "v_dim")]
    shapes = list(zip(*columns, strict=True))
    # Lines over many lengths tell the most; ties are ordered by the shape itself.
    by_count = sorted(set(shapes), key=lambda shape: (shapes.count(shape), shape), reverse=True)
    return by_count[:MOST_LINES]


def draw_attention_rates(axes: Axes, table: SampleTable, kernel: str, direction: str) -> None:
    """Draws TFLOP/s over length for causal calls of one sequence, a line for each head shape."""
    dtype = commonest(table.labels["dtype"].labels())
    part, rate = causal_rates(table.take(np.flatnonzero(table.numbers["batch"] == 1)), kernel, direction, dtype=dtype)
    for number, shape in enumerate(head_shapes(part)):
        names = ("heads", "kv_heads", "qk_dim", "v_dim")
        same = np.all([part.numbers[name] == value for name, value in zip(names, shape, strict=True)], axis=0)
        chosen = np.flatnonzero(same)
        lengths: IntArray = part.numbers["q_len"][chosen]
        order = np.argsort(lengths, kind="stable")
        dims = f"{shape[2]}" if shape[2] == shape[3] else f"{shape[2]}/{shape[3]}"
        axes.plot(
            lengths[order],
            rate[chosen][order],
            marker=MARKERS[number],
            color=COLOURS[number],
            markersize=4,
            linewidth=1.2,
            label=f"{shape[0]} heads, {shape[1]} kv, dim {dims}",
        )
    powers_axis(axes, "x", "tokens of the sequence", count_label)
    axes.set_ylabel("TFLOP/s of the pairs inside a causal mask")
    axes.set_title(f"{kernel}, {direction}")
    legend_above(axes, columns=2, fontsize=7.0)


def draw_attention(profile: ProfileDatabase, path: Path) -> Path | None:
    """Returns the path of the picture of TFLOP/s over length: rows are kernels, columns directions."""
    table = usable(profile, Family.ATTENTION)
    if table is None or not table.labels["mask"].equals("causal").any():
        return None
    kernels = kernels_of(table)
    figure, panels = new_figure(2, rows=len(kernels))
    for row, kernel in enumerate(kernels):
        for column, direction in enumerate(("forward", "backward")):
            draw_attention_rates(panels[2 * row + column], table, kernel, direction)
    figure.suptitle("Causal attention, one sequence", fontweight="bold")
    return save_figure(figure, path, footer(profile.machine, origins_of(table)))


def draw_kernel_rates(axes: Axes, table: SampleTable, direction: str) -> None:
    """Draws bytes per second of every memory-bound kernel at its largest sample."""
    names, rates = [], []
    for kernel in sorted(set(table.labels["kernel"].labels())):
        rows = np.flatnonzero(label_mask(table, kernel=kernel, direction=direction))
        if not rows.size:
            continue
        part = table.take(rows)
        elements = part.numbers["rows"].astype(np.float64) * part.numbers["width"]
        # The largest sample has the rate of the memory rather than of launches.
        largest = int(np.argmax(elements))
        dtype = part.labels["dtype"].labels()[largest]
        moved = elements[largest] * bytes_moved_per_element(kernel, backward=direction == "backward", dtype=dtype)
        names.append(kernel)
        rates.append(moved / part.medians_s()[largest] / 1e9)
    axes.barh(names, rates, color=COLOURS[0 if direction == "forward" else 1])
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(False, axis="y")
    axes.bar_label(axes.containers[0], fmt="%.4g", padding=2, fontsize=7)  # type: ignore[arg-type]
    axes.margins(x=0.15, y=0.01)
    axes.set_xlabel("GB/s (bytes that must move / time)")
    axes.set_title(f"{direction}, largest sample of each kernel")


def draw_memory_bound(profile: ProfileDatabase, path: Path) -> Path | None:
    """Returns the path of the picture of the memory-bound kernels' bandwidth."""
    table = usable(profile, Family.MEMORY_BOUND)
    if table is None:
        return None
    figure, panels = new_figure(2, height=5.4)
    for axes, direction in zip(panels, ("forward", "backward"), strict=True):
        draw_kernel_rates(axes, table, direction)
    figure.suptitle("Memory-bound kernels", fontweight="bold")
    return save_figure(figure, path, footer(profile.machine, origins_of(table)))
