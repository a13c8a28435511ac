"""A traffic matrix as a picture."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ops.layout import Layout, ranks_and_stride
from ops.op import Axis
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from spec.arrays import FloatArray
from spec.collectives import Collective
from spec.files import atomic_path, folder_of_results
from spec.units import GIB, KIB, MIB
from workload.pictures import save_figure
from workload.stage_work import StageWork, stage_works
from workload.traffic.flows import flow_matrix, rank_flows

PICTURE_CELLS = 1024


def draw_heatmap(matrix: FloatArray, path: str | os.PathLike[str], title: str) -> None:
    """Draw bytes sent (rows: sender, columns: receiver) to ``path`` (.png, .jpg, .svg, .pdf).

    The colour scale is logarithmic where values span more than a decade, else it starts at 0; cells
    without traffic stay white. More than 1024 cells a side are
    drawn as the maximum over blocks, so that thin lines stay visible. Raises ExportError when the
    picture cannot be written.
    """
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    unit, name = _unit(float(matrix.max(initial=0.0)))
    shown = _block_maximum(matrix, PICTURE_CELLS) / unit
    figure = Figure(figsize=(7.0, 6.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, wrap=True)
    axes.set_xlabel("receiving rank")
    axes.set_ylabel("sending rank")
    size = matrix.shape[0]
    extent = (-0.5, size - 0.5, size - 0.5, -0.5)
    positive = shown[shown > 0]
    if positive.size:
        low, high = float(positive.min()), float(positive.max())
        # Values within a decade read best from 0 up.
        norm = LogNorm(low, high) if high > 10.0 * low else Normalize(0.0, high)
        image = axes.imshow(
            np.ma.masked_equal(shown, 0.0), cmap="viridis_r", norm=norm, extent=extent, interpolation="nearest"
        )
        figure.colorbar(image, label=f"{name} sent")
    else:
        axes.imshow(np.ones((1, 1, 3)), extent=extent)
        axes.text((size - 1) / 2, (size - 1) / 2, "no traffic", ha="center", va="center")
    save_figure(figure, path)


def _unit(largest_bytes: float) -> tuple[float, str]:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if largest_bytes >= unit:
            return float(unit), name
    return 1.0, "bytes"


def _block_maximum(matrix: FloatArray, cells: int) -> FloatArray:
    block = -(-matrix.shape[0] // cells)
    if block <= 1:
        return matrix
    starts = np.arange(0, matrix.shape[0], block)
    rows = np.maximum.reduceat(matrix, starts, axis=0)
    return np.asarray(np.maximum.reduceat(rows, starts, axis=1), dtype=np.float64)


# Rank-by-rank traffic of a plan: bytes sent per step along each parallel axis.

LARGEST_PICTURE = 1024


def draw_plan_traffic(problem: Problem, plan: Plan, folder: Path) -> list[Path]:
    """Save one array (.npy, bytes per step from row to column) and one picture per axis that moves
    anything. Worlds above 1,024 ranks are shown node by node.

    Raises ExportError when the folder cannot be made.
    """
    with folder_of_results(folder):
        per_cell = 1 if plan.world_size <= LARGEST_PICTURE else problem.cluster.gpus_per_node
        written: list[Path] = []
        for axis, matrix in axis_matrices(problem, plan, per_cell).items():
            array, picture = folder / f"traffic_{axis.value}.npy", folder / f"traffic_{axis.value}.png"
            with atomic_path(array) as temporary, temporary.open("wb") as handle:
                np.save(handle, matrix)
            unit = "ranks" if per_cell == 1 else f"nodes of {per_cell}"
            draw_heatmap(matrix, picture, f"{axis.value}: bytes a step between {unit}\n{plan.label()}")
            written += [array, picture]
        return written


def axis_matrices(problem: Problem, plan: Plan, ranks_per_cell: int = 1) -> dict[Axis, FloatArray]:
    """Bytes sent from row to column in one step, for each axis with traffic."""
    layout = PlanTable.of(plan).layout
    works = stage_works(problem, plan)
    stage_ranks = plan.world_size // plan.pp
    matrices: dict[Axis, FloatArray] = {}
    for work in works:
        for stage in range(work.position, work.position + work.count):
            for (axis, collective), size in _sizes(work).items():
                groups = list(groups_of(axis, layout, range(stage * stage_ranks, (stage + 1) * stage_ranks)))
                flows = rank_flows(groups, collective, float(size))
                matrix = flow_matrix(flows, plan.world_size, ranks_per_cell=ranks_per_cell)
                matrices[axis] = matrices[axis] + matrix if axis in matrices else matrix
    if plan.pp > 1:
        p2p_bytes = float(works[0].p2p_bytes * plan.num_micro)
        matrices[Axis.PP] = _hops(plan, stage_ranks, p2p_bytes, ranks_per_cell)
    return matrices


def _sizes(work: StageWork) -> dict[tuple[Axis, Collective], int]:
    """Bytes per step by axis and collective on one rank of a stage."""
    sizes: dict[tuple[Axis, Collective], int] = {}
    for times, item in work.per_step():
        if item.collective is not None and item.axis is not None and item.total_bytes:
            key = (item.axis, item.collective)
            sizes[key] = sizes.get(key, 0) + times * item.total_bytes
    return sizes


def groups_of(axis: Axis, layout: Layout, ranks: range) -> Iterator[list[int]]:
    """The groups of ``axis`` among ``ranks`` (the first layout row), each in rank order."""
    size, stride = (int(column[0]) for column in ranks_and_stride(axis, layout))
    if axis is Axis.EMBEDDING and ranks.start > 0:
        return
    span = size * stride
    for start in ranks:
        if (start - ranks.start) % span < stride:
            yield [start + member * stride for member in range(size)]


SHOWN_AXES = (Axis.TP, Axis.CP, Axis.DP, Axis.DP_CP, Axis.PP, Axis.ETP, Axis.EP, Axis.EDP)


def plan_groups(plan: Plan) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The ranks of every group of a plan, by axis."""
    layout = PlanTable.of(plan).layout
    stage_ranks = plan.world_size // plan.pp
    stages = [range(first, first + stage_ranks) for first in range(0, plan.world_size, stage_ranks)]
    return {
        axis.value: tuple(
            tuple(group)
            for ranks in ([range(plan.world_size)] if axis is Axis.PP else stages)
            for group in groups_of(axis, layout, ranks)
        )
        for axis in dict.fromkeys((*SHOWN_AXES, plan.sharding.traits.copies.dense))
    }


def _hops(plan: Plan, stage_ranks: int, p2p_bytes: float, ranks_per_cell: int) -> FloatArray:
    """Activations to the next stage and gradients back; with virtual chunks once for each, and from the
    last stage to the first between two of them."""
    matrix = np.zeros((-(-plan.world_size // ranks_per_cell),) * 2)
    last = plan.world_size - stage_ranks
    pairs = [([[rank, rank + stage_ranks] for rank in range(last)], plan.vpp)]
    pairs.append(([[last + rank, rank] for rank in range(stage_ranks)], plan.vpp - 1))
    for groups, times in pairs:
        if times:
            flows = rank_flows(groups, Collective.P2P, times * p2p_bytes)
            forth = flow_matrix(flows, plan.world_size, ranks_per_cell=ranks_per_cell)
            matrix = matrix + forth + forth.T
    return matrix
