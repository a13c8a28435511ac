"""Pipeline stages as rows: (plan, class of equal stages), so that unequal stages stay 1-D arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ops.recompute.layers import Recompute
from solver.pipeline.block_costs import stages_by_cost
from solver.plans.plan_table import PlanTable
from solver.schedules.route import Route
from spec.arrays import BoolArray, IntArray, bools, ints
from spec.model import ModelSpec
from spec.pipeline.layout import PipelineLayout, dealt_layout

COUNTED_BEHIND = {"modules": 2, "ends": 1}
"""Modules after the last layer that count as one each, by spec.presets.preset.Pipeline.deals."""

Deal = Callable[[ModelSpec, int], PipelineLayout]
"""(model, stages) -> what each stage holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """C rows over the R rows of a StageTable, ordered by row and then by chunk: what each of a stage's vpp
    chunks holds. ``stage`` is the index of the stage row; the rest as in StageTable."""

    stage: IntArray
    embedding: BoolArray
    head: BoolArray
    layers: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """R rows over N plans, ordered by plan and then by stage.

    ``plan`` index of the row's plan; ``position`` of the class's first stage; ``count`` stages in
    it; ``embedding`` and ``head`` whether it holds them; ``layers[k]`` blocks of model.blocks[k];
    ``starts[i]`` the first row of plan i (for ``np.maximum.reduceat``); ``chunk_starts[r]`` the first
    row of ``chunks`` of stage row r.
    """

    plan: IntArray
    position: IntArray
    count: IntArray
    embedding: BoolArray
    head: BoolArray
    layers: tuple[IntArray, ...]
    starts: IntArray
    chunk_starts: IntArray
    chunks: ChunkTable

    def take(self, plans: IntArray) -> "StageTable":
        """The stages of these plans, in that order."""
        rows, plan = _rows_within(self.starts, len(self.plan), plans)
        chunk_rows, stage = _rows_within(self.chunk_starts, len(self.chunks.stage), rows)
        return StageTable(
            plan=plan,
            position=self.position[rows],
            count=self.count[rows],
            embedding=self.embedding[rows],
            head=self.head[rows],
            layers=tuple(layers[rows] for layers in self.layers),
            starts=np.searchsorted(plan, np.arange(len(plans))).astype(np.int64),
            chunk_starts=np.searchsorted(stage, np.arange(len(rows))).astype(np.int64),
            chunks=ChunkTable(
                stage=stage,
                embedding=self.chunks.embedding[chunk_rows],
                head=self.chunks.head[chunk_rows],
                layers=tuple(layers[chunk_rows] for layers in self.chunks.layers),
            ),
        )

    def rows(self, plans: IntArray) -> IntArray:
        """Which rows those are."""
        return _rows_within(self.starts, len(self.plan), plans)[0]

    def tied(self, model: ModelSpec, pp: IntArray) -> BoolArray:
        """Rows whose embedding or head is tied to one on another stage (``pp`` per row)."""
        apart = (self.embedding ^ self.head) & (pp > 1)
        return bools(apart & model.tied_embeddings)


def layers_per_stage(num_layers: int, pp: int, *, predicts: bool = False) -> IntArray:
    """How many decoder layers each stage gets; sums to ``num_layers``.

    When they do not divide, the stages that get one layer less are the last (it has the head), then
    the first (it has the embedding), then those after the first (they hold most micro-batches): 126
    layers on 16 stages are 7, 8, ..., 8, 7, the split published for Llama 3 405B (arXiv 2407.21783
    sec. 3.3.2). Where the last stage also ``predicts`` further tokens, which takes more than a layer, all
    of them come off it, as far as it has any: 61 on 16 are 4, ..., 4, 1 (Megatron-Bridge,
    recipes/deepseek/deepseek_v3.py, layout_map).
    """
    base = -(-num_layers // pp)
    lighter = pp * base - num_layers
    layers = np.full(pp, base, dtype=np.int64)
    if predicts:
        off = min(lighter, base)
        layers[pp - 1] -= off
        lighter -= off
    order = [*range(pp - 1)] if predicts else [pp - 1, *range(pp - 1)]
    for stage in order[:lighter]:
        layers[stage] -= 1
    return layers


def modules_per_stage(num_layers: int, pp: int, *, behind: int = 2) -> IntArray:
    """Decoder layers of each stage where the embedding and ``behind`` modules after the last layer are dealt
    like layers.

    When the modules do not divide, the first stages get one more. Two behind are final norm and head
    (Aleph-Alpha/scaling, ``pipe_partition_uniform`` in core/nn/parallel_module/pipeline_partitioning.py), one
    is both together (torchtitan, distributed/pipeline_parallel.py, _generate_llm_fqn_per_model_part:
    pipeline_parallel_first_stage_less_layers and last_stage_less_layers, 1 each).
    """
    least, more = divmod(num_layers + 1 + behind, pp)
    ends = np.cumsum([least + (stage < more) for stage in range(pp)])
    # The embedding is the first module.
    layers_before = np.clip(np.concatenate([[0], ends]) - 1, 0, num_layers)
    return ints(np.diff(layers_before))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """What one virtual stage holds."""

    embedding: bool
    head: bool
    layers: tuple[int, ...]


def _written_out(stage_layout: str) -> Deal:
    """The deal of an explicit layout. Its function raises ConfigError for other stages or layers."""

    def dealt(model: ModelSpec, stages: int) -> PipelineLayout:
        return dealt_layout(stage_layout, layers=model.num_layers, stages=stages)

    return dealt


def _by_rule(rule: Callable[[int, int], IntArray]) -> Deal:
    """The deal of a rule; prediction blocks are on the last stage."""

    def dealt(model: ModelSpec, stages: int) -> PipelineLayout:
        layers = tuple(rule(model.num_layers, stages).tolist())
        return PipelineLayout(layers=layers, predicting_stage=stages - 1, head_stage=stages - 1)

    return dealt


def _virtual_stages(model: ModelSpec, stages: int, deal: Deal) -> list[_Chunk]:
    """The content of ``stages`` virtual stages in the order a token passes them."""
    dealt = deal(model, stages)
    bounds = np.concatenate([[0], np.cumsum(dealt.layers)])
    found: list[_Chunk] = []
    for stage in range(stages):
        low, high = int(bounds[stage]), int(bounds[stage + 1])
        counts, begin = [], 0
        for run in model.blocks:
            if run.block.mtp:
                counts.append(run.count if stage == dealt.predicting_stage else 0)
                continue
            counts.append(max(0, min(high, begin + run.count) - max(low, begin)))
            begin += run.count
        found.append(_Chunk(embedding=stage == 0, head=stage == dealt.head_stage, layers=tuple(counts)))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """A run of consecutive equal stages of one pipeline."""

    position: int
    count: int
    chunks: tuple[_Chunk, ...]


def _classes(model: ModelSpec, pp: int, vpp: int, deal: Deal, route: Route) -> list[_Class]:
    """Every stage with its chunks, equal neighbours together; where a route turns, each is a class of its own, as what
    it holds and when it ends depends on where it stands."""
    virtual = _virtual_stages(model, pp * vpp, deal)
    held: dict[tuple[int, int], _Chunk] = {}
    for chain in route.chains(pp, vpp):
        held |= dict(zip(chain, virtual, strict=True))
    found: list[_Class] = []
    for stage in range(pp):
        chunks = tuple(held[stage, chunk] for chunk in range(route.chunks(vpp)))
        if found and found[-1].chunks == chunks and not route.turns:
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(_Class(position=stage, count=1, chunks=chunks))
    return found


def _rule(model: ModelSpec, deals: str) -> Deal:
    """``deals`` as in spec.presets.preset.Pipeline."""
    if deals == "costs":
        return stages_by_cost
    if deals in COUNTED_BEHIND:
        return _by_rule(partial(modules_per_stage, behind=COUNTED_BEHIND[deals]))
    return _by_rule(partial(layers_per_stage, predicts=any(run.block.mtp for run in model.blocks)))


def dealt_by_rule(model: ModelSpec, stages: int, deals: str) -> tuple[int, ...]:
    """Layers of each of so many virtual stages."""
    return _rule(model, deals)(model, stages).layers


def stage_table(model: ModelSpec, plans: PlanTable, *, deals: str = "layers") -> StageTable:
    """The stage rows of every plan; the classes are found once per pipeline depth and number of chunks.
    ``deals`` as in FrameworkPreset.

    Where plans recompute some layers of a chunk, ``layers`` has two columns a block kind, as ops.block
    has two of its pieces: recomputed layers of every kind, then the others.
    """
    deal = _written_out(plans.stage_layout) if plans.stage_layout else _rule(model, deals)
    shapes, which = np.unique(np.stack([plans.layout.pp, plans.vpp]), axis=1, return_inverse=True)
    which = which.reshape(-1)
    route = plans.schedule.route
    classes = [_classes(model, int(pp), int(vpp), deal, route) for pp, vpp in shapes.T]
    flat = [one for rows in classes for one in rows]
    plan, source = _repeated(np.array([len(rows) for rows in classes], dtype=np.int64), which)
    pieces = [chunk for one in flat for chunk in one.chunks]
    stage, piece = _repeated(np.array([len(one.chunks) for one in flat], dtype=np.int64), source)
    layers = tuple(
        _column([chunk.layers[kind] for chunk in pieces])[piece] for kind in range(len(model.blocks))
    )
    if plans.recompute is Recompute.BLOCK:
        layers = _split(layers, plans.num_recompute_layers[plan[stage]])
    chunks = ChunkTable(
        stage=stage,
        embedding=_column([chunk.embedding for chunk in pieces])[piece].astype(np.bool_),
        head=_column([chunk.head for chunk in pieces])[piece].astype(np.bool_),
        layers=layers,
    )
    chunk_starts = np.searchsorted(stage, np.arange(len(plan))).astype(np.int64)
    return StageTable(
        plan=plan,
        position=_column([one.position for one in flat])[source],
        count=_column([one.count for one in flat])[source],
        embedding=np.logical_or.reduceat(chunks.embedding, chunk_starts),
        head=np.logical_or.reduceat(chunks.head, chunk_starts),
        layers=tuple(np.add.reduceat(layers, chunk_starts) for layers in chunks.layers),
        starts=np.searchsorted(plan, np.arange(len(plans))).astype(np.int64),
        chunk_starts=chunk_starts,
        chunks=chunks,
    )


def _rows_within(starts: IntArray, total: int, owners: IntArray) -> tuple[IntArray, IntArray]:
    """The rows of ``owners``, of which each has those from its start to the next one's, and whose each is by place."""
    width = np.diff(starts, append=total)
    owner, row = _repeated(width, owners)
    return row, owner


def _column(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _repeated(widths: IntArray, which: IntArray) -> tuple[IntArray, IntArray]:
    """For owners of kind ``which``, each with ``widths[kind]`` rows: the owner of every row, and the row's
    index among all rows of the kinds one after another."""
    offsets = np.cumsum(widths) - widths
    width = widths[which]
    owner = np.repeat(np.arange(len(which), dtype=np.int64), width)
    first = np.cumsum(width) - width
    source = np.arange(len(owner)) - first[owner] + offsets[which][owner]
    return owner, np.asarray(source, dtype=np.int64)


def _split(layers: tuple[IntArray, ...], wanted: IntArray) -> tuple[IntArray, ...]:
    """The first ``wanted`` layers of each chunk, by kind, and then the rest, by kind."""
    chosen: list[IntArray] = []
    for kind in layers:
        taken = np.minimum(kind, wanted)
        chosen.append(taken)
        wanted = wanted - taken
    return (*chosen, *(kind - taken for kind, taken in zip(layers, chosen, strict=True)))
