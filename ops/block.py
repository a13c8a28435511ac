"""One layer, and the two ends of a model, as the operations of one rank.

Read from top to bottom it is the algorithm:

    block_ops        norm -> projections -> core -> output -> norm -> residual, then the same around a feed-forward network
                     or experts; the strategy (``context.sharding``) says what is communicated around each product
    ends             embedding before the first layer, final norm, head and loss behind the last
    LayerOps         both for every different block of a model, before any of it runs again
    apply_recompute  what the backward runs again, what ZeRO gathers and reduces around it, and what waits on the host

What a job leaves off is neither called nor imported on the way: exchanges of heads, experts, adapters, sharded parameters,
offload.
"""

from dataclasses import dataclass, field, replace

from ops.context import LayerContext
from ops.embedding_and_head import embedding, head, loss
from ops.layout import Layout
from ops.linear import linear, weight_collectives
from ops.memory_bound import Kernel, kernel, norm, residual
from ops.mixers.registry import MIXERS
from ops.mlp_block import feed_forward
from ops.op import Comm, Linear, Op, Pass, sequence
from ops.recompute import Recompute, affecting_modules, recompute_layer, recompute_parts
from ops.roles import Module, OpKey, Role
from ops.strategies import STRATEGIES
from spec.job import JobSpec
from spec.model import BlockSpec, ModelSpec, NormPlace


def mixer_half(context: LayerContext, block: BlockSpec) -> Pass:
    """Returns everything from the first norm, wherever it stands, to the first residual add; nothing where a block
    does not mix tokens."""
    mixer = block.mixer
    if mixer is None:
        return Pass()
    row, rows, place = MIXERS[type(mixer)], context.norm_rows, block.norm_place
    core = row.core(context, mixer)
    # What exchanges tokens for heads stands around the core: within it context parallelism, a ring of which stands
    # beside its core's steps, and outside of that the strategy.
    if context.exchanges_context and (context.layout.cp > 1).any():
        from ops.head_exchange import exchange_heads, over_cp

        before, after = exchange_heads(context, row.core_tensors(mixer), over_cp(context))
        core = sequence(before, core, after)
    if context.traits.exchanges_heads:
        before, after = context.sharding.around_attention(context, row.core_tensors(mixer))
        core = sequence(before, core, after)
    entry, added = Pass(), residual(context, row.module, rows)
    if context.model.residual_streams > 1:
        entry, added = _between_streams(context, row.module)
    return sequence(
        entry,
        norm(context, row.module, rows) if place.leads else Pass(),
        _norm_gate(context, row.module, block.first_gate_rank) if block.first_gate_rank else Pass(),
        row.projections(context, mixer),
        core,
        row.output(context, mixer),
        norm(context, row.module, rows, f"{row.module}.output_norm") if place.follows else Pass(),
        added,
        norm(context, row.module, rows, f"{row.module}.closing_norm") if place.closes else Pass(),
    )


def second_half(context: LayerContext, block: BlockSpec) -> Pass:
    """Returns everything from the second norm to the second residual add, around a feed-forward network or experts."""
    rows, place = context.norm_rows, block.norm_place
    # Halves that share a norm share its output, which the mixer's linears keep.
    keeps = place is not NormPlace.SHARED
    entry, added = Pass(), residual(context, Module.MLP, rows)
    if context.model.residual_streams > 1:
        entry, added = _between_streams(context, Module.MLP)
    if block.moe is not None:
        from ops.experts.moe_block import expert_branch, keep_shared_output

        branch = expert_branch(context, block.moe, keeps_input=keeps)
        if context.job.overlap_expert_a2a and block.moe.shared_ffn_hidden:
            added = keep_shared_output(context, added)
    elif block.mlp is not None:
        branch = feed_forward(context, block.mlp, Module.MLP, keeps_input=keeps)
    else:
        raise ValueError("a block without a feed-forward network or experts has no second half")
    if block.moe is not None and block.moe.output_norm:
        branch = sequence(branch, norm(context, Module.MOE, rows, "moe.output_norm"))
    return sequence(
        entry,
        norm(context, Module.MLP, rows) if place.leads_second else Pass(),
        _norm_gate(context, Module.MLP, block.second_gate_rank) if block.second_gate_rank else Pass(),
        _scaled_by_condition(context, block) if block.condition_rank else Pass(),
        branch,
        norm(context, Module.MLP, rows, f"{Module.MLP}.output_norm") if place.follows else Pass(),
        added,
        norm(context, Module.MLP, rows, f"{Module.MLP}.closing_norm") if place.closes else Pass(),
    )


def _between_streams(context: LayerContext, module: Module) -> tuple[Pass, Pass]:
    from ops.residual_streams import add_to_streams, mix_streams

    return mix_streams(context, module), add_to_streams(context, module)


def _norm_gate(context: LayerContext, module: Module, rank: int) -> Pass:
    """Returns a norm's output times the sigmoid of what a small MLP makes of it, which keeps both (transformers
    models/axk2/modeling_axk2.py, AXK2GatedRMSNorm); its two matrices are whole on every rank, for its own tokens."""
    rows, hidden, latent = (
        context.norm_rows,
        context.layout.constant(context.model.hidden),
        context.layout.constant(rank),
    )
    down, up = (
        Linear(module=module, role=role, tokens=rows, inputs=inputs, outputs=outputs, saved_bytes=saved)
        for role, inputs, outputs, saved in (
            (Role.LATENT_DOWN, hidden, latent, 0.0 * rows),
            (Role.LATENT_UP, latent, hidden, context.activations(rows, 2 * rank)),
        )
    )
    what = OpKey(module, Role.GATE, Role.NORM).named(f"{module}.norm_gate")
    gated = Kernel(what, "swiglu", rows, hidden, saved_bytes=context.activations(rows, 2 * hidden))
    products = [
        piece for layer in (down, up) for piece in (*weight_collectives(context, layer), linear(context, layer))
    ]
    return sequence(*products, kernel(context, gated))


def _scaled_by_condition(context: LayerContext, block: BlockSpec) -> Pass:
    """Returns the second half's input times a scale of each channel, which it keeps (transformers
    models/voxtral_realtime/modeling_voxtral_realtime.py, ada_rms_norm); the products that make the scale have one row a sample and
    take no time beside it."""
    rows, hidden = context.norm_rows, context.model.hidden
    what = OpKey(Module.MLP, Role.GATE).named("mlp.condition")
    saved, parameters = context.activations(rows, hidden), 2 * block.condition_rank * hidden
    return kernel(context, Kernel(what, "gelu", rows, hidden, saved_bytes=saved, parameters=parameters))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOps:
    """Operations of a block before any of it runs again, and of a prediction block what stands ``around`` it."""

    context: LayerContext
    block: BlockSpec
    piece: Pass
    around: tuple[Pass, Pass] | None

    def apply_recompute(self, mode: Recompute, modules: tuple[str, ...] = ()) -> Pass:
        """Returns the block of which ``mode`` says what runs again, or unless that is all of it the named
        ``modules``."""
        context, layer = self.context, self.piece
        if modules and mode is not Recompute.FULL:
            layer = recompute_parts(layer, modules, norms_lead=self.block.norm_place.leads)
        if mode is not Recompute.NONE:
            input_bytes = context.activations(context.norm_rows, context.model.hidden * context.model.residual_streams)
            layer = recompute_layer(layer, mode, input_bytes, context.job.preset.recomputation)
        return layer if self.around is None else sequence(self.around[0], layer, self.around[1])


def block_ops(context: LayerContext, block: BlockSpec) -> BlockOps:
    """Returns one transformer block, or one multi-token-prediction block with its own pass through the head."""
    if block.norm_place is not context.norm_place:
        # One context serves every block of a model but for where its norms stand and, if some layers stay in 16 bits,
        # its precision.
        context = replace(context, norm_place=block.norm_place)
    if block.high_precision:
        context = replace(context, job=replace(context.job, precision=context.job.precision.in_high_precision))
    piece = mixer_half(context, block)
    if block.mlp is not None or block.moe is not None:
        # Parallel attention and MLP add up before the residual, so that one collective reduces the sum of both.
        together = context.job.preset.tensor_parallel.reduces_halves and block.moe is None
        if together and block.parallel_residual:
            piece = _without_output_collectives(piece)
        piece = sequence(piece, second_half(context, block))
    around = _around_prediction(context) if block.mtp else None
    if context.job.adapter_rank:
        from ops.adapters import add_adapters

        # last: it freezes every weight that the halves have listed
        piece = add_adapters(context, piece)
        if around is not None:
            around = (add_adapters(context, around[0]), add_adapters(context, around[1]))
    return BlockOps(context=context, block=block, piece=piece, around=around)


def _without_output_collectives(first: Pass) -> Pass:
    """Returns the first half, whose partial output waits for the second's where a framework reduces the sum of both
    (GPT-NeoX megatron/model/transformer.py, ParallelTransformerLayer: self.reduce(output) under
    gpt_j_residual, an all-reduce or, with sequences cut, a reduce-scatter; experts are left as they are).
    Backward each half reduces its input gradient; with sequences cut the gather of what both halves read goes."""

    def stays(op: Op) -> bool:
        return not (op.role is Role.LEAVE and isinstance(op, Comm))

    return Pass(forward=tuple(filter(stays, first.forward)), backward=tuple(filter(stays, first.backward)))


def _around_prediction(context: LayerContext) -> tuple[Pass, Pass]:
    """Returns two norms and a 2h -> h projection before the block, and the shared head that runs once more after it
    (arXiv 2412.19437 sec. 2.2, eq. 21-23)."""
    rows, hidden = context.norm_rows, context.model.hidden
    project = Linear(
        module=Module.MTP,
        role=Role.PROJECTION,
        tokens=rows,
        inputs=context.layout.constant(2 * hidden),
        outputs=context.layout.constant(hidden),
        saved_bytes=context.activations(rows, 2 * hidden),
    )
    before = sequence(
        norm(context, Module.MTP, rows, "mtp.hidden_norm"),
        norm(context, Module.MTP, rows, "mtp.embedding_norm"),
        linear(context, project),
    )
    shared_head = _without_parameters(sequence(head(context), loss(context)))
    behind = sequence(norm(context, Module.MTP, rows, "mtp.head_norm"), shared_head)
    return before, behind


def _without_parameters(piece: Pass) -> Pass:
    """Returns the same operations on weights that another operation owns."""
    forward = (
        replace(op, parameters=0 * op.parameters, frozen=0 * op.frozen, cached_bytes=0 * op.cached_bytes)
        for op in piece.forward
    )
    return replace(piece, forward=tuple(forward))


def ends(context: LayerContext, mode: Recompute) -> tuple[Pass, Pass]:
    """Returns the embedding, and the head with its loss; run again with all layers where the framework does."""
    first, last = embedding(context), head(context)
    vision = context.model.vision
    if context.job.images and vision is not None:
        from ops.vision import tower_context, vision_tower

        tower = tower_context(context, vision, STRATEGIES["mtp"])
        layers = {run.block: block_ops(tower, run.block).piece for run in tower.model.blocks}
        first = sequence(vision_tower(context, vision, tower, layers, mode), first)
    if context.job.adapter_rank:
        from ops.adapters import add_adapters, freeze_embedding

        first, last = freeze_embedding(first), add_adapters(context, last)
    if mode is Recompute.FULL and context.job.preset.recomputation.recomputes_ends:
        # an embedding's input is an int64 token id for each token
        first = recompute_layer(first, mode, 8.0 * context.tokens)
        last = recompute_layer(last, mode, context.activations(context.norm_rows, context.model.hidden))
    return first, sequence(last, loss(context))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOps:
    """Operations of one rank: per block kind (in the order of model.blocks; where only some layers are
    recomputed, first each kind recomputed and then each as it is), embedding, head with its
    loss, and, where the model predicts several tokens, the pass of the extra blocks through the head."""

    blocks: tuple[Pass, ...]
    embedding: Pass
    head: Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOps:
    """Operations of every different block of a model for N layouts under one strategy, none of them run again. What is
    the same under several recompute policies is the very same piece (``cache``)."""

    context: LayerContext
    blocks: dict[BlockSpec, BlockOps]
    cache: dict[tuple[object, ...], Pass] = field(default_factory=dict, compare=False, repr=False)

    def apply_recompute(
        self, mode: Recompute, modules: tuple[str, ...] = (), offloaded: tuple[str, ...] = ()
    ) -> ModelOps:
        """Returns the operations under a recompute ``mode``, with ``modules`` of layers run again beside that and what
        others save ``offloaded`` to the host."""
        context, model = self.context, self.context.model
        # A stage of which some layers are recomputed holds both kinds; plans count layers of each in this order.
        modes = (Recompute.FULL, Recompute.NONE) if mode is Recompute.BLOCK else (mode,)
        # Runs of equal blocks, of which hybrids have many, share one piece.
        blocks = tuple(self._layer(run.block, one, modules, offloaded) for one in modes for run in model.blocks)
        if context.layout.offloaded_layers.any():
            from ops.data_parallel.offload import offload_activations, offload_shares

            shares = offload_shares(model, context.layout.offloaded_layers) * len(modes)
            blocks = tuple(map(offload_activations, blocks, shares))
        if (mode, Module.HEAD) not in self.cache:
            for module, end in zip((Module.EMBEDDING, Module.HEAD), ends(context, mode), strict=True):
                self.cache[mode, module] = end
                if (context.layout.zero_stage >= 2).any():
                    from ops.data_parallel.weight_sharding import shard_over_data

                    self.cache[mode, module] = shard_over_data(context, end, module)
        first, last = self.cache[mode, Module.EMBEDDING], self.cache[mode, Module.HEAD]
        return ModelOps(blocks=blocks, embedding=first, head=last)

    def _layer(self, block: BlockSpec, mode: Recompute, modules: tuple[str, ...], offloaded: tuple[str, ...]) -> Pass:
        """Returns a layer under those of the modules that do anything to it."""
        ops = self.blocks[block]
        whole = mode is Recompute.FULL
        effective = affecting_modules(ops.piece, modules) if modules and not whole else ()
        # Named modules that are absent from the layer are not in the key, so that policies which differ in those
        # alone share one piece.
        key = (mode, block, effective, offloaded)
        if key not in self.cache:
            layer = ops.apply_recompute(mode, effective)
            # After recomputation: a repeated forward reads weights that the backward's gather has brought already.
            if (self.context.layout.zero_stage >= 2).any():
                from ops.data_parallel.weight_sharding import shard_over_data

                layer = shard_over_data(self.context, layer, Module.LAYER)
            if offloaded:
                from ops.data_parallel.offload import LAYER_INPUT, offload_parts

                # Of a layer that runs again whole nothing is kept but its input.
                layer = offload_parts(layer, [one for one in offloaded if (one == LAYER_INPUT) == whole])
            self.cache[key] = layer
        return self.cache[key]


def layer_ops(model: ModelSpec, job: JobSpec, layout: Layout, strategy: str) -> LayerOps:
    """Returns every block of ``model`` for N layouts under one strategy, none of it run again."""
    context = LayerContext(sharding=STRATEGIES[strategy], model=model, job=job, layout=layout)
    blocks: dict[BlockSpec, BlockOps] = {}
    for run in model.blocks:
        if run.block not in blocks:
            blocks[run.block] = block_ops(context, run.block)
    return LayerOps(context=context, blocks=blocks)


def model_ops(
    model: ModelSpec, job: JobSpec, layout: Layout, strategy: str, mode: Recompute, modules: tuple[str, ...] = ()
) -> ModelOps:
    """Returns every operation a rank may run for N layouts under one strategy and recompute mode, with ``modules`` of
    layers (ops.recompute.MODULES) run again beside that."""
    return layer_ops(model, job, layout, strategy).apply_recompute(mode, modules)
