"""Whole layers: the one place where a strategy, a block and a recompute mode meet."""

from dataclasses import dataclass, field, replace

from ops.adapters.frozen import adapted, frozen_ends
from ops.context import LayerContext
from ops.data_parallel.offload import activations_offloaded, offloaded_shares
from ops.data_parallel.offloaded_modules import LAYER_INPUT, modules_offloaded
from ops.data_parallel.weight_sharding import sharded_over_data
from ops.embedding_and_head import embedding, head, loss
from ops.experts.moe_block import moe_half
from ops.layout import Layout
from ops.linear import Linear, linear
from ops.memory_bound import norm
from ops.mixers.mixer_half import mixer_half
from ops.mlp_block import mlp_half
from ops.op import Comm, Op, Piece, sequence
from ops.recompute.layers import Recompute, recomputed
from ops.recompute.modules import felt_by, modules_recomputed
from ops.roles import Module, Role
from ops.strategies.registry import STRATEGIES
from ops.strategies.sharding import Sharding, layer_context
from spec.arrays import ceil_div
from spec.job import JobSpec
from spec.model import BlockSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOps:
    """Operations of one rank: per block kind (in the order of model.blocks; where only some layers are
    recomputed, first each kind recomputed and then each as it is), embedding, head with its
    loss, and, where the model predicts several tokens, the pass of the extra blocks through the head."""

    blocks: tuple[Piece, ...]
    embedding: Piece
    head: Piece


def model_ops(
    model: ModelSpec,
    job: JobSpec,
    layout: Layout,
    strategy: str,
    recompute: Recompute,
    modules: tuple[str, ...] = (),
) -> ModelOps:
    """Every operation a rank may run for N layouts under one strategy and recompute mode, with ``modules`` of
    layers (ops.recompute.modules) run again beside that."""
    return bare_ops(model, job, layout, strategy).running_again(recompute, modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class BareBlock:
    """A block of which nothing runs again: its operations, and around a prediction block what comes before
    and behind.
    """

    context: LayerContext
    block: BlockSpec
    piece: Piece
    around: tuple[Piece, Piece] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BareOps:
    """What a rank runs for N layouts under one strategy, as if nothing ran again: every different block,
    embedding, head and loss. What runs again is put on top, in as many ways as are asked for."""

    context: LayerContext
    sharding: Sharding
    blocks: dict[BlockSpec, BareBlock]
    ends: tuple[Piece, Piece, Piece]
    known: dict[tuple[Recompute, BlockSpec | None, tuple[str, ...], tuple[str, ...]], tuple[Piece, ...]] = (
        field(default_factory=dict, compare=False, repr=False)
    )

    def running_again(
        self, recompute: Recompute, modules: tuple[str, ...] = (), offloaded: tuple[str, ...] = ()
    ) -> ModelOps:
        """Under a recompute mode, with ``modules`` of layers run again beside that and what others save
        ``offloaded`` to the host. What of it is the same under several is the very same piece."""
        context, model = self.context, self.context.model
        kinds = (Recompute.FULL, Recompute.NONE) if recompute is Recompute.BLOCK else (recompute,)
        # Runs of equal blocks, of which hybrids have many, share one piece.
        pieces = {
            (kind, block): self._layer(block, kind, modules, offloaded)
            for kind in kinds
            for block in self.blocks
        }
        blocks = tuple(pieces[kind, run.block] for kind in kinds for run in model.blocks)
        shares = offloaded_shares(model, context.layout.offloaded_layers) * len(kinds)
        blocks = tuple(map(activations_offloaded, blocks, shares))
        embedding, head = self._ends(recompute)
        return ModelOps(blocks=blocks, embedding=embedding, head=head)

    def _layer(
        self, block: BlockSpec, kind: Recompute, modules: tuple[str, ...], offloaded: tuple[str, ...]
    ) -> Piece:
        """A layer under modules, of which those count that do anything to it."""
        bare = self.blocks[block]
        felt = () if kind is Recompute.FULL else felt_by(bare.piece, modules)
        key = (kind, block, felt, offloaded)
        if key not in self.known:
            layer = _running_again(self.sharding, bare, kind, felt)
            layer = sharded_over_data(self.context, layer, Module.LAYER)
            # Of a layer that runs again whole nothing is kept but its input.
            whole = kind is Recompute.FULL
            sent = [name for name in offloaded if (name == LAYER_INPUT) == whole]
            self.known[key] = (modules_offloaded(layer, sent),)
        return self.known[key][0]

    def _ends(self, recompute: Recompute) -> tuple[Piece, ...]:
        """Embedding and head."""
        key = (recompute, None, (), ())
        if key not in self.known:
            first, last = _ends_running_again(self.context, self.sharding, self.ends, recompute)
            self.known[key] = (
                sharded_over_data(self.context, first, Module.EMBEDDING),
                sharded_over_data(self.context, last, Module.HEAD),
            )
        return self.known[key]


def bare_ops(model: ModelSpec, job: JobSpec, layout: Layout, strategy: str) -> BareOps:
    """Every operation of N layouts under one strategy, none of them run again."""
    sharding = STRATEGIES[strategy]
    context = layer_context(sharding, model, job, layout)
    blocks = {run.block: None for run in model.blocks}
    return BareOps(
        context=context,
        sharding=sharding,
        blocks={block: _bare_block(context, sharding, block) for block in blocks},
        ends=_bare_ends(context, sharding),
    )


def end_ops(context: LayerContext, sharding: Sharding, recompute: Recompute) -> tuple[Piece, Piece]:
    """The embedding, and the head with its loss; run again with all layers where the framework does."""
    return _ends_running_again(context, sharding, _bare_ends(context, sharding), recompute)


def _bare_ends(context: LayerContext, sharding: Sharding) -> tuple[Piece, Piece, Piece]:
    """Embedding, head and loss."""
    first = frozen_ends(context, embedding(context, sharding))
    return first, adapted(context, head(context, sharding)), loss(context, sharding)


def _ends_running_again(
    context: LayerContext, sharding: Sharding, ends: tuple[Piece, Piece, Piece], recompute: Recompute
) -> tuple[Piece, Piece]:
    first, last, losses = ends
    if recompute is Recompute.FULL and context.job.preset.recomputation.recomputes_ends:
        rows = ceil_div(context.tokens, sharding.norm_shards(context.layout))
        first = recomputed(first, recompute, 8.0 * context.tokens)
        last = recomputed(last, recompute, context.activations(rows, context.model.hidden))
    return first, sequence(last, losses)


def block_ops(
    context: LayerContext,
    sharding: Sharding,
    block: BlockSpec,
    recompute: Recompute,
    modules: tuple[str, ...] = (),
) -> Piece:
    """One transformer block, or one multi-token-prediction block with its own pass through the head; ``modules``
    of it run again unless all of it does."""
    return _running_again(sharding, _bare_block(context, sharding, block), recompute, modules)


def _bare_block(context: LayerContext, sharding: Sharding, block: BlockSpec) -> BareBlock:
    context = replace(context, norm_place=block.norm_place)
    if block.wide:
        context = replace(context, job=replace(context.job, precision=context.job.precision.of_wide_layers))
    piece = mixer_half(context, sharding, block)
    if block.feeds_forward:
        second = moe_half if block.moe is not None else mlp_half
        piece = sequence(_reduced_later(context, piece, block), second(context, sharding, block))
    return BareBlock(
        context=context,
        block=block,
        piece=adapted(context, piece),
        around=_around_prediction(context, sharding) if block.mtp else None,
    )


def _reduced_later(context: LayerContext, first: Piece, block: BlockSpec) -> Piece:
    """The first half, whose partial output waits for the second's where a framework reduces the sum of both
    (GPT-NeoX megatron/model/transformer.py, ParallelTransformerLayer: self.reduce(output) under
    gpt_j_residual, an all-reduce or, with sequences cut, a reduce-scatter; experts are left as they are).
    Backward each half reduces its input gradient."""
    asked = context.job.preset.tensor_parallel.reduces_halves
    if not (asked and block.parallel_residual and block.moe is None):
        return first
    return replace(
        first,
        forward=tuple(op for op in first.forward if not _leaves(op)),
        backward=tuple(op for op in first.backward if not _leaves(op)),
    )


def _leaves(op: Op) -> bool:
    """A collective behind a half's last product; backward, with sequences cut, the gather of what both halves read."""
    return op.role is Role.LEAVE and isinstance(op, Comm)


def _running_again(
    sharding: Sharding, bare: BareBlock, recompute: Recompute, modules: tuple[str, ...]
) -> Piece:
    context, block, piece = bare.context, bare.block, bare.piece
    rows = ceil_div(context.tokens, sharding.norm_shards(context.layout))
    if recompute is not Recompute.FULL:
        piece = modules_recomputed(piece, modules, norms_lead=block.norm_place.leads)
    preset = context.job.preset
    layer = recomputed(
        piece,
        recompute,
        context.activations(rows, context.model.hidden),
        preset.recomputation.selective,
        stops=preset.recomputation.stops_early,
        keeps=preset.recomputation.keeps,
    )
    if bare.around is None:
        return layer
    before, behind = bare.around
    return sequence(before, layer, behind)


def _around_prediction(context: LayerContext, sharding: Sharding) -> tuple[Piece, Piece]:
    """Two norms and a 2h -> h projection before the block; the head, shared, runs once more after it
    (arXiv 2412.19437 sec. 2.2, eq. 21-23)."""
    rows = ceil_div(context.tokens, sharding.norm_shards(context.layout))
    hidden = context.model.hidden
    project = Linear(
        module=Module.MTP,
        role=Role.PROJECTION,
        tokens=rows,
        inputs=context.layout.constant(2 * hidden),
        outputs=context.layout.constant(hidden),
        saved_bytes=context.activations(rows, 2 * hidden),
    )
    shared_head = without_parameters(sequence(head(context, sharding), loss(context, sharding)))
    before = sequence(
        norm(context, Module.MTP, rows, "mtp.hidden_norm"),
        norm(context, Module.MTP, rows, "mtp.embedding_norm"),
        linear(context, project),
    )
    behind = sequence(norm(context, Module.MTP, rows, "mtp.head_norm"), shared_head)
    return adapted(context, before), adapted(context, behind)


def without_parameters(piece: Piece) -> Piece:
    """The same operations on weights that another operation owns."""
    return Piece(
        forward=tuple(
            replace(op, parameters=0 * op.parameters, frozen=0 * op.frozen, cached_bytes=0 * op.cached_bytes)
            for op in piece.forward
        ),
        backward=piece.backward,
    )
