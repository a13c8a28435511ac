"""Pipeline stages as rows: (plan, class of equal stages), so that unequal stages stay 1-D arrays."""

from dataclasses import dataclass

import numpy as np

from solver.plans import PlanTable
from spec.arrays import BoolArray, IntArray, bools
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """R rows over N plans, ordered by plan and then by stage.

    ``plan`` index of the row's plan; ``position`` of the class's first stage; ``count`` stages in
    it; ``embedding`` and ``head`` whether it holds them; ``layers[k]`` blocks of model.blocks[k];
    ``starts[i]`` the first row of plan i (for ``np.maximum.reduceat``).
    """

    plan: IntArray
    position: IntArray
    count: IntArray
    embedding: BoolArray
    head: BoolArray
    layers: tuple[IntArray, ...]
    starts: IntArray

    def tied(self, model: ModelSpec, pp: IntArray) -> BoolArray:
        """Rows whose embedding or head is tied to one on another stage (``pp`` per row)."""
        apart = (self.embedding | self.head) & (pp > 1)
        return bools(apart & model.tied_embeddings)


def layers_per_stage(num_layers: int, pp: int) -> IntArray:
    """How many decoder layers each stage gets; sums to ``num_layers``.

    When they do not divide, the stages that get one layer less are the last (it has the head), then
    the first (it has the embedding), then those after the first (they hold most micro-batches): 126
    layers on 16 stages are 7, 8, ..., 8, 7, the split published for Llama 3 405B (arXiv 2407.21783
    sec. 3.3.2).
    """
    base = -(-num_layers // pp)
    lighter = pp * base - num_layers
    order = [pp - 1, *range(pp - 1)]
    layers = np.full(pp, base, dtype=np.int64)
    for stage in order[:lighter]:
        layers[stage] -= 1
    return layers


def _classes(model: ModelSpec, pp: int) -> list[tuple[int, int, bool, bool, tuple[int, ...]]]:
    """Runs of consecutive equal stages of one pipeline: position, count, embedding, head, layers."""
    bounds = np.concatenate([[0], np.cumsum(layers_per_stage(model.num_layers, pp))])
    rows: list[tuple[int, int, bool, bool, tuple[int, ...]]] = []
    for stage in range(pp):
        low, high = int(bounds[stage]), int(bounds[stage + 1])
        counts, begin = [], 0
        for run in model.blocks:
            if run.block.mtp:
                counts.append(run.count if stage == pp - 1 else 0)
                continue
            counts.append(max(0, min(high, begin + run.count) - max(low, begin)))
            begin += run.count
        row = (stage, 1, stage == 0, stage == pp - 1, tuple(counts))
        if rows and rows[-1][2:] == row[2:]:
            rows[-1] = (rows[-1][0], rows[-1][1] + 1, *row[2:])
        else:
            rows.append(row)
    return rows


def stage_table(model: ModelSpec, plans: PlanTable) -> StageTable:
    """The stage rows of every plan; the classes are found once per pipeline depth."""
    depths, which = np.unique(plans.layout.pp, return_inverse=True)
    classes = [_classes(model, int(depth)) for depth in depths]
    widths = np.array([len(rows) for rows in classes], dtype=np.int64)
    flat = [row for rows in classes for row in rows]
    offsets = np.concatenate([[0], np.cumsum(widths)])[:-1]
    width = widths[which]
    starts = np.concatenate([[0], np.cumsum(width)])[:-1].astype(np.int64)
    plan = np.repeat(np.arange(len(plans), dtype=np.int64), width)
    source = np.arange(len(plan)) - np.repeat(starts, width) + np.repeat(offsets[which], width)

    def column(index: int) -> IntArray:
        values: IntArray = np.array([row[index] for row in flat], dtype=np.int64)
        return np.asarray(values[source], dtype=np.int64)

    layers = tuple(
        np.array([row[4][kind] for row in flat], dtype=np.int64)[source] for kind in range(len(model.blocks))
    )
    return StageTable(
        plan=plan,
        position=column(0),
        count=column(1),
        embedding=column(2).astype(np.bool_),
        head=column(3).astype(np.bool_),
        layers=layers,
        starts=starts,
    )


def in_flight_filled(pp: IntArray, num_micro: IntArray) -> IntArray:
    """Micro-batches a stage of a schedule that fills the bubble may hold: 2 pp - 1 (arXiv 2401.10241
    sec. 2.2)."""
    held: IntArray = np.minimum(2 * pp - 1, num_micro)
    return held


def in_flight(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> IntArray:
    """Chunk activations a stage holds at its peak, in chunks of 1/vpp of its layers.

    1F1B: pp - position micro-batches. Interleaved: 2 (pp - position - 1) + (vpp - 1) pp + 1 chunks,
    which for the first stage is pp vpp (1 + (pp - 1) / (pp vpp)) (arXiv 2205.05198 sec. 4.2.3).
    """
    plain = pp - position
    interleaved = 2 * (pp - position - 1) + (vpp - 1) * pp + 1
    chunks: IntArray = np.minimum(np.where(vpp > 1, interleaved, plain), num_micro * vpp)
    return chunks
