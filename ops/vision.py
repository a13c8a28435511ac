"""The vision tower of a model that also sees: what the first stage runs before its embedding, over the images of a micro-batch.

Source: transformers ``models/qwen2_5_vl/modeling_qwen2_5_vl.py`` and ``models/qwen3_vl/modeling_qwen3_vl.py``; Megatron-Bridge
067f987 ``models/qwen_vl/modelling_qwen3_vl``: transformer_config.py (the decoder's tp and recomputation, no sequence parallelism),
model.py (images dealt out to the ranks of cp, whose tokens are gathered and set into the embedding's output).
"""

from dataclasses import replace

from ops.context import LayerContext, Sharding
from ops.linear import linear, weight_collectives
from ops.memory_bound import Kernel, kernel, norm
from ops.op import Attention, Axis, Linear, Op, Pass, Phase, collective, sequence
from ops.recompute import Recompute, recompute_layer
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective
from spec.model import BlockSpec, ModelSpec, VisionSpec

Blocks = dict[BlockSpec, Pass]


def tower_context(context: LayerContext, vision: VisionSpec, whole_tokens: Sharding) -> LayerContext:
    """Returns the context of the tower's blocks: a sequence is an image, of which a rank of cp has its share; where matrices
    are cut, under a strategy of ``whole_tokens``."""
    job, layout = context.job, context.layout
    model = ModelSpec(
        name="vision",
        hidden=vision.hidden,
        vocab=1,
        blocks=vision.blocks,
        source=context.model.source,
        norm=vision.norm,
    )
    return LayerContext(
        model=model,
        job=replace(job, seq_len=job.image_patches, document_tokens=0),
        layout=replace(layout, micro_batch=ceil_div(layout.micro_batch * job.images, layout.cp), cp=layout.constant(1)),
        sharding=whole_tokens if context.traits.cuts_matrices else context.sharding,
    )


def vision_tower(
    context: LayerContext, vision: VisionSpec, tower: LayerContext, blocks: Blocks, mode: Recompute
) -> Pass:
    """Returns patches into channels, ``blocks`` of them, run again under ``mode`` as the decoder's are where all of these are, and the tokens
    of the images set into the embedding's output."""
    layers = [_times(_block(tower, blocks[run.block], mode), run.count) for run in vision.blocks]
    return sequence(_patches(tower, vision), *layers, *_mergers(context, tower, vision))


def _block(tower: LayerContext, piece: Pass, mode: Recompute) -> Pass:
    if mode in (Recompute.FULL, Recompute.SELECTIVE):
        input_bytes = tower.activations(tower.norm_rows, tower.model.hidden)
        piece = recompute_layer(piece, mode, input_bytes, tower.job.preset.recomputation)
    return Pass(forward=tuple(map(_sees_all, piece.forward)), backward=tuple(map(_sees_all, piece.backward)))


def _sees_all(op: Op) -> Op:
    """Returns attention without a causal mask."""
    return replace(op, mask="full") if isinstance(op, Attention) else op


def _times(piece: Pass, count: int) -> Pass:
    """Returns what ``count`` equal blocks run, keep and own; they hold for a moment what one does."""
    forward, backward = (
        tuple(
            replace(
                op,
                repeat=op.repeat * count,
                saved_bytes=op.saved_bytes * count,
                cached_bytes=op.cached_bytes * count,
                parameters=op.parameters * count,
            )
            for op in ops
        )
        for ops in (piece.forward, piece.backward)
    )
    return Pass(forward=forward, backward=backward)


def _patches(tower: LayerContext, vision: VisionSpec) -> Pass:
    """Returns the product of every patch, of which images get no gradient, and the sum with learned positions."""
    rows = tower.norm_rows
    layer = _linear(tower, Role.PATCHES, rows, (vision.patch_channels, vision.hidden), bias=vision.patch_bias)
    backward = tuple(op for op in layer.backward if op.phase is not Phase.INPUT_GRAD)
    product = replace(layer, backward=backward)
    if not vision.positions:
        return product
    what = OpKey(Module.VISION, Role.TABLE)
    parameters = vision.positions * vision.hidden
    return sequence(product, kernel(tower, Kernel(what, "add", rows, vision.hidden, parameters=parameters)))


def _mergers(context: LayerContext, tower: LayerContext, vision: VisionSpec) -> list[Pass]:
    """Returns the mergers, whole on every rank, the gather of their tokens over cp, and what adds them to the decoder's: to the
    embedding's output once, and to the hidden states behind as many first layers as there are further mergers."""
    rows, hidden = ceil_div(tower.norm_rows, vision.merged), context.model.hidden
    wide, times = vision.hidden * vision.merged, 1 + vision.deepstack
    act = OpKey(Module.VISION, Role.ACTIVATION)
    merger = sequence(
        norm(tower, Module.VISION, tower.norm_rows),
        _linear(tower, Role.UP, rows, (wide, wide), bias=True),
        kernel(tower, Kernel(act, "gelu", rows, wide, saved_bytes=tower.activations(rows, wide))),
        _linear(tower, Role.DOWN, rows, (wide, hidden), bias=True),
    )
    # norms of further mergers stand behind the merging, over all its channels
    wider = context.layout.constant((wide - vision.hidden) * vision.norm.vectors * vision.deepstack)
    merged = _times(merger, times)
    first, *others = merged.forward
    merged = replace(merged, forward=(replace(first, parameters=first.parameters + wider), *others))
    placed = Kernel(OpKey(Module.VISION, Role.RESIDUAL), "add", rows * context.layout.cp, hidden)
    tokens = tower.activations(rows * context.layout.cp, hidden)
    what, dtype = OpKey(Module.VISION, Role.GATHER), context.job.precision.activation
    gathered = Pass(
        forward=(collective(what, Phase.FORWARD, Collective.ALL_GATHER, Axis.CP, times * tokens, dtype),),
        backward=(collective(what, Phase.INPUT_GRAD, Collective.REDUCE_SCATTER, Axis.CP, times * tokens, dtype),),
    )
    return [merged, gathered, _times(kernel(context, placed), times)]


def _linear(tower: LayerContext, role: Role, rows: IntArray, shape: tuple[int, int], *, bias: bool) -> Pass:
    layer = Linear(
        module=Module.VISION,
        role=role,
        tokens=rows,
        inputs=tower.layout.constant(shape[0]),
        outputs=tower.layout.constant(shape[1]),
        saved_bytes=tower.activations(rows, shape[0]),
        bias=bias,
    )
    return sequence(*weight_collectives(tower, layer), linear(tower, layer))
