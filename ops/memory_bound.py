"""Kernels that only move bytes: how many bytes each moves per element, and the operations of them, forward and backward.

One element is one entry of the kernel's main activation (rows x width). ``reads`` and ``writes``
count activation-sized tensors; weights and statistics are negligible beside them for rows >> 1.
Counts follow from what a fused kernel must read and write once.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from ops.context import LayerContext
from ops.op import BatchedGemm, GroupedGemm, KernelCalls, MemoryBound, Op, Owner, Pass, Phase, sequence
from ops.roles import Identity, Module, OpKey, Role
from spec.arrays import FloatArray, IntArray, ints
from spec.dtypes import dtype_bytes
from spec.model import NormKind


class Width(StrEnum):
    """The length of a kernel's rows. KEYS: the keys of a sequence, a row for every head of every query;
    ELEMENT: 1, for kernels over all parameters of a rank."""

    HIDDEN = "hidden"
    FEED_FORWARD = "feed_forward"
    VOCABULARY = "vocabulary"
    KEYS = "keys"
    ELEMENT = "element"


@dataclass(frozen=True, slots=True)
class KernelTraffic:
    """Activation-sized tensors read and written, forward and backward; fp32 ones apart.

    What else follows from the kernel: ``width`` of its rows; ``fused``, False where plain torch runs it as several;
    ``gated``, it multiplies by a function of a second input; ``vectors`` of weights that it reads; ``in_product``,
    the matrix product before it does it in passing.
    """

    forward_reads: float
    forward_writes: float
    backward_reads: float
    backward_writes: float
    fp32_forward: float = 0.0
    fp32_backward: float = 0.0
    width: Width = Width.HIDDEN
    fused: bool = True
    gated: bool = False
    vectors: int = 0
    in_product: bool = False


# forward reads and writes, backward reads and writes
KERNELS: dict[str, KernelTraffic] = {
    # width = hidden; backward reads the input and the output gradient, writes the input gradient
    "rmsnorm": KernelTraffic(1, 1, 2, 1, vectors=1),
    # weight and bias gradients are a second pass over input and output gradient (PyTorch, apex)
    "layernorm": KernelTraffic(1, 1, 4, 1, vectors=2),
    # the same by torch's own kernels (torch.nn.LayerNorm, torch.nn.functional.rms_norm since 2.8)
    "rmsnorm_torch": KernelTraffic(1, 1, 2, 1, vectors=1),
    "layernorm_torch": KernelTraffic(1, 1, 4, 1, vectors=2),
    # width = rotated channels of q and k; in place would move the same bytes
    "rotary": KernelTraffic(1, 1, 1, 1),
    # width = ffn_hidden of the output: gate and up are read, one product written
    "swiglu": KernelTraffic(2, 1, 3, 2, gated=True, width=Width.FEED_FORWARD),
    "gelu": KernelTraffic(1, 1, 2, 1, width=Width.FEED_FORWARD),
    # residual add: two in, one out; its backward passes the gradient on and adds two branches
    "add": KernelTraffic(2, 1, 2, 1),
    # backward: gradient times mask, and the residual's gradient added to the branch's
    "bias_dropout_add": KernelTraffic(2, 1.5, 3.5, 2),
    # width = channels; each convolved on its own over a few tokens, then SiLU, as one kernel (causal-conv1d)
    "causal_conv1d": KernelTraffic(1, 1, 2, 1, vectors=2),
    "bias": KernelTraffic(1, 1, 1, 0),
    # rows = batch * heads * q_len, width = kv_len
    "masked_softmax": KernelTraffic(1, 1, 2, 1, width=Width.KEYS),
    "dropout": KernelTraffic(1, 1.5, 1.5, 1),
    # width = vocabulary (per rank). Megatron-LM's (mpu/cross_entropy.py): fp32 copy, maximum, subtracted in
    # place, exponential in place, sum, divided in place; backward times the loss's gradient, to 16 bits
    "cross_entropy": KernelTraffic(1, 0, 0, 1, fp32_forward=9, fp32_backward=3, width=Width.VOCABULARY),
    # PyTorch's: fp32 copy, log-softmax (maximum, sum, result: three reads, one write); backward the loss's
    # gradient, log-softmax's (two reads of it, one of the result, one write), and back to 16 bits
    "cross_entropy_unfused": KernelTraffic(
        1, 0, 0, 1, fp32_forward=5, fp32_backward=6, width=Width.VOCABULARY, fused=False
    ),
    # the same in the logits' own format: no copy, three reads and one write; backward two writes and three reads
    "cross_entropy_16bit": KernelTraffic(3, 1, 3, 2, width=Width.VOCABULARY, fused=False),
    # fused: one read for the loss, one read and one write for the gradient
    "cross_entropy_fused": KernelTraffic(1, 0, 1, 1, width=Width.VOCABULARY),
    # width = hidden: gather rows; the backward adds rows into the fp32/bf16 gradient
    "embedding": KernelTraffic(1, 1, 2, 1),
    "cast": KernelTraffic(1, 0, 1, 0, fp32_forward=1, fp32_backward=1),
    "copy": KernelTraffic(1, 1, 1, 1),
    # heads and tokens put into another order, or rows of experts and ranks
    "strided_copy": KernelTraffic(1, 1, 1, 1),
    # a row of biases copied over an array (torch.baddbmm), which the product that adds to it then reads
    "spread_unfused": KernelTraffic(1, 1, 0, 0, width=Width.KEYS, fused=False),
    # The same written with one elementwise operation after another, as plain PyTorch runs them; backward
    # what autograd runs (tools/autograd/derivatives.yaml), which tests count operation by operation.
    # RMSNorm of the Llama reference: to fp32, square, mean, scale, back to 16 bits, times the weight;
    # its backward has a power, two products and a broadcast for the square of the mean alone.
    "rmsnorm_unfused": KernelTraffic(2, 2, 5, 3, fp32_forward=7, fp32_backward=19, vectors=1, fused=False),
    # x cos + rotate_half(x) sin: two products, a negated half, a concatenation, a sum; backward each half
    # is set into zeros, and three gradients are added
    "rotary_unfused": KernelTraffic(5.5, 4.5, 7.5, 7.5, fused=False),
    # silu(gate), then the product; backward three two-operand kernels
    "swiglu_unfused": KernelTraffic(3, 2, 6, 3, gated=True, width=Width.FEED_FORWARD, fused=False),
    # the same of gate and up as halves of one product's result
    "swiglu_halves_unfused": KernelTraffic(3, 2, 6, 3, gated=True, width=Width.FEED_FORWARD, fused=False),
    # scale, mask, to fp32, softmax, back
    "masked_softmax_unfused": KernelTraffic(3, 3, 3, 3, fp32_forward=4, fp32_backward=5, width=Width.KEYS, fused=False),
    # a weight gradient added to what earlier micro-batches left: into fp32 by the GEMM itself (old sum
    # read, new one written instead of a 16-bit result), or in 16 bits by a kernel of its own
    "accumulate_fp32": KernelTraffic(0, 0, 0, -1, fp32_backward=2, in_product=True),
    # by the GEMM itself into a sum in 16 bits: that is read, and written instead of a result
    "accumulate_16bit": KernelTraffic(0, 0, 1, 0, in_product=True),
    "accumulate": KernelTraffic(0, 0, 2, 1),
    # the same into an fp32 sum: the 16-bit gradient read, the sum read and written
    "accumulate_wide": KernelTraffic(0, 0, 1, 0, fp32_backward=2),
    # a reduction over gradients: read once
    "norm_reduce": KernelTraffic(1, 0, 0, 0, width=Width.ELEMENT),
    # a buffer set to zero: written once
    "fill": KernelTraffic(0, 1, 0, 0, width=Width.ELEMENT),
    # width = ffn_hidden; gate limited from above, up from both sides, concatenated. Backward: the concatenation
    # of both gradients, and a comparison (1 byte an element) and a selection for each limit
    "clamp_glu_unfused": KernelTraffic(4, 4, 9, 6, width=Width.FEED_FORWARD, fused=False),
    # width = hidden, expert by expert: bias times probability, the sum with the product, a concatenation.
    # Backward: a concatenation of gradients, and for bias and probability a product and its sum each
    "expert_bias_unfused": KernelTraffic(3, 3, 5, 3, fused=False),
    # the same with probabilities in fp32, and back to 16 bits
    "expert_bias_fp32_unfused": KernelTraffic(1, 1, 2, 2, fp32_forward=6, fp32_backward=8, fused=False),
    # 16 bits scaled to 8 by a known scale, along rows; and along rows and columns in one pass. In units of 16 bits
    "quantize": KernelTraffic(1, 0.5, 0, 0),
    "quantize_transpose": KernelTraffic(1, 1, 0, 0),
    # rows of tokens moved to and from expert order
    "permute": KernelTraffic(1, 1, 1, 1),
}

WHOLE_SHARD = tuple(name for name, kernel in KERNELS.items() if kernel.width is Width.ELEMENT)
"""Kernels over all parameters of a rank, which are measured as one flat array."""


def bytes_moved_per_element(kernel: str, *, backward: bool, dtype: str) -> float:
    """Returns the bytes that cross HBM for one element; KeyError for a kernel not in the table."""
    traffic = KERNELS[kernel]
    if backward:
        return (traffic.backward_reads + traffic.backward_writes) * dtype_bytes(dtype) + 4.0 * traffic.fp32_backward
    return (traffic.forward_reads + traffic.forward_writes) * dtype_bytes(dtype) + 4.0 * traffic.fp32_forward


def bytes_moved(op: MemoryBound) -> FloatArray:
    """Returns the bytes of an operation through HBM."""
    return bytes_moved_per_element(op.kernel, backward=op.backward, dtype=op.dtype) * op.repeat * op.rows * op.width


@dataclass(frozen=True, slots=True)
class Kernel:
    """A ``kernel`` of ops.memory_bound over ``rows`` x ``width``, whose identity is ``what``. It saves
    ``saved_bytes`` for its backward and holds ``transient_bytes`` for a moment; ``dtype`` "" is the activations';
    ``stands_for`` as in MemoryBound."""

    what: OpKey | Identity
    kernel: str
    rows: IntArray
    width: IntArray | int
    saved_bytes: FloatArray | float = 0.0
    transient_bytes: FloatArray | float = 0.0
    parameters: int | IntArray = 0
    dtype: str = ""
    stands_for: tuple[KernelCalls, ...] = ()


def memory_pass(
    what: OpKey | Identity, phase: Phase, kernel: str, rows: IntArray, dtype: str, width: IntArray | None = None
) -> MemoryBound:
    """Returns one kernel of ops.memory_bound over rows x ``width`` (1) that keeps nothing and has no twin."""
    width = np.ones_like(rows) if width is None else width
    return MemoryBound(**what.words, phase=phase, kernel=kernel, rows=rows, width=width, dtype=dtype)


def kernel(context: LayerContext, spec: Kernel) -> Pass:
    """Returns the forward kernel and its backward twin."""
    # The backward twin saves nothing and owns nothing: both are counted on the forward kernel.
    rows, none = spec.rows, np.zeros(spec.rows.shape)
    twin = MemoryBound(
        **spec.what.words,
        phase=Phase.INPUT_GRAD,
        kernel=spec.kernel,
        rows=rows,
        width=np.broadcast_to(np.asarray(spec.width, dtype=np.int64), rows.shape),
        dtype=spec.dtype or context.job.precision.activation,
        saved_bytes=none,
        transient_bytes=none,
        parameters=0 * rows,
        stands_for=spec.stands_for,
    )
    forward = replace(
        twin,
        phase=Phase.FORWARD,
        saved_bytes=none + spec.saved_bytes,
        transient_bytes=none + spec.transient_bytes,
        parameters=0 * rows + spec.parameters,
    )
    return Pass(forward=(forward,), backward=(twin,))


def norm(context: LayerContext, module: Module, rows: IntArray, name: str = "") -> Pass:
    """Returns the model's normalisation over ``rows`` tokens of the hidden size; it keeps its input."""
    hidden, kind, job = context.model.hidden, context.model.norm, context.job
    owner = job.preset.layers.norm_kernel
    unfused = kind is NormKind.RMS and "norm" in job.unfused
    fp32 = job.fp32_norms and not unfused
    # Unfused, autograd keeps the input in fp32 (the input itself is not) and, for the weight's gradient, the scaled
    # input in 16 bits.
    # A frozen norm weight has no gradient, so the scaled input is not saved for it.
    scaled_bytes = 0.0 if job.adapter_rank else context.activation_bytes
    element_bytes = scaled_bytes + 4.0 if unfused else 4.0 if fp32 else context.activation_bytes
    normed = kernel(
        context,
        Kernel(
            Identity(module=module, role=Role.NORM, name=name),
            f"{kind.kernel}_{'unfused' if unfused else 'torch'}" if unfused or owner == "torch" else kind.kernel,
            rows,
            hidden,
            saved_bytes=element_bytes * rows * hidden,
            parameters=kind.vectors * hidden,
            dtype="fp32" if fp32 else "",
        ),
    )
    if owner == "apex" and not unfused:
        label = f"{name}.{Role.STATISTICS}" if name else ""
        statistics = Kernel(
            Identity(module=module, role=Role.STATISTICS, serves=Role.NORM, name=label),
            "norm_reduce",
            rows,
            hidden,
            dtype="fp32" if fp32 else "",
        )
        normed = sequence(normed, _second_read(context, kind.kernel, statistics))
    # fp32 norms of 16-bit activations: the cast saves nothing, the norm saves the fp32 copy.
    if not fp32:
        return normed
    label = f"{name}.cast" if name else ""
    cast = Identity(module=module, role=Role.CAST, serves=Role.NORM, name=label)
    return sequence(kernel(context, Kernel(cast, "cast", rows, hidden)), normed)


def soft_cap(context: LayerContext, what: Identity, rows: IntArray, width: IntArray) -> Pass:
    """Returns cap * tanh(x / cap) over rows x width, as plain PyTorch writes it (transformers
    models/gemma2/modeling_gemma2.py): a division, tanh, which saves its output, and a product; priced as kernels that
    move as many bytes."""

    def step(word: str, moves: str, saved_bytes: FloatArray) -> Pass:
        named = Kernel(
            OpKey(what.module, what.role).named(f"{what.name}.{word}"), moves, rows, width, saved_bytes=saved_bytes
        )
        return kernel(context, named)

    saved = context.activations(rows, width)
    return sequence(
        step("divide", "copy", 0.0 * saved), step("tanh", "gelu", saved), step("multiply", "copy", 0.0 * saved)
    )


# apex/csrc/layer_norm_cuda_kernel.cu: cuApplyLayerNorm reads a row for its moments and again to norm it;
# backward cuComputeGradInput reads input and gradient for two sums and again for the result,
# cuComputePartGradGammaBeta both once more. At the modelled rate that is 80 and 184 us where apex pull
# request 1037 measured 75 and 176 (A100-40GB, 16,384 rows of 1,024 in fp16), so rows are not found in a
# cache.
APEX_READS = {"forward": 2.0, "backward": 6.0}


def _second_read(context: LayerContext, norm_kernel: str, statistics: Kernel) -> Pass:
    """Returns the reads of a norm in two passes beyond one in one pass: whole tensors, of which nothing is written."""
    traffic = KERNELS[norm_kernel]
    (forward,) = kernel(context, statistics).forward
    (backward,) = kernel(context, replace(statistics, kernel="bias")).backward
    return Pass(
        forward=(replace(forward, repeat=int(APEX_READS["forward"] - traffic.forward_reads)),),
        backward=(replace(backward, repeat=int(APEX_READS["backward"] - traffic.backward_reads)),),
    )


def residual(context: LayerContext, module: Module, rows: IntArray, name: str = "") -> Pass:
    """Returns the addition of a branch to the residual stream; with dropout, a byte of mask per element is kept."""
    hidden, dropout = context.model.hidden, context.job.dropout
    return kernel(
        context,
        Kernel(
            Identity(module=module, role=Role.RESIDUAL, name=name),
            "bias_dropout_add" if dropout else "add",
            rows,
            hidden,
            saved_bytes=float(dropout) * rows * hidden,
        ),
    )


# Parameters that operations own, tensor by tensor: what collectives over lists of them, and owners of whole ones, count.


def num_tensors(piece: Pass, owner: Owner | None = None) -> IntArray:
    """Returns the parameters that a piece owns (``owner``'s alone, where it is given), per row."""
    own = (op for op in piece.forward if owner is None or op.owner is owner)
    return sum((ints(op.parameters > 0) * sum(tensors_of(op)) for op in own), ints(0))


def tensors_of(op: Op) -> tuple[int, int]:
    """Returns the matrices of an operation that owns parameters, a product's weight or a table, and its vectors: a
    product's bias, a norm's scale and shift."""
    if isinstance(op, BatchedGemm):
        return 1, int(op.bias)
    vectors = KERNELS[op.kernel].vectors if isinstance(op, MemoryBound) else 0
    return int(isinstance(op, GroupedGemm) or op.role is Role.TABLE), vectors
