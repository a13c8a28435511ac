"""The expert half of a block: router, dispatch, grouped experts, combine, shared experts.

Groups follow Megatron-Core's folding (arXiv 2504.14960 sec. 3): experts are cut over ep ranks and each
expert's matrices over etp ranks, both laid over the ranks of tp x cp x dp.
"""

import numpy as np

from ops.context import LayerContext
from ops.linear import Linear, grouped_linear, linear
from ops.memory_bound import Kernel, kernel, norm, residual
from ops.mlp_block import Rows, activation, feed_forward
from ops.op import Axis, Comm, Lane, Phase, Piece, sequence
from ops.strategies.sharding import Sharding
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.model import BlockSpec, MlpSpec, MoeSpec


def moe_half(context: LayerContext, sharding: Sharding, block: BlockSpec) -> Piece:
    """Everything from the second norm to the second residual add of an expert block."""
    moe = block.moe
    if moe is None:
        raise ValueError("a block without experts has no expert half")
    layout = context.layout
    norm_rows = ceil_div(context.tokens, sharding.norm_shards(layout))
    own_rows = ceil_div(context.tokens, layout.tp)
    pieces = [norm(context, "mlp.norm", norm_rows), _router(context, moe, own_rows)]
    if moe.shared_ffn_hidden:
        shared = MlpSpec(ffn_hidden=moe.shared_ffn_hidden, gated=moe.gated, bias=moe.bias)
        rows = Rows(
            gemm=ceil_div(context.tokens, sharding.gemm_shards(layout)),
            saved=ceil_div(context.tokens, sharding.saved_input_shards(layout)),
        )
        pieces.append(feed_forward(context, sharding, shared, rows, "shared"))
        if moe.shared_gate:
            pieces.append(_shared_gate(context, own_rows))
    pieces += [_experts(context, moe, own_rows), residual(context, "mlp.residual", norm_rows)]
    return sequence(*pieces)


def _router(context: LayerContext, moe: MoeSpec, rows: IntArray) -> Piece:
    """Scores of every expert for every token, in fp32; the norm's output it reads is kept here unless the
    shared experts keep it anyway."""
    own_input = context.activations(rows, context.model.hidden) * (not moe.shared_ffn_hidden)
    layer = Linear(
        name="moe.router",
        tokens=rows,
        inputs=context.layout.constant(context.model.hidden),
        outputs=context.layout.constant(moe.num_experts),
        saved_bytes=4.0 * rows * moe.num_experts + own_input,
        bias=False,
    )
    return linear(context, layer)


def _shared_gate(context: LayerContext, rows: IntArray) -> Piece:
    """A one-column gate on the shared experts' output (Qwen2-MoE)."""
    layer = Linear(
        name="moe.shared_gate",
        tokens=rows,
        inputs=context.layout.constant(context.model.hidden),
        outputs=context.layout.constant(1),
        saved_bytes=np.zeros(len(rows)),
    )
    return linear(context, layer)


def routed_rows(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> IntArray:
    """Token rows one rank sends out: topk copies spread by the job's stated imbalance, or with a capacity
    factor that many times topk, dropped or padded to it (GShard, arXiv 2006.16668 sec. 2.2)."""
    copies = moe.topk * context.job.moe_imbalance
    if moe.capacity_factor is not None:
        copies = moe.topk * moe.capacity_factor
    rows: IntArray = np.ceil(own_rows * copies).astype(np.int64)
    return rows


def _experts(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Piece:
    """Permute, dispatch, two grouped GEMMs around the activation, combine, unpermute."""
    layout, model = context.layout, context.model
    sent = routed_rows(context, moe, own_rows)
    rows = sent * layout.etp
    experts = np.maximum(moe.num_experts // layout.ep, 1)
    width = ceil_div(layout.constant(moe.expert_ffn_hidden), layout.etp)
    hidden = layout.constant(model.hidden)
    up = Linear(
        name="moe.up",
        tokens=rows,
        inputs=hidden,
        outputs=width * (2 if moe.gated else 1),
        saved_bytes=context.activations(rows, model.hidden),
        bias=moe.bias,
    )
    down = Linear(
        name="moe.down",
        tokens=rows,
        inputs=width,
        outputs=hidden,
        saved_bytes=context.activations(rows, width),
        bias=moe.bias,
    )
    return sequence(
        _permute(context, "moe.permute", sent),
        _exchange(context, "moe.dispatch", sent),
        _sort(context, "moe.sort", rows, experts),
        _fold(context, "moe.expert_gather", sent, entering=True),
        grouped_linear(context, up, experts),
        activation(context, moe.gated, rows, width, "moe.activation"),
        grouped_linear(context, down, experts),
        _fold(context, "moe.expert_scatter", sent, entering=False),
        _sort(context, "moe.unsort", rows, experts),
        _exchange(context, "moe.combine", sent),
        _permute(context, "moe.unpermute", sent),
    )


def _permute(context: LayerContext, name: str, rows: IntArray) -> Piece:
    """Rows moved into expert order; the backward needs only the map."""
    return kernel(
        context,
        Kernel(
            name=name,
            kernel="permute",
            rows=rows,
            width=context.model.hidden,
            saved_bytes=8.0 * rows,
        ),
    )


def _sort(context: LayerContext, name: str, rows: IntArray, experts: IntArray) -> Piece:
    """Rows that arrive rank by rank moved into the order of this rank's several experts, and back
    (Megatron-Core, sort_chunks_by_idxs)."""
    several = (experts > 1) & (context.layout.ep > 1)
    return _permute(context, name, np.where(several, rows, 0))


def _exchange(context: LayerContext, name: str, rows: IntArray) -> Piece:
    """All-to-all of token rows over ep, mirrored in the backward."""
    precision = context.job.precision

    def exchange(phase: Phase, dtype: str) -> Comm:
        return Comm(
            name=name,
            phase=phase,
            lane=Lane.MAIN,
            collective=Collective.ALL_TO_ALL,
            axis=Axis.EP,
            size_bytes=(rows * context.model.hidden * dtype_bytes(dtype)).astype(np.int64),
            dtype=dtype,
        )

    forward_dtype = precision.moe_dispatch if name == "moe.dispatch" else precision.activation
    return Piece(
        forward=(exchange(Phase.FORWARD, forward_dtype),),
        backward=(exchange(Phase.INPUT_GRAD, precision.activation),),
    )


def _fold(context: LayerContext, name: str, rows: IntArray, *, entering: bool) -> Piece:
    """All-gather of rows over etp before the experts, reduce-scatter after; mirrored backward."""
    precision = context.job.precision
    size = (rows * context.layout.etp * context.model.hidden * context.activation_bytes).astype(np.int64)

    def fold(kind: Collective, phase: Phase) -> Comm:
        return Comm(
            name=name,
            phase=phase,
            collective=kind,
            axis=Axis.ETP,
            size_bytes=size,
            dtype=precision.activation,
        )

    first, second = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    if not entering:
        first, second = second, first
    return Piece(forward=(fold(first, Phase.FORWARD),), backward=(fold(second, Phase.INPUT_GRAD),))
