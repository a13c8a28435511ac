"""Pipeline stages as rows: (plan, class of equal stages), so that unequal stages stay 1-D arrays; and how layers are
partitioned over them."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ops.recompute import Recompute
from solver.plans.plan_table import PlanTable
from solver.plans.schedules import Placement
from spec.arrays import BoolArray, FloatArray, IntArray, ints
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.mixer import mixer_parameters
from spec.model import BlockSpec, ModelSpec
from spec.parameters import idle_expert_parameters, mlp_parameters, moe_parameters
from spec.pipeline_layout import PipelineLayout, dealt_layout

COUNTED_BEHIND = {"with_embedding": 2, "first_last": 1}
"""Modules after the last layer that count as one each, by spec.frameworks.Pipeline.partition."""


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
        """The rows of these plans, plan by plan."""
        return _rows_within(self.starts, len(self.plan), plans)[0]

    def chunk_rows(self, plans: IntArray) -> tuple[IntArray, IntArray]:
        """The rows of ``chunks`` of these plans, plan by plan, and the place in ``plans`` that each belongs to."""
        return _rows_within(self.chunk_starts[self.starts], len(self.chunks.stage), plans)

    def argmax(self, values: FloatArray) -> IntArray:
        """For every plan its first stage row with the largest of ``values``, one a row."""
        largest = np.maximum.reduceat(values, self.starts)
        rows = np.flatnonzero(values >= largest[self.plan])
        _, first = np.unique(self.plan[rows], return_index=True)
        chosen: IntArray = rows[first].astype(np.int64)
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """One micro-batch through each stage row, or each chunk row; ``weight_s`` is the part of ``backward_s``
    that only makes weight gradients, ``pair_s`` what a chunk's forward takes beside the backward of the
    stage's other chunk (solver.plans.schedules), None where none does; ``products`` the share of both passes
    that matrix products take, None for none; ``units`` how many parts of a stage row are gathered and reduced
    one after another once a step, None for one."""

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    pair_s: FloatArray | None = None
    products: FloatArray | None = None
    units: FloatArray | None = None

    def take(self, rows: IntArray) -> "PassTimes":
        """Returns these rows, an array of any shape."""
        return PassTimes(
            forward_s=self.forward_s[rows],
            backward_s=self.backward_s[rows],
            weight_s=self.weight_s[rows],
            pair_s=None if self.pair_s is None else self.pair_s[rows],
            products=None if self.products is None else self.products[rows],
            units=None if self.units is None else self.units[rows],
        )


def layers_per_stage(num_layers: int, pp: int, *, predicts: bool = False) -> IntArray:
    """Returns how many decoder layers each stage gets; sums to ``num_layers``.

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
    """Decoder layers of each stage where the embedding and ``behind`` modules after the last layer count like
    layers.

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


def block_cost(block: BlockSpec, hidden: int) -> int:
    """Elements of the matrices that a token passes through, key and value heads counted as if they were as many as
    the queries' (nanotron, models/llama.py, ``get_block_compute_costs``: ``4 n d h + 3 f h``)."""
    mixer = block.mixer
    if isinstance(mixer, AttentionSpec) and mixer.kind is AttentionKind.GQA:
        mixer = replace(mixer, num_kv_heads=mixer.num_heads)
    cost = 0 if mixer is None else mixer_parameters(mixer, hidden)
    if block.moe is not None:
        return cost + moe_parameters(block.moe, hidden) - idle_expert_parameters(block.moe, hidden)
    return cost + (0 if block.mlp is None else mlp_parameters(block.mlp, hidden))


def stages_by_cost(model: ModelSpec, pp: int) -> PipelineLayout:
    """A stage takes blocks until their sum passes its share of the whole model's cost, that of the head counted.

    A head that passes the share of the last stage but one leaves the stages behind it no layers. The source puts the
    loss there; here it stays with the head.
    """
    costs = [block_cost(run.block, model.hidden) for run in model.main_blocks for _ in range(run.count)]
    whole = sum(costs) + model.vocab * model.hidden
    layers, stage, passed = [0] * pp, 0, 0
    for cost in costs:
        layers[stage] += 1
        passed += cost
        stage += passed * pp > whole * (stage + 1)
    return PipelineLayout(layers=tuple(layers), predicting_stage=stage, head_stage=stage)


def pipeline_partition(model: ModelSpec, stages: int, rule: str, layout: str = "") -> PipelineLayout:
    """Returns what each of so many virtual stages holds: an explicit ``layout`` (spec.pipeline_layout), or by the ``rule``
    of the framework (spec.frameworks.Pipeline.partition), where prediction blocks are on the last stage.

    Raises ConfigError for a layout of other stages or layers.
    """
    if layout:
        return dealt_layout(layout, layers=model.num_layers, stages=stages)
    if rule == "by_cost":
        return stages_by_cost(model, stages)
    if rule in COUNTED_BEHIND:
        layers = modules_per_stage(model.num_layers, stages, behind=COUNTED_BEHIND[rule])
    else:
        layers = layers_per_stage(model.num_layers, stages, predicts=any(run.block.mtp for run in model.blocks))
    return PipelineLayout(layers=tuple(layers.tolist()), predicting_stage=stages - 1, head_stage=stages - 1)


class _Chunk(NamedTuple):
    """What one virtual stage holds."""

    embedding: bool
    head: bool
    layers: tuple[int, ...]


class _StageClass(NamedTuple):
    """A run of ``stages`` consecutive equal stages of one pipeline, the first of them at ``position``."""

    position: int
    stages: int
    chunks: tuple[_Chunk, ...]


def _virtual_stages(model: ModelSpec, partition: PipelineLayout) -> list[_Chunk]:
    """The content of the virtual stages in the order a token passes them."""
    chunks: list[_Chunk] = []
    high = 0
    for stage, layers in enumerate(partition.layers):
        low, high = high, high + layers
        counts, begin = [], 0
        for run in model.blocks:
            if run.block.mtp:
                counts.append(run.count if stage == partition.predicting_stage else 0)
                continue
            counts.append(max(0, min(high, begin + run.count) - max(low, begin)))
            begin += run.count
        chunks.append(_Chunk(stage == 0, stage == partition.head_stage, tuple(counts)))
    return chunks


def _stage_classes(virtual_stages: list[_Chunk], pp: int, vpp: int, placement: Placement) -> list[_StageClass]:
    """Every stage with its chunks, equal neighbours together; where stages do not follow each other round and round, each
    is a class of its own, as what it holds and when it ends depends on where it stands."""
    chunk_at: dict[tuple[int, int], _Chunk] = {}
    for chain in placement.chains(pp, vpp):
        chunk_at |= dict(zip(chain, virtual_stages, strict=True))
    classes: list[_StageClass] = []
    for stage in range(pp):
        chunks = tuple(chunk_at[stage, chunk] for chunk in range(placement.chunks(vpp)))
        if classes and classes[-1].chunks == chunks and placement.looped:
            classes[-1] = classes[-1]._replace(stages=classes[-1].stages + 1)
        else:
            classes.append(_StageClass(stage, 1, chunks))
    return classes


def stage_table(model: ModelSpec, plans: PlanTable, *, rule: str = "uniform") -> StageTable:
    """Returns the stage rows of every plan; the classes are made once per pipeline depth and number of chunks.
    ``rule`` as in ``pipeline_partition``.

    Where plans recompute some layers of a chunk, ``layers`` has two columns a block kind, as ops.block
    has two of its pieces: recomputed layers of every kind, then the others.
    """
    shapes, which = np.unique(np.stack([plans.layout.pp, plans.vpp]), axis=1, return_inverse=True)
    which = which.reshape(-1)
    placement = plans.schedule.placement
    classes: list[list[_StageClass]] = []
    for pp, vpp in shapes.T.tolist():
        partition = pipeline_partition(model, pp * vpp, rule, plans.stage_layout)
        classes.append(_stage_classes(_virtual_stages(model, partition), pp, vpp, placement))
    flat = [one for rows in classes for one in rows]
    plan, source = _repeated(np.array([len(rows) for rows in classes], dtype=np.int64), which)
    pieces = [chunk for one in flat for chunk in one.chunks]
    stage, piece = _repeated(np.array([len(one.chunks) for one in flat], dtype=np.int64), source)
    layers = tuple(ints([chunk.layers[kind] for chunk in pieces])[piece] for kind in range(len(model.blocks)))
    if plans.recompute is Recompute.BLOCK:
        layers = _split(layers, plans.num_recompute_layers[plan[stage]])
    chunks = ChunkTable(
        stage=stage,
        embedding=ints([chunk.embedding for chunk in pieces])[piece].astype(np.bool_),
        head=ints([chunk.head for chunk in pieces])[piece].astype(np.bool_),
        layers=layers,
    )
    chunk_starts = np.searchsorted(stage, np.arange(len(plan))).astype(np.int64)
    return StageTable(
        plan=plan,
        position=ints([one.position for one in flat])[source],
        count=ints([one.stages for one in flat])[source],
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
