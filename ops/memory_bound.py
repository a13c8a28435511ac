"""Kernels that only move bytes, forward and backward."""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.kernels import KERNELS
from ops.op import KernelCalls, MemoryBound, Ops, Pass, Phase, sequence
from ops.roles import Identity, Module, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.model import NormKind
from spec.parameters import norm_parameters


@dataclass(frozen=True, slots=True)
class Kernel:
    """``kernel`` of ops.kernels over ``rows`` x ``width`` that is ``what``; ``saved_bytes`` kept for its backward and
    ``transient_bytes`` held beside them for a moment; ``dtype`` "" for the activations'; ``stands_for`` as in MemoryBound."""

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
    what: OpKey | Identity,
    phase: Phase,
    kernel: str,
    rows: IntArray,
    dtype: str,
    width: IntArray | None = None,
) -> MemoryBound:
    """Returns one kernel of ops.kernels over rows x ``width`` (1) that keeps nothing and has no twin."""
    width = np.ones_like(rows) if width is None else width
    return MemoryBound(**what.words, phase=phase, kernel=kernel, rows=rows, width=width, dtype=dtype)


def kernel(context: LayerContext, spec: Kernel) -> Pass:
    """Returns the forward kernel and its backward twin."""
    rows, none = spec.rows, np.zeros(spec.rows.shape)
    width = np.broadcast_to(np.asarray(spec.width, dtype=np.int64), rows.shape)
    dtype = spec.dtype or context.job.precision.activation
    twin = memory_pass(spec.what, Phase.INPUT_GRAD, spec.kernel, rows, dtype, width)
    twin = replace(
        twin, saved_bytes=none, transient_bytes=none, parameters=0 * rows, stands_for=spec.stands_for
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
    """The model's normalisation over ``rows`` tokens of the hidden size; it keeps its input."""
    hidden = context.model.hidden
    kind = context.model.norm
    unfused = kind is NormKind.RMS and "norm" in context.job.unfused
    wide = context.job.wide_norms and not unfused
    # Unfused, autograd keeps the input in fp32 (the input itself is not) and, for the weight's gradient, the scaled
    # input in 16 bits.
    scaled_bytes = 0.0 if context.job.adapter_rank else context.activation_bytes
    kept_bytes = scaled_bytes + 4.0 if unfused else 4.0 if wide else context.activation_bytes
    normed = kernel(
        context,
        Kernel(
            OpKey(module, Role.NORM).named(name),
            f"{kind.kernel}_unfused" if unfused else kind.kernel,
            rows,
            hidden,
            saved_bytes=kept_bytes * rows * hidden,
            parameters=norm_parameters(kind, hidden),
            dtype="fp32" if wide else "",
        ),
    )
    if context.job.preset.layers.two_pass_norms and not unfused:
        normed = sequence(normed, _read_again(context, normed, f"{name}.{Role.STATISTICS}" if name else ""))
    if not wide:
        return normed
    cast = Kernel(
        OpKey(module, Role.CAST, Role.NORM).named(f"{name}.cast" if name else ""), "cast", rows, hidden
    )
    return sequence(kernel(context, cast), normed)


def soft_cap(context: LayerContext, what: Identity, rows: IntArray, width: IntArray) -> Pass:
    """cap * tanh(x / cap) over rows x width, as plain PyTorch writes it (transformers
    models/gemma2/modeling_gemma2.py): a division, tanh, which keeps its output, and a product; priced as
    kernels that move as many bytes."""

    def step(word: str, moves: str, saved_bytes: FloatArray) -> Pass:
        named = Kernel(
            OpKey(what.module, what.role).named(f"{what.name}.{word}"),
            moves,
            rows,
            width,
            saved_bytes=saved_bytes,
        )
        return kernel(context, named)

    kept = context.activations(rows, width)
    return sequence(
        step("divide", "copy", 0.0 * kept), step("tanh", "gelu", kept), step("multiply", "copy", 0.0 * kept)
    )


# apex/csrc/layer_norm_cuda_kernel.cu: cuApplyLayerNorm reads a row for its moments and again to norm it;
# backward cuComputeGradInput reads input and gradient for two sums and again for the result,
# cuComputePartGradGammaBeta both once more. At the modelled rate that is 80 and 184 us where apex pull
# request 1037 measured 75 and 176 (A100-40GB, 16,384 rows of 1,024 in fp16), so rows are not found in a
# cache.
APEX_READS = {"forward": 2.0, "backward": 6.0}


def _read_again(context: LayerContext, normed: Pass, name: str) -> Pass:
    """What a norm in two passes reads beyond the ``normed`` one in one pass: whole tensors, of which nothing
    is written.
    """
    one_pass = normed.forward[0]
    if not isinstance(one_pass, MemoryBound):
        raise TypeError("a norm is a memory-bound kernel")
    again = one_pass.key.served_by(Role.STATISTICS, name)

    def reads(kernel_name: str) -> Pass:
        return kernel(
            context,
            Kernel(
                again,
                kernel_name,
                one_pass.rows,
                one_pass.width,
                saved_bytes=0.0 * one_pass.saved_bytes,
                dtype=one_pass.dtype,
            ),
        )

    def times(ops: Ops, count: float) -> Ops:
        return tuple(replace(op, repeat=int(count)) for op in ops)

    traffic = KERNELS[one_pass.kernel]
    return Pass(
        forward=times(reads("norm_reduce").forward, APEX_READS["forward"] - traffic.forward_reads),
        backward=times(reads("bias").backward, APEX_READS["backward"] - traffic.backward_reads),
    )


def residual(context: LayerContext, module: Module, rows: IntArray, name: str = "") -> Pass:
    """Adding a branch to the residual stream; with dropout, a byte of mask per element is kept."""
    hidden = context.model.hidden
    dropout = context.job.dropout
    return kernel(
        context,
        Kernel(
            OpKey(module, Role.RESIDUAL).named(name),
            "bias_dropout_add" if dropout else "add",
            rows,
            hidden,
            saved_bytes=float(dropout) * rows * hidden,
        ),
    )
