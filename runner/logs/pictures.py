"""Pictures of a log, and an HTML page of them with the summary."""

import base64
import html
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.pictures.plot_style import COLOURS, MARKERS, byte_label, new_figure, powers_axis
from runner.logs.log import Log
from spec.files import atomic_file, folder_of_results
from workload.pictures import save_figure

LEGEND_INCHES = 2.2
Points = dict[tuple[str, str], list[tuple[int, float]]]
"""Size and value of each operation, by kind and group."""


def write_page(log: Log, folder: Path, name: str, lines: Sequence[str]) -> list[Path]:
    """The files written into ``folder``: NAME_iterations.png, _operations.png, _bandwidth.png (of an unrun workload
    _messages.png), and NAME.html with these and ``lines``. Raises ExportError if they cannot be written."""
    with folder_of_results(folder):
        figures = (
            {"messages": messages(log)}
            if log.unrun
            else {"iterations": iterations(log), "operations": operations(log), "bandwidth": bandwidth(log)}
        )
        pictures = []
        for what, figure in figures.items():
            path = folder / f"{name}_{what}.png"
            save_figure(figure, path)
            pictures.append(path)
        page = folder / f"{name}.html"
        with atomic_file(page) as handle:
            handle.write(page_text(name, lines, pictures))
        return [*pictures, page]


def page_text(name: str, lines: Sequence[str], pictures: Sequence[Path]) -> str:
    """The HTML page; the pictures are embedded."""
    images = "\n".join(
        f"<h2>{html.escape(path.stem.removeprefix(f'{name}_'))}</h2>\n"
        f'<img alt="{html.escape(path.stem)}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode("ascii")}">'
        for path in pictures
    )
    title = html.escape(name)
    text = html.escape("\n".join(lines))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        "<style>body{font-family:sans-serif;margin:2em}pre{overflow:auto;white-space:pre-wrap}img{max-width:100%}</style></head>\n"
        f"<body><h1>{title}</h1>\n<pre>{text}</pre>\n{images}\n</body></html>\n"
    )


def legend_right(figure: Figure, axes: Axes) -> None:
    """Draw the legend to the right of the axes, where it covers no data."""
    figure.set_size_inches(figure.get_figwidth() + LEGEND_INCHES, figure.get_figheight())
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))


def iterations(log: Log) -> Figure:
    """The plot of each iteration's milliseconds, without initialisation."""
    figure, (axes,) = new_figure(1)
    times = log.epoch_times[1:]
    axes.plot(range(1, len(times) + 1), times, marker="o", color=COLOURS[0])
    axes.set_xlabel("iteration")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0.0)
    return figure


def operations(log: Log) -> Figure:
    """The stacked bars of each iteration's milliseconds by kind of operation and group."""
    figure, (axes,) = new_figure(1)
    epochs = log.comm_log_each_epoch[1:]
    kinds = sorted({(item.comm_type, item.comm_group) for epoch in epochs for item in epoch})
    below = [0.0] * len(epochs)
    places = range(1, len(epochs) + 1)
    for index, (kind, group) in enumerate(kinds):
        summed = [
            sum(item.elapsed_ms or 0.0 for item in epoch if (item.comm_type, item.comm_group) == (kind, group))
            for epoch in epochs
        ]
        label = f"{kind} {group.removesuffix('_group')}".strip()
        axes.bar(places, summed, bottom=below, label=label, color=COLOURS[index % len(COLOURS)])
        below = [low + one for low, one in zip(below, summed, strict=True)]
    axes.set_xlabel("iteration")
    axes.set_ylabel("ms")
    if kinds:
        legend_right(figure, axes)
    return figure


def bandwidth(log: Log) -> Figure:
    """The plot of bus bandwidth against size for each collective of the iterations."""
    points: Points = {}
    for epoch in log.comm_log_each_epoch[1:]:
        for item in epoch:
            if item.busbw and item.msg_size:
                points.setdefault((item.comm_type, item.comm_group), []).append((item.msg_size, item.busbw))
    return by_size(points, "busbw, GiB/s as AICB counts it")


def messages(log: Log) -> Figure:
    """The plot of how many operations there are of each size, for each collective of an unrun workload."""
    counts = Counter((item.comm_type, item.comm_group, item.msg_size) for item in log.comm_logs)
    points: Points = {}
    for (kind, group, size), count in sorted(counts.items()):
        if group and size:
            points.setdefault((kind, group), []).append((size, float(count)))
    return by_size(points, "operations")


def by_size(points: Points, what: str) -> Figure:
    """The plot of ``what`` against size for each kind and group."""
    figure, (axes,) = new_figure(1)
    for index, ((kind, group), samples) in enumerate(sorted(points.items())):
        sizes, values = zip(*samples, strict=True)
        axes.plot(
            sizes,
            values,
            linestyle="",
            marker=MARKERS[index % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            alpha=0.6,
            label=f"{kind} {group.removesuffix('_group')}",
        )
    if points:
        powers_axis(axes, "x", "bytes", byte_label)
        legend_right(figure, axes)
    axes.set_ylabel(what)
    return figure
