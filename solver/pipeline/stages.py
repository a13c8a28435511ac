"""Which layers every pipeline stage holds, as tables.

A framework's rule partitions layers over virtual stages (``pipeline_partition``), which a schedule places on stages.
Equal neighbouring stages are one class, and (plan, class) one row of the StageTable, so that plans of any depth and
unequal stages are 1-D arrays: ``np.maximum.reduceat(values, starts)`` is the worst stage of every plan. Chunks of a
stage are rows of a second table of the same kind."""

from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from ops.recompute import Recompute
from solver.plans.plan_table import PlanTable
from solver.plans.schedules import Placement
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ints
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.mixer import mixer_parameters
from spec.model import BlockSpec, ModelSpec
from spec.parameters import idle_expert_parameters, mlp_parameters, moe_parameters
from spec.pipeline_layout import PipelineLayout, layout_of_model

MODULES_BEHIND = {"with_embedding": 2, "first_last": 1}
"""Modules after the last layer that count as one each, by spec.frameworks.Pipeline.partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """C rows over the R rows of a StageTable, ordered by stage row and then by chunk: what each chunk of a stage holds.
    ``stage`` is the index of the stage row; the rest as in StageTable."""

    stage: IntArray
    embedding: BoolArray
    head: BoolArray
    layers: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """R rows over N plans, ordered by plan and then by stage.

    ``plan`` is the index of the row's plan; ``position`` the class's first stage; ``count`` the stages in it;
    ``embedding`` and ``head`` whether it holds them; ``layers[k]`` its blocks of model.blocks[k]; ``starts[i]`` the
    first row of plan i; ``chunk_starts[r]`` the first row in ``chunks`` of stage row r."""

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
        """Returns the stages of these plans, in that order."""
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
        """Returns the rows of these plans, plan by plan."""
        return _rows_within(self.starts, len(self.plan), plans)[0]

    def chunk_rows(self, plans: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the rows in ``chunks`` of these plans, plan by plan, and the place in ``plans`` that each belongs
        to."""
        return _rows_within(self.chunk_starts[self.starts], len(self.chunks.stage), plans)

    def argmax(self, values: FloatArray) -> IntArray:
        """Returns for every plan its first stage row with the largest of ``values``, which has an entry a row."""
        largest = np.maximum.reduceat(values, self.starts)
        rows = np.flatnonzero(values >= largest[self.plan])
        _, first = np.unique(self.plan[rows], return_index=True)
        worst: IntArray = rows[first].astype(np.int64)
        return worst


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Seconds of one micro-batch through each stage row, or each chunk row.

    ``weight_s`` is the part of ``backward_s`` that only makes weight gradients; ``pair_s`` what a chunk's forward takes
    together with the backward of the stage's other chunk, None where no schedule pairs them; ``products`` the share of
    both passes that matrix products take, None for none; ``units`` how many parts of a stage row are gathered and
    reduced one after another once a step, None for one."""

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

    When they do not divide, the stages that get one layer less are the last (it has the head), then the first (it has
    the embedding), then those after the first (most micro-batches are in flight there): 126 layers on 16 stages are
    7, 8, ..., 8, 7, the split published for Llama 3 405B (arXiv 2407.21783 sec. 3.3.2). Where the last stage also
    ``predicts`` further tokens, which takes longer than a layer, it gives up all of these layers, as far as it has any:
    61 on 16 are 4, ..., 4, 1 (Megatron-Bridge, recipes/deepseek/deepseek_v3.py, layout_map).
    """
    # Every stage gets the rounded-up share; ``missing`` layers are then taken off, one a stage.
    base = -(-num_layers // pp)
    missing = pp * base - num_layers
    layers = np.full(pp, base, dtype=np.int64)
    if predicts:
        off = min(missing, base)
        layers[pp - 1] -= off
        missing -= off
    order = [*range(pp - 1)] if predicts else [pp - 1, *range(pp - 1)]
    for stage in order[:missing]:
        layers[stage] -= 1
    return layers


def modules_per_stage(num_layers: int, pp: int, *, behind: int = 2) -> IntArray:
    """Returns the decoder layers of each stage where the embedding and ``behind`` modules after the last layer count as
    layers.

    When the modules do not divide, the first stages get one more. Two modules behind are final norm and head
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
    """Returns the elements of the matrices that a token passes through, with as many key and value heads as query heads
    (nanotron, models/llama.py, ``get_block_compute_costs``: ``4 n d h + 3 f h``)."""
    mixer = block.mixer
    if isinstance(mixer, AttentionSpec) and mixer.kind is AttentionKind.GQA:
        mixer = replace(mixer, num_kv_heads=mixer.num_heads)
    cost = 0 if mixer is None else mixer_parameters(mixer, hidden)
    if block.moe is not None:
        return cost + moe_parameters(block.moe, hidden) - idle_expert_parameters(block.moe, hidden)
    return cost + (0 if block.mlp is None else mlp_parameters(block.mlp, hidden))


def stages_by_cost(model: ModelSpec, pp: int) -> PipelineLayout:
    """Returns nanotron's partition: a stage takes blocks until their cost exceeds its share of the whole model's, in
    which the head counts.

    A head that exceeds the share of the last stage but one leaves the stages behind it no layers. The source puts the
    loss there; here it stays with the head.
    """
    costs = [block_cost(run.block, model.hidden) for run in model.main_blocks for _ in range(run.count)]
    whole = sum(costs) + model.vocab * model.hidden
    layers, stage, so_far = [0] * pp, 0, 0
    for cost in costs:
        layers[stage] += 1
        so_far += cost
        # On to the next stage once the sum is beyond (stage + 1) / pp of the whole.
        stage += so_far * pp > whole * (stage + 1)
    return PipelineLayout(layers=tuple(layers), predicting_stage=stage, head_stage=stage)


def pipeline_partition(model: ModelSpec, stages: int, rule: str, layout: str = "") -> PipelineLayout:
    """Returns what each of so many virtual stages holds: an explicit ``layout`` (spec.pipeline_layout), or the
    partition by the framework's ``rule`` (spec.frameworks.Pipeline.partition), where prediction blocks are on the last
    stage.

    Raises ConfigError for a layout of other stages or layers.
    """
    if layout:
        return layout_of_model(layout, layers=model.num_layers, stages=stages)
    if rule == "by_cost":
        return stages_by_cost(model, stages)
    if rule in MODULES_BEHIND:
        layers = modules_per_stage(model.num_layers, stages, behind=MODULES_BEHIND[rule])
    else:
        layers = layers_per_stage(model.num_layers, stages, predicts=any(run.block.mtp for run in model.blocks))
    return PipelineLayout(layers=tuple(layers.tolist()), predicting_stage=stages - 1, head_stage=stages - 1)


class _Chunk(NamedTuple):
    """What one virtual stage holds: ``layers[k]`` blocks of model.blocks[k]."""

    embedding: bool
    head: bool
    layers: tuple[int, ...]


class _StageClass(NamedTuple):
    """A run of ``stages`` consecutive equal stages of one pipeline, the first of them at ``position``."""

    position: int
    stages: int
    chunks: tuple[_Chunk, ...]


def _virtual_stages(model: ModelSpec, partition: PipelineLayout) -> list[_Chunk]:
    """Returns what the virtual stages hold, in the order in which a token passes them."""
    chunks: list[_Chunk] = []
    high = 0
    for stage, layers in enumerate(partition.layers):
        # The stage holds layers low to high - 1 of the model.
        low, high = high, high + layers
        counts, begin = [], 0
        for run in model.blocks:
            if run.block.mtp:
                counts.append(run.count if stage == partition.predicting_stage else 0)
                continue
            # The overlap of the stage's layers with this run's, begin to begin + count - 1.
            counts.append(max(0, min(high, begin + run.count) - max(low, begin)))
            begin += run.count
        chunks.append(_Chunk(stage == 0, stage == partition.head_stage, tuple(counts)))
    return chunks


def _stage_classes(virtual_stages: list[_Chunk], pp: int, vpp: int, placement: Placement) -> list[_StageClass]:
    """Returns every stage with its chunks, equal neighbours as one class. Where virtual stages are not looped each
    stage is a class of its own, as its micro-batches in flight and its end depend on its position."""
    chunk_at: dict[tuple[int, int], _Chunk] = {}
    for order in placement.chains(pp, vpp):
        chunk_at |= dict(zip(order, virtual_stages, strict=True))
    classes: list[_StageClass] = []
    for stage in range(pp):
        chunks = tuple(chunk_at[stage, chunk] for chunk in range(placement.directions * vpp))
        if classes and classes[-1].chunks == chunks and placement.looped:
            classes[-1] = classes[-1]._replace(stages=classes[-1].stages + 1)
        else:
            classes.append(_StageClass(stage, 1, chunks))
    return classes


def stage_table(model: ModelSpec, plans: PlanTable, *, rule: str = "uniform") -> StageTable:
    """Returns the stage rows of every plan. ``rule`` as in ``pipeline_partition``.

    Where plans recompute some layers of a chunk, ``layers`` has two columns a block kind, as ops.block
    has two of its pieces: recomputed layers of every kind, then the others.
    """
    # Plans of one depth and number of chunks have the same stages, which are made once.
    shapes, shape_of = np.unique(np.stack([plans.layout.pp, plans.vpp]), axis=1, return_inverse=True)
    shape_of = shape_of.reshape(-1)
    placement = plans.schedule.placement
    classes: list[list[_StageClass]] = []
    for pp, vpp in shapes.T.tolist():
        partition = pipeline_partition(model, pp * vpp, rule, plans.stage_layout)
        classes.append(_stage_classes(_virtual_stages(model, partition), pp, vpp, placement))
    # Classes of all shapes one after another, and for every stage row its plan and its class; the same for chunks.
    all_classes = list(chain.from_iterable(classes))
    positions, counts, chunks_of = zip(*all_classes, strict=True)
    plan, class_of = _expand(ints(list(map(len, classes))), shape_of)
    embedding, head, counts_by_kind = zip(*chain.from_iterable(chunks_of), strict=True)
    stage, chunk_of = _expand(ints(list(map(len, chunks_of))), class_of)
    layers = tuple(column[chunk_of] for column in ints(counts_by_kind).T)
    if plans.recompute is Recompute.BLOCK:
        layers = _split(layers, plans.num_recompute_layers[plan[stage]])
    chunks = ChunkTable(stage=stage, embedding=bools(embedding)[chunk_of], head=bools(head)[chunk_of], layers=layers)
    chunk_starts = np.searchsorted(stage, np.arange(len(plan))).astype(np.int64)
    return StageTable(
        plan=plan,
        position=ints(positions)[class_of],
        count=ints(counts)[class_of],
        embedding=np.logical_or.reduceat(chunks.embedding, chunk_starts),
        head=np.logical_or.reduceat(chunks.head, chunk_starts),
        layers=tuple(np.add.reduceat(layers, chunk_starts) for layers in chunks.layers),
        starts=np.searchsorted(plan, np.arange(len(plans))).astype(np.int64),
        chunk_starts=chunk_starts,
        chunks=chunks,
    )


def _rows_within(starts: IntArray, total: int, owners: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the rows of ``owners``, of which each has those from its start to the next one's, and the place in
    ``owners`` that each row belongs to."""
    width = np.diff(starts, append=total)
    owner, row = _expand(width, owners)
    return row, owner


def _expand(widths: IntArray, kind_of: IntArray) -> tuple[IntArray, IntArray]:
    """Returns for owners of kind ``kind_of``, each with ``widths[kind]`` rows, the owner of every row, and the row's
    index among the rows of all kinds one after another: widths (2, 3) and kinds (1, 0) give (0, 0, 0, 1, 1), (2, 3, 4,
    0, 1)."""
    offsets = np.cumsum(widths) - widths
    width = widths[kind_of]
    owner = np.repeat(np.arange(len(kind_of), dtype=np.int64), width)
    first = np.cumsum(width) - width
    source = np.arange(len(owner)) - first[owner] + offsets[kind_of][owner]
    return owner, np.asarray(source, dtype=np.int64)


def _split(layers: tuple[IntArray, ...], num_recompute_layers: IntArray) -> tuple[IntArray, ...]:
    """Returns the first ``num_recompute_layers`` of each chunk, by kind, and then the rest, by kind."""
    left = num_recompute_layers
    recompute: list[IntArray] = []
    for kind in layers:
        of_kind = np.minimum(kind, left)
        recompute.append(of_kind)
        left = left - of_kind
    return (*recompute, *(kind - of_kind for kind, of_kind in zip(layers, recompute, strict=True)))
