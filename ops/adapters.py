"""Low-rank adapters beside frozen weights: LoRA (arXiv 2106.09685 sec. 4.1), and QLoRA (arXiv 2305.14314 sec. 3).

A frozen weight W has an input gradient and no gradient of its own, so its product keeps no input and nothing
of it is reduced or updated. Beside an adapted one run h = B A x, with A of ``adapter_rank`` x inputs and B of
outputs x ``adapter_rank``, and their gradients; x is saved for A's, or, dropped out or in another format, a
copy of it for each A (peft, tuners/lora/layer.py, Linear.forward: lora_A(dropout(x)) of x in lora_A's
format). Weights held in 4 bits are brought to 16 before each product that reads them (QLoRA sec. 3, eq. 5;
bitsandbytes, autograd/_functions.py, MatMul4Bit).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import Axis, BatchedGemm, Comm, GroupedGemm, Lane, Op, Pass, Phase, collective, gemm
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.job import Adapted, JobSpec

# Low-rank adapters beside frozen weights.

# The elementwise kernels around an adapter's two products, as bytes an element moved by each.
#
# peft (tuners/lora/layer.py, Linear.forward): ``result + lora_B(lora_A(dropout(x.to(dtype of A)))) * scaling``,
# back in the result's format; every step is a kernel and has one in the backward. On frozen weights of 4 bits
# ``result`` is cloned first and the adapter's added in place (tuners/lora/bnb.py, Linear4bit). Under
# torch.autocast what enters a product is brought back to the products' format, dropped out in A's. FSDP1 shows
# A in the optimizer's format, since it is not gathered yet when its format is read.
#
# Fused (Unsloth's LoRA_QKV and LoRA_W; fms-acceleration, fused_ops/unsloth_lora): B is scaled instead, its
# product added in place; the backward has no mask but compares what was dropped out with 0, multiplies, and
# adds.
#
# Megatron's adapters (NeMo, parallel_adapters.py, ParallelLinearAdapter.forward; collections/llm/peft/lora.py)
# scale and add by a kernel each too.

MASK_BYTES = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterPasses:
    """Bytes an element of each kernel: ``into`` A of an element of its input, ``added`` of an element of B's
    result, ``scaled_back`` of that element's gradient, and ``back`` of an element of the input's gradient up
    to its sum with those of the frozen product and of other adapters."""

    into: tuple[float, ...]
    added: tuple[float, ...]
    scaled_back: tuple[float, ...]
    back: tuple[float, ...]


def product_dtype(job: JobSpec) -> str:
    """Returns the format of what an adapter multiplies."""
    return job.precision.compute if job.adapter_code else job.adapter_dtype or job.precision.compute


def adapter_passes(job: JobSpec) -> AdapterPasses:
    """Returns the kernels of one adapter of ``job``."""
    outer = dtype_bytes(job.precision.activation)
    if job.adapter_code == "fused":
        return AdapterPasses(
            into=_dropout(job, outer),
            added=(3 * outer,),
            scaled_back=(),
            back=(outer + MASK_BYTES, 2 * outer + MASK_BYTES, 3 * outer),
        )
    inner = dtype_bytes(job.adapter_dtype or job.precision.activation)
    product = dtype_bytes(product_dtype(job))
    enters, narrows, widens = _cast(outer, inner), _cast(inner, product), _cast(outer, product)
    # peft clones nf4's result (tuners/lora/bnb.py), and not GPTQ's (tuners/lora/gptq.py).
    cloned = (2 * outer,) if job.precision.frozen == "nf4" else ()
    return AdapterPasses(
        into=(*enters, *_dropout(job, inner), *narrows),
        added=(*cloned, 2 * product, outer + product + max(outer, product), *widens),
        scaled_back=(*widens, *widens, 2 * product),
        back=(*narrows, *_dropout(job, inner), *enters, 3 * outer),
    )


def _cast(source: float, target: float) -> tuple[float, ...]:
    """Returns the bytes an element of a cast, which nothing does between equal formats."""
    return (source + target,) if source != target else ()


def _dropout(job: JobSpec, width: float) -> tuple[float, ...]:
    """Returns the bytes an element of a dropout, forward or backward: read, written, and the mask."""
    return (2 * width + MASK_BYTES,) if job.adapter_dropout else ()


# One pair of low-rank products beside a frozen one: what it runs, keeps and trains.

# Cut over their inputs under tensor parallelism: A's result is summed over tp.
CUT_INPUTS = frozenset({Role.OUT, Role.DOWN})


def adapter_pair(context: LayerContext, base: BatchedGemm, times: int) -> Pass:
    """Returns A, B and the sum with the frozen product's result, with the elementwise kernels between them; ``times``
    pairs share the product's input, and its outputs between them (q, k and v apart)."""
    job = context.job
    tokens, inputs, outputs = base.m, base.k, base.n
    rank = context.layout.constant(job.adapter_rank)
    none = np.zeros(len(rank))
    passes = adapter_passes(job)

    def product(role: Role, phase: Phase, shape: tuple[IntArray, IntArray, IntArray], layout: str) -> BatchedGemm:
        what = base.key.served_by(role, f"{base.name}.{role}")
        _, k, n = shape
        forward = phase is Phase.FORWARD
        # A's input is the frozen product's or a copy, B's the result of A.
        inward = _input_bytes(context, 1.0 * tokens * inputs) * times
        saved = context.activations(tokens, rank) * times if role is Role.ADAPTER_UP else inward
        return replace(
            gemm(what, phase, shape, layout, product_dtype(job)),
            repeat=times,
            saved_bytes=saved if forward else none,
            parameters=times * k * n if forward else 0 * n,
        )

    def copies(role: Role, phase: Phase, word: str, width: IntArray, element_bytes: tuple[float, ...]) -> list[Op]:
        """Returns kernels one after another, priced as copies of as many bytes (``element_bytes`` of each)."""
        what = base.key.served_by(role, f"{base.name}.{word}")
        a_copy = 2.0 * dtype_bytes(job.precision.activation)
        return [
            memory_pass(
                what, phase, "copy", tokens, job.precision.activation, _share_of_width(tokens, width, one / a_copy)
            )
            for one in element_bytes
        ]

    # Products in order: h = x A^T, y += h B^T; backward dh = dy B, dB = dy^T h, dx += dh A, dA = dh^T x.
    down, up, share = Role.ADAPTER_DOWN, Role.ADAPTER_UP, -(-outputs // times)
    enters = copies(Role.CAST, Phase.FORWARD, "enter_adapter", inputs, passes.into)
    leaves = copies(Role.CAST, Phase.INPUT_GRAD, "leave_adapter", inputs, passes.back)
    back = Phase.INPUT_GRAD
    forward: list[Op] = [
        *(replace(op, repeat=times) for op in enters),
        product(down, Phase.FORWARD, (tokens, inputs, rank), "NT"),
        *([_sum_over_tp(context, base, tokens * rank)] if base.role in CUT_INPUTS else []),
        product(up, Phase.FORWARD, (tokens, rank, share), "NT"),
        *copies(Role.RESIDUAL, Phase.FORWARD, "add_adapter", outputs, passes.added),
    ]
    backward: list[Op] = [
        *copies(Role.RESIDUAL, back, "scale_gradient", outputs, passes.scaled_back),
        product(up, back, (tokens, share, rank), "NN"),
        product(up, Phase.WEIGHT_GRAD, (share, tokens, rank), "TN"),
        product(down, back, (tokens, rank, inputs), "NN"),
        product(down, Phase.WEIGHT_GRAD, (rank, tokens, inputs), "TN"),
        # fused functions keep no result of A (LoRA_QKV.backward: QA.t() @ QX.t())
        *([product(down, Phase.WEIGHT_GRAD, (tokens, inputs, rank), "NT")] if job.adapter_code == "fused" else []),
        *(replace(op, repeat=times) for op in leaves),
    ]
    return Pass(forward=tuple(forward), backward=tuple(backward))


def _share_of_width(rows: IntArray, width: IntArray, share: float) -> IntArray:
    scaled: IntArray = np.ceil(np.broadcast_to(width, rows.shape) * share).astype(np.int64)
    return scaled


def _sum_over_tp(context: LayerContext, base: BatchedGemm, elements: IntArray) -> Comm:
    what = base.key.served_by(Role.REDUCE, f"{base.name}.adapter_sum")
    return collective(
        what,
        Phase.FORWARD,
        Collective.ALL_REDUCE,
        Axis.TP,
        elements * context.activation_bytes,
        context.job.precision.activation,
    )


def _input_bytes(context: LayerContext, elements: FloatArray) -> FloatArray:
    """Returns the bytes that an adapter saves of its ``elements`` of input: a copy of its own in its product's
    format, and a byte of mask."""
    dropout, dtype = context.job.adapter_dropout, context.job.adapter_dtype
    own = dtype_bytes(product_dtype(context.job)) if dropout or dtype else 0.0
    return (own + float(dropout)) * elements


# The products that a name of JobSpec.adapted means.
ADAPTED: dict[Adapted, tuple[OpKey, ...]] = {
    "qkv": (OpKey(Module.ATTENTION, Role.QKV),),
    "q_k_v": (OpKey(Module.ATTENTION, Role.QKV),),
    "out": (OpKey(Module.ATTENTION, Role.OUT),),
    "up": (OpKey(Module.MLP, Role.UP), OpKey(Module.MLP, Role.GATE)),
    "down": (OpKey(Module.MLP, Role.DOWN),),
}


def add_adapters(context: LayerContext, piece: Pass) -> Pass:
    """Returns ``piece`` with its weights frozen and adapters on the products that the job names."""
    weighted = {op.key for op in piece.backward if op.phase is Phase.WEIGHT_GRAD and _is_product(op)}
    bases = {op.key: op for op in piece.forward if _is_product(op) and op.key in weighted}
    wanted = {key for name in context.job.adapted for key in ADAPTED[name]}
    # Three pairs on a fused qkv product: peft trains q_proj, k_proj and v_proj apart.
    adapters = {
        key: adapter_pair(context, base, times=3 if key.role is Role.QKV and "q_k_v" in context.job.adapted else 1)
        for key, base in bases.items()
        if key in wanted and isinstance(base, BatchedGemm)
    }
    return Pass(
        forward=tuple(_forward(context, piece.forward, bases, adapters)),
        backward=tuple(_backward(context, piece.backward, bases, adapters)),
    )


def freeze_embedding(piece: Pass) -> Pass:
    """Returns the embedding of a job with adapters: looked up, and without a gradient."""
    return Pass(forward=tuple(_frozen(op) for op in piece.forward))


def _is_product(op: Op) -> bool:
    return isinstance(op, BatchedGemm | GroupedGemm)


def _frozen(op: Op, share: float = 1.0) -> Op:
    elements = np.ceil(op.parameters * share).astype(np.int64)
    return replace(op, frozen=op.frozen + elements, parameters=0 * op.parameters)


def _frozen_share(context: LayerContext, product: Op) -> float:
    """Returns the width of a product's frozen weights over that of parameters; quantizers leave the head alone
    (transformers, integrations/bitsandbytes.py: get_keys_to_not_convert)."""
    precision = context.job.precision
    if not precision.frozen or product.module is Module.HEAD:
        return 1.0
    return dtype_bytes(precision.frozen) / dtype_bytes(precision.parameter)


def _forward(context: LayerContext, ops: Sequence[Op], bases: dict[OpKey, Op], adapters: dict[OpKey, Pass]) -> list[Op]:
    result: list[Op] = []
    for op in ops:
        if op.key not in bases:
            result.append(_frozen(op))
            continue
        result.extend(_dequantize(context, op, Phase.FORWARD, op.parameters))
        saved = op.saved_bytes if _keeps_input(context, op, op.key in adapters) else 0.0 * op.saved_bytes
        result.append(replace(_frozen(op, _frozen_share(context, op)), saved_bytes=saved))
        result.extend(adapters[op.key].forward if op.key in adapters else ())
    return result


def _keeps_input(context: LayerContext, product: Op, has_adapter: bool) -> bool:
    """Returns whether a frozen product's own input stays: the flash kernel's result does for that kernel's backward,
    any other for an adapter that reads it and makes nothing else of it."""
    if product.key == OpKey(Module.ATTENTION, Role.OUT) and context.job.flash_attention:
        return True
    return has_adapter and not (context.job.adapter_dropout or context.job.adapter_dtype)


def _backward(
    context: LayerContext, ops: Sequence[Op], bases: dict[OpKey, Op], adapters: dict[OpKey, Pass]
) -> list[Op]:
    """Returns the backward without the gradients of frozen weights and what served only them; what overlapped one of
    them is waited for."""
    result: list[Op] = []
    for op in ops:
        base = op.served in bases
        # The weight gradient of a frozen product, its accumulation and its casts go; the adapter's products take its
        # place, and the input that they read is still gathered.
        if base and op.phase is Phase.WEIGHT_GRAD:
            if op.key in adapters:
                result.extend(adapters[op.key].backward)
            if op.role is Role.REGATHER and op.served in adapters:
                result.append(op)
            continue
        if op.lane is Lane.OVERLAP and op.overlaps in bases and op.overlap_phase is Phase.WEIGHT_GRAD:
            # what it overlapped is gone, so it is waited for
            result.append(replace(op, lane=Lane.MAIN))
            continue
        if base and op.key in bases:
            result.extend(_dequantize(context, op, Phase.INPUT_GRAD, bases[op.key].parameters))
        result.append(op)
    return result


def _dequantize(context: LayerContext, product: Op, phase: Phase, elements: IntArray) -> list[Op]:
    """Returns the kernel that writes frozen weights of few bits out in 16 for one product."""
    share = _frozen_share(context, product)
    if share == 1.0:
        return []
    # A copy reads and writes an element of the parameters' format.
    rows = np.ceil(elements * (1.0 + share) / 2.0).astype(np.int64)
    dtype = context.job.precision.parameter
    what = product.key.served_by(Role.CAST, f"{product.name}.widen")
    return [memory_pass(what, phase, "copy", rows, dtype)]
