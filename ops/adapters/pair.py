"""One pair of low-rank products beside a frozen one: what it runs, keeps and trains."""

from dataclasses import replace

import numpy as np

from ops.adapters.passes import adapter_passes, product_dtype
from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import Axis, BatchedGemm, Comm, Op, Phase, Piece
from ops.roles import Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes

# Cut over their inputs under tensor parallelism: A's result is summed over tp.
CUT_INPUTS = frozenset({Role.OUT, Role.DOWN})


def adapter_pair(context: LayerContext, base: BatchedGemm, times: int) -> Piece:
    """A, B and the sum with the frozen product's result, with the elementwise kernels between them; ``times``
    pairs that share its input, and its outputs between them (q, k and v apart)."""
    job = context.job
    tokens, inputs, outputs = base.m, base.k, base.n
    rank = context.layout.constant(job.adapter_rank)
    none = np.zeros(len(rank))
    passes = adapter_passes(job)

    def gemm(
        role: Role, phase: Phase, shape: tuple[IntArray, IntArray, IntArray], layout: str
    ) -> BatchedGemm:
        what = base.key.served_by(role, f"{base.name}.{role}")
        m, k, n = shape
        forward = phase is Phase.FORWARD
        # A's input is the frozen product's or a copy, B's the result of A.
        inward = _own_inputs(context, 1.0 * tokens * inputs) * times
        kept = context.activations(tokens, rank) * times if role is Role.ADAPTER_UP else inward
        return BatchedGemm(
            module=what.module,
            role=what.role,
            serves=what.serves,
            name=what.name,
            phase=phase,
            repeat=times,
            batch=np.ones_like(m),
            m=m,
            k=k,
            n=n,
            layout=layout,
            dtype=product_dtype(job),
            saved_bytes=kept if forward else none,
            parameters=times * k * n if forward else 0 * n,
        )

    def moved(
        role: Role, phase: Phase, word: str, width: IntArray, element_bytes: tuple[float, ...]
    ) -> list[Op]:
        """Kernels one after another, priced as copies of as many bytes (``element_bytes`` of each)."""
        what = base.key.served_by(role, f"{base.name}.{word}")
        a_copy = 2.0 * dtype_bytes(job.precision.activation)
        return [
            memory_pass(
                what, phase, "copy", tokens, job.precision.activation, _scaled(tokens, width, one / a_copy)
            )
            for one in element_bytes
        ]

    down, up, share = Role.ADAPTER_DOWN, Role.ADAPTER_UP, -(-outputs // times)
    enters = moved(Role.CAST, Phase.FORWARD, "enter_adapter", inputs, passes.into)
    leaves = moved(Role.CAST, Phase.INPUT_GRAD, "leave_adapter", inputs, passes.back)
    back = Phase.INPUT_GRAD
    forward: list[Op] = [
        *(replace(op, repeat=times) for op in enters),
        gemm(down, Phase.FORWARD, (tokens, inputs, rank), "NT"),
        *([_summed(context, base, tokens * rank)] if base.role in CUT_INPUTS else []),
        gemm(up, Phase.FORWARD, (tokens, rank, share), "NT"),
        *moved(Role.RESIDUAL, Phase.FORWARD, "add_adapter", outputs, passes.added),
    ]
    backward: list[Op] = [
        *moved(Role.RESIDUAL, back, "scale_gradient", outputs, passes.scaled_back),
        gemm(up, back, (tokens, share, rank), "NN"),
        gemm(up, Phase.WEIGHT_GRAD, (share, tokens, rank), "TN"),
        gemm(down, back, (tokens, rank, inputs), "NN"),
        gemm(down, Phase.WEIGHT_GRAD, (rank, tokens, inputs), "TN"),
        # fused functions keep no result of A (LoRA_QKV.backward: QA.t() @ QX.t())
        *(
            [gemm(down, Phase.WEIGHT_GRAD, (tokens, inputs, rank), "NT")]
            if job.adapter_code == "fused"
            else []
        ),
        *(replace(op, repeat=times) for op in leaves),
    ]
    return Piece(forward=tuple(forward), backward=tuple(backward))


def _scaled(rows: IntArray, width: IntArray, share: float) -> IntArray:
    scaled: IntArray = np.ceil(np.broadcast_to(width, rows.shape) * share).astype(np.int64)
    return scaled


def _summed(context: LayerContext, base: BatchedGemm, elements: IntArray) -> Comm:
    what = base.key.served_by(Role.REDUCE, f"{base.name}.adapter_sum")
    return Comm(
        module=what.module,
        role=what.role,
        serves=what.serves,
        name=what.name,
        phase=Phase.FORWARD,
        collective=Collective.ALL_REDUCE,
        axis=Axis.TP,
        size_bytes=(elements * context.activation_bytes).astype(np.int64),
        dtype=context.job.precision.activation,
    )


def _own_inputs(context: LayerContext, elements: FloatArray) -> FloatArray:
    """What an adapter keeps of its ``elements`` of input: a copy of its own in its product's format, and a
    byte of mask.
    """
    dropout, dtype = context.job.adapter_dropout, context.job.adapter_dtype
    own = dtype_bytes(product_dtype(context.job)) if dropout or dtype else 0.0
    return (own + float(dropout)) * elements
