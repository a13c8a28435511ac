"""A small topology as a picture: one row per layer, links coloured by bandwidth."""

import os

from spec.errors import ExportError
from spec.files import replaced_path
from workload.topology.topology import Topology, bandwidth_bits

MAX_NODES = 400


def layers(topology: Topology) -> list[int]:
    """Layer of every node: GPUs 0, NV switches below them (-1, -2, ...), other switches above (1, 2, ...)."""
    gpus = topology.num_gpus
    nv_end = gpus + topology.num_nv_switches
    layer = [0] * gpus + [0] * (topology.num_nodes - gpus)
    neighbours: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for link in topology.links:
        neighbours[link.src].append(link.dst)
        neighbours[link.dst].append(link.src)
    front, distance = list(range(gpus)), 0
    known = set(front)
    while front:
        distance += 1
        front = sorted({node for place in front for node in neighbours[place]} - known)
        known.update(front)
        for node in front:
            layer[node] = -distance if node < nv_end else distance
    return layer


def draw_topology(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Draw ``topology`` to ``path`` (.png, .jpg, .svg, .pdf).

    Raises ExportError above 400 nodes, or when the picture cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    if topology.num_nodes > MAX_NODES:
        raise ExportError(f"{topology.num_nodes} nodes cannot be drawn legibly; at most {MAX_NODES}")
    layer = layers(topology)
    places: dict[int, tuple[float, float]] = {}
    for row in sorted(set(layer)):
        members = [node for node, own in enumerate(layer) if own == row]
        for index, node in enumerate(members):
            places[node] = ((index + 0.5) / len(members), float(row))
    figure = Figure(figsize=(12.0, 6.0), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    widths = sorted({link.wire.bandwidth for link in topology.links}, key=bandwidth_bits)
    for number, bandwidth in enumerate(widths):
        segments = [
            (places[link.src], places[link.dst])
            for link in topology.links
            if link.wire.bandwidth == bandwidth
        ]
        label = f"{bandwidth} ({len(segments)} links)"
        axes.add_collection(
            LineCollection(segments, colors=f"C{number}", linewidths=0.4, alpha=0.6, label=label)
        )
    across, up = [place[0] for place in places.values()], [place[1] for place in places.values()]
    axes.scatter(across, up, s=10, color="black", zorder=3)
    rows = sorted(set(layer))
    axes.set_yticks(rows, [_row_name(topology, row, layer.count(row)) for row in rows])
    axes.set_xticks([])
    axes.set_title(topology.file_name)
    for handle in figure.legend(loc="outside lower center", ncols=4).legend_handles:
        if handle is not None:
            handle.set(linewidth=2.0, alpha=1.0)
    with replaced_path(path) as temporary:
        ending = temporary.suffix.lstrip(".").lower()
        if ending not in canvas.get_supported_filetypes():
            raise ExportError(f"{os.fspath(path)}: a picture ends in .png, .jpg, .svg or .pdf")
        figure.savefig(temporary, dpi=150, format=ending)


def _row_name(topology: Topology, row: int, count: int) -> str:
    if row == 0:
        return f"{count} {topology.gpu_type}"
    return f"{count} NV switches" if row < 0 else f"{count} switches (layer {row})"
