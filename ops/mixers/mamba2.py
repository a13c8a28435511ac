"""Mamba-2 as Megatron-LM runs it: projection, causal convolution, chunked recurrence, gate, norm, projection.

Sources: arXiv 2405.21060 sec. 6 (the recurrence over chunks as matrix products) and sec. 8.1 (tensor
parallelism over heads); its kernels, mamba_ssm/ops/triton/ssd_combined.py, ``MambaSplitConv1dScanCombinedFn``:
what is kept is the projection's output and the recurrence's, the rest is made again in the backward;
Megatron-LM core/ssm/mamba_mixer.py, ``_ssm_training``, for the norm after them and the order of exchanges.

Heads of a group share B and C, so a group's heads stand side by side in one product. ``Assumption:`` a kernel
that takes head by head finds what they share in the cache, a chunk's causal half costs its whole, and these
products run as fast as batched ones of their shape.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import HeadTensor, HeadTensors, LayerContext
from ops.memory_bound import Kernel, kernel
from ops.mixers.mixer import MixerRow, core_heads, into_mixer, out_of_mixer, projected_heads
from ops.op import BatchedGemm, MemoryBound, Op, Pass, Phase, as_recompute, gemm, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.mixers.mamba2 import Mamba2Spec

FP32_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """A rank's recurrence: ``products`` chunks of groups of heads, each of ``length`` tokens and ``width``
    channels, with ``state`` numbers a channel."""

    products: IntArray
    length: IntArray
    width: IntArray
    state: IntArray


def _channels(spec: Mamba2Spec, heads: IntArray, groups: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the channels of x (and of z, and of the output), and of B and C together."""
    return heads * spec.head_dim, 2 * groups * spec.state_size


def projections(context: LayerContext, spec: Mamba2Spec) -> Pass:
    """Returns z, x, B, C and dt of every token in one product."""
    heads = projected_heads(context, spec.num_heads)
    inner, states = _channels(spec, heads, projected_heads(context, spec.num_groups))
    # z and x: inner each; B and C: states; dt: one a head (in_proj of mamba_mixer.py)
    return into_mixer(context, OpKey(Module.MAMBA2, Role.PROJECTION), 2 * inner + states + heads)


def output(context: LayerContext, spec: Mamba2Spec) -> Pass:
    """Returns the norm over each group's channels, which saves its input, and the product back to hidden states."""
    rows = context.gemm_rows
    inner = projected_heads(context, spec.num_heads) * spec.head_dim
    product = out_of_mixer(context, OpKey(Module.MAMBA2, Role.OUT), inner)
    if not spec.inner_norm:
        return product
    normed = Kernel(
        OpKey(Module.MAMBA2, Role.NORM, Role.OUT).named("mamba2.inner_norm"),
        "rmsnorm",
        rows,
        inner,
        saved_bytes=context.activations(rows, inner),
        parameters=inner,
    )
    return sequence(kernel(context, normed), product)


def core_tensors(spec: Mamba2Spec) -> HeadTensors:
    """Returns the activations that context parallelism exchanges (Megatron-LM core/ssm/mamba_context_parallel.py,
    ``pre_conv_ssm`` and ``post_conv_ssm``)."""
    heads, groups = spec.num_heads, spec.num_groups
    return HeadTensors(
        module=Module.MAMBA2,
        into=(
            HeadTensor(name="z", heads=heads, dim=spec.head_dim),
            HeadTensor(name="x", heads=heads, dim=spec.head_dim),
            HeadTensor(name="b", heads=groups, dim=spec.state_size, repeats=True),
            HeadTensor(name="c", heads=groups, dim=spec.state_size, repeats=True),
            HeadTensor(name="dt", heads=heads, dim=1),
        ),
        out=(HeadTensor(name="y", heads=heads, dim=spec.head_dim),),
    )


def core(context: LayerContext, spec: Mamba2Spec) -> Pass:
    """Returns convolution, decays, recurrence and gate; the backward makes what it needs of the first three again."""
    layout, length = context.layout, context.core_sequence
    heads, groups = (core_heads(context, count) for count in (spec.num_heads, spec.num_groups))
    # A head of a chunk is C tokens x P channels with N numbers of state a channel; heads of a group share B and C.
    chunk = np.minimum(length, spec.chunk_size)
    chunks = Chunks(
        products=layout.micro_batch * ceil_div(length, chunk) * groups,
        length=chunk,
        width=ceil_div(heads * spec.head_dim, groups),
        state=layout.constant(spec.state_size),
    )
    convolution, decays, gate = _passes(context, spec)
    recurrence = chunked_recurrence(context, chunks, Module.MAMBA2)
    # [:3] states, their pass from chunk to chunk, and C B^T; the two products that give the output are not needed
    # again
    recomputed = (*convolution.forward, *decays.forward, *recurrence.forward[:3])
    return Pass(
        forward=(*convolution.forward, *decays.forward, *recurrence.forward, *gate.forward),
        backward=(
            *gate.backward,
            *map(as_recompute, recomputed),
            *recurrence.backward,
            *decays.backward,
            *convolution.backward,
        ),
    )


def _passes(context: LayerContext, spec: Mamba2Spec) -> tuple[Pass, Pass, Pass]:
    """Returns the convolution over x, B and C with its SiLU; softplus(dt) and its running sum over a chunk, both
    fp32; the output times SiLU(z). Saved: all that came in, and what the gate reads."""
    rows = context.layout.micro_batch * context.core_sequence
    heads, groups = (core_heads(context, count) for count in (spec.num_heads, spec.num_groups))
    inner, states = _channels(spec, heads, groups)
    own_heads = projected_heads(context, spec.num_heads)
    own_inner, own_states = _channels(spec, own_heads, projected_heads(context, spec.num_groups))
    convolution = Kernel(
        OpKey(Module.MAMBA2, Role.CONVOLUTION),
        "causal_conv1d",
        rows,
        inner + states,
        saved_bytes=context.activations(rows, 2 * inner + states + heads),
        transient_bytes=context.activations(rows, inner + states),
        parameters=(spec.conv_kernel + 1) * (own_inner + own_states),
    )
    decays = Kernel(
        OpKey(Module.MAMBA2, Role.CORE).named("mamba2.decays"),
        "cast",
        rows,
        2 * heads,
        # A_log, D and dt_bias, one number a head each
        parameters=3 * own_heads,
    )
    gate = Kernel(
        OpKey(Module.MAMBA2, Role.CORE).named("mamba2.gate"),
        "swiglu",
        rows,
        inner,
        saved_bytes=context.activations(rows, inner),
    )
    return kernel(context, convolution), kernel(context, decays), kernel(context, gate)


def chunked_recurrence(context: LayerContext, chunks: Chunks, module: Module, *, learned_decays: bool = True) -> Pass:
    """Returns the products of sec. 6 for each chunk (the state it ends with, C B^T and its part of the output, the
    part that the state before it gives) and the pass of states from chunk to chunk; the first three are what the
    backward makes again. Backward as ``_mamba_chunk_scan_combined_bwd`` has it: the gradient of the decays takes the
    product of x and the output's gradient once more, unless they are fixed."""
    length, width, state = chunks.length, chunks.width, chunks.state

    def product(name: str, layout: str, m: IntArray, k: IntArray, n: IntArray) -> BatchedGemm:
        return gemm(
            OpKey(module, Role.CORE).named(f"{module}.{name}"),
            Phase.INPUT_GRAD if name.startswith("d_") else Phase.FORWARD,
            (chunks.products, m, k, n),
            layout,
            context.job.precision.activation,
        )

    states = chunks.products * state * width
    scores_bytes = FP32_BYTES * chunks.products * length * length
    forward: tuple[Op, ...] = (
        # (layout, m, k, n): states are N x C times C x P, scores C x N times N x C, outputs C x C times C x P and C x
        # N times N x P
        replace(product("states", "TN", state, length, width), transient_bytes=FP32_BYTES * states),
        replace(_pass_states(context, chunks, module), transient_bytes=context.activation_bytes * states),
        replace(product("scores", "NT", length, state, length), transient_bytes=scores_bytes),
        product("within_chunk", "NN", length, length, width),
        product("across_chunks", "NN", length, state, width),
    )
    backward: tuple[Op, ...] = (
        product("d_states", "TN", state, length, width),
        _pass_states(context, chunks, module, backward=True),
        product("d_x_within", "TN", length, length, width),
        product("d_x_across", "NN", length, state, width),
        product("d_b_across", "NT", length, width, state),
        product("d_c_across", "NT", length, width, state),
        product("d_scores", "NT", length, width, length),
        product("d_b_within", "TN", length, length, state),
        product("d_c_within", "NN", length, length, state),
        *((product("d_decays", "NT", length, width, length),) if learned_decays else ()),
    )
    return Pass(forward=forward, backward=backward)


def _pass_states(context: LayerContext, chunks: Chunks, module: Module, *, backward: bool = False) -> MemoryBound:
    """Returns ssd_state_passing.py: each chunk's state decayed and added to the next one's: fp32 read, 16 bits
    written; backward the states and their gradients, so twice both."""
    return MemoryBound(
        module=module,
        role=Role.CORE,
        name=f"{module}.d_pass_states" if backward else f"{module}.pass_states",
        phase=Phase.INPUT_GRAD if backward else Phase.FORWARD,
        kernel="cast",
        rows=chunks.products,
        width=(1 + backward) * chunks.state * chunks.width,
        dtype=context.job.precision.activation,
    )


MAMBA2 = MixerRow(
    module=Module.MAMBA2,
    projections=projections,
    core=core,
    output=output,
    core_tensors=core_tensors,
    context_parallel=frozenset({"all_to_all"}),
)
