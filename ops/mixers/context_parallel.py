"""Sequences longer than one rank: keys and values travel a ring, or are gathered.

Ring attention (arXiv 2310.01889 sec. 3): every rank attends to one block of keys and values after
another while the next one is on its way. Causal work is balanced by giving each rank a block from the
front and one from the back of the sequence (Llama 3, arXiv 2407.21783 sec. 3.3.2; Megatron-LM and PyTorch do the
same), so that after the first, causal, step every step is half a block of full attention.

Gathered (ibid.; Megatron-LM cp_comm_type "all_gather", torchtitan's context_parallel_rotate_method
"allgather"): PyTorch gathers beside the first step, then takes the same steps, and hands on gradients in fp32
as in a ring. Transformer Engine waits for the gather, attends from each of its two blocks to all keys before
it in one call, and reduce-scatters their gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.mixers.attention_kernels import repeats_keys
from ops.op import Attention, Axis, Comm, Lane, MemoryBound, Pass, Phase, collective, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.mixers.attention import AttentionSpec

# What moves bytes around attention to one part of a sequence after another: results merged, gradients added up.
#
# Counted for the rank that holds the sequence's last block, to which the first half of every other part matters (no rank
# does more), per element of the output, the queries and the keys and values.
#
# - "fused": Transformer Engine (``pytorch/attention/dot_product_attention/context_parallel.py``, AttnFuncWithCPAndKVP2P; of an
#   all-gather AttnFuncWithCPAndKVAllGather, whose two calls give different rows, so that nothing is merged);
# - "torch": PyTorch (``torch/distributed/tensor/experimental/_attention.py``, _SDPAMerger,
#   _templated_ring_attention and its backward): in fp32, one elementwise kernel after another.
#
# Softmax statistics, one number a row and head, are left out.

CORE = OpKey(Module.ATTENTION, Role.CORE)
FP32_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Sizes of one call: elements of the ``output``, of the ``queries`` and of its own ``keys`` and values;
    ``later`` parts follow the first."""

    output: FloatArray
    queries: FloatArray
    keys: FloatArray
    later: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyKernel:
    """``times`` kernels that read and write ``moved_bytes`` each."""

    name: str
    moved_bytes: FloatArray
    times: IntArray | int = 1


def around_parts(context: LayerContext, parts: Parts) -> Pass:
    """Returns the kernels of a ring or of an all-gather, as the preset's framework runs them."""
    a = context.activation_bytes
    gathers = context.job.context_parallel == "all_gather"
    if context.job.preset.tensor_parallel.partial_attention == "torch":
        forward, backward = _torch(parts, a)
        # Held until the last step: PyTorch's merged output, a step's output and their difference in fp32; Transformer
        # Engine's gathered keys and one output, or the outputs of all steps of its ring.
        transient_bytes = 3.0 * FP32_BYTES * parts.output
    elif gathers:
        forward, backward = _fused_gather(parts, a)
        transient_bytes = a * (parts.output + (parts.later + 1) * parts.keys)
    else:
        forward, backward = _fused_ring(parts, a)
        transient_bytes = a * parts.output * (parts.later + 1)
    return Pass(
        forward=_kernels(context, forward, Phase.FORWARD, transient_bytes),
        backward=_kernels(context, backward, Phase.INPUT_GRAD, 0.0 * transient_bytes),
    )


def _fused_ring(parts: Parts, a: float) -> tuple[list[CopyKernel], list[CopyKernel]]:
    """Returns Transformer Engine's kernels of a ring, forward and backward: keys and values joined to travel, half of
    them copied for each later call; outputs scaled by what their part weighs, the first by itself, the others onto
    it; gradients added up in 16 bits."""
    # Bytes moved by each kernel: a copy reads and writes (2), an addition reads two and writes one (3).
    o, q, kv, later = parts.output, parts.queries, parts.keys, parts.later
    halves = CopyKernel(name="half_keys", moved_bytes=a * kv, times=later)
    join = CopyKernel(name="join_keys", moved_bytes=2 * a * kv)
    forward = [
        join,
        halves,
        CopyKernel(name="first_output", moved_bytes=2 * a * o),
        CopyKernel(name="merge_outputs", moved_bytes=3 * a * o, times=later),
    ]
    backward = [
        join,
        halves,
        CopyKernel(name="first_gradient", moved_bytes=2 * a * (q + kv)),
        CopyKernel(name="add_query_gradients", moved_bytes=3 * a * q, times=later),
        CopyKernel(name="add_key_gradients", moved_bytes=1.5 * a * kv, times=later),
    ]
    return forward, backward


def _fused_gather(parts: Parts, a: float) -> tuple[list[CopyKernel], list[CopyKernel]]:
    """Returns Transformer Engine's kernels around an all-gather: gathered keys and values brought into the sequence's
    order, the two outputs copied to their rows; both calls' gradients of all keys and values added up, and brought
    back into the ranks' order."""
    everything = parts.keys * (parts.later + 1)
    ordered = CopyKernel(name="order_keys", moved_bytes=2 * a * everything)
    forward = [ordered, CopyKernel(name="both_outputs", moved_bytes=2 * a * parts.output)]
    backward = [
        ordered,
        CopyKernel(name="both_gradients", moved_bytes=2 * a * parts.queries),
        CopyKernel(name="add_key_gradients", moved_bytes=3 * a * everything, times=2),
        CopyKernel(name="order_key_gradients", moved_bytes=2 * a * everything),
    ]
    return forward, backward


def _torch(parts: Parts, a: float) -> tuple[list[CopyKernel], list[CopyKernel]]:
    """Returns PyTorch's kernels: every output to fp32, then ``out - sigmoid(...) * (out - block)``; gradients added
    in fp32, those of keys and values put together again (_partial_update) and joined to travel each time."""
    o, q, kv, later = parts.output, parts.queries, parts.keys, parts.later
    every = later + 1
    join = CopyKernel(name="join_keys", moved_bytes=2 * a * kv, times=later)
    added = a + 2 * FP32_BYTES
    forward = [
        join,
        CopyKernel(name="widen_outputs", moved_bytes=(a + FP32_BYTES) * o, times=every),
        CopyKernel(name="subtract_outputs", moved_bytes=3 * FP32_BYTES * o, times=2 * later),
        CopyKernel(name="scale_outputs", moved_bytes=2 * FP32_BYTES * o, times=later),
        CopyKernel(name="narrow_output", moved_bytes=(a + FP32_BYTES) * o),
    ]
    backward = [
        join,
        CopyKernel(name="add_query_gradients", moved_bytes=added * q, times=every),
        CopyKernel(name="add_first_key_gradients", moved_bytes=added * kv),
        CopyKernel(name="add_key_gradients", moved_bytes=added * kv / 2, times=later),
        CopyKernel(name="update_key_gradients", moved_bytes=2 * FP32_BYTES * kv, times=later),
        CopyKernel(name="join_key_gradients", moved_bytes=2 * FP32_BYTES * kv, times=every),
        CopyKernel(name="narrow_gradients", moved_bytes=(a + FP32_BYTES) * (q + kv)),
    ]
    return forward, backward


def _kernels(
    context: LayerContext, moved: Sequence[CopyKernel], phase: Phase, transient_bytes: FloatArray
) -> tuple[MemoryBound, ...]:
    """Returns each kernel as a copy of as many bytes, nothing where sequences are whole; the first holds
    ``transient_bytes``."""
    several = context.layout.cp > 1
    a = context.activation_bytes
    result = []
    for index, one in enumerate(moved):
        rows = np.where(several, np.ceil(one.moved_bytes / (2.0 * a)), 0.0).astype(np.int64)
        what = CORE.served_by(Role.COPY, f"attention.{one.name}")
        copied = memory_pass(what, phase, "copy", rows, context.job.precision.activation)
        transient = np.where(several & (index == 0), transient_bytes, 0.0)
        result.append(replace(copied, repeat=one.times, transient_bytes=transient))
    return tuple(result)


ROLES = {Collective.P2P: Role.RING_P2P, Collective.ALL_GATHER: Role.GATHER, Collective.REDUCE_SCATTER: Role.REDUCE}
RING = OpKey(Module.ATTENTION, Role.RING)


def parts_of_sequence(context: LayerContext, attention: AttentionSpec, first: Attention) -> Pass:
    """Returns what follows the ``first`` call, to the rank's own keys: attention to the others' as they come, and
    what it takes to bring and to merge them."""
    layout = context.layout
    torch = context.job.preset.tensor_parallel.partial_attention == "torch"
    kv_heads = first.heads if repeats_keys(context, attention) else first.kv_heads
    keys = context.tokens * kv_heads * float(attention.qk_dim + attention.v_dim)
    parts = Parts(
        output=context.tokens * first.heads * float(attention.v_dim),
        queries=context.tokens * first.heads * float(attention.qk_dim),
        keys=keys,
        later=layout.cp - 1,
    )
    gathers = context.job.context_parallel == "all_gather"
    steps = _later_calls(context, first, at_once=gathers and not torch)
    keys_bytes = keys * context.activation_bytes
    if not gathers:
        # Gradients go along in the format they are added up in.
        brought = _ring_messages(context, keys_bytes, gradients=2.0 if torch else 1.0)
    elif torch:
        brought = _gather_alongside(context, keys_bytes)
    else:
        brought = _gather_first(context, keys_bytes)
    return sequence(brought, steps, around_parts(context, parts))


def _later_calls(context: LayerContext, first: Attention, *, at_once: bool) -> Pass:
    """Returns full attention to half of each other rank's keys, one after another or ``at_once``."""
    others = context.layout.cp - 1
    others_at_once: IntArray = np.maximum(others * at_once, 1)
    later = replace(
        first,
        role=Role.RING,
        name="",
        mask="full",
        # With a block from the front and one from the back a rank sees, of every other rank's keys, all to half of
        # its queries or half to all of them: half a full block each.
        kv_len=np.maximum(first.kv_len // 2, 1) * others_at_once,
        repeat=np.minimum(others, 1) if at_once else others,
        saved_bytes=0.0 * first.saved_bytes,
        input_bytes=0.0 * first.input_bytes,
    )
    return Pass(forward=(later,), backward=(replace(later, phase=Phase.INPUT_GRAD, direction="backward"),))


def _ring_messages(context: LayerContext, keys_bytes: FloatArray, *, gradients: float) -> Pass:
    """Returns the messages of a ring: a block a step beside its attention; the backward's brings ``gradients`` times
    as many bytes of gradients."""

    def message(phase: Phase, blocks: float) -> Comm:
        return _comm(context, phase, Collective.P2P, blocks * keys_bytes, overlaps=RING)

    return Pass(forward=(message(Phase.FORWARD, 1.0),), backward=(message(Phase.INPUT_GRAD, 1.0 + gradients),))


def _gather_alongside(context: LayerContext, keys_bytes: FloatArray) -> Pass:
    """Returns the gather of all keys and values beside the first call of either pass; gradients in fp32 travel beside
    the later calls, and once more after the last."""
    everything = keys_bytes * context.layout.cp

    def gather(phase: Phase) -> Comm:
        return _comm(context, phase, Collective.ALL_GATHER, everything, overlaps=CORE)

    message = _comm(context, Phase.INPUT_GRAD, Collective.P2P, 2.0 * keys_bytes, overlaps=RING)
    # After the last step the gradients of a rank's own keys are still with its neighbour.
    home = replace(message, lane=Lane.MAIN, overlaps=None, repeat=1)
    return Pass(forward=(gather(Phase.FORWARD),), backward=(gather(Phase.INPUT_GRAD), message, home))


def _gather_first(context: LayerContext, keys_bytes: FloatArray) -> Pass:
    """Returns the gather of all keys and values before the calls of either pass, and the reduction of their gradients
    after the backward's."""
    everything = keys_bytes * context.layout.cp

    def whole(phase: Phase, kind: Collective) -> Comm:
        return _comm(context, phase, kind, everything)

    gather, scatter = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    return Pass(
        forward=(whole(Phase.FORWARD, gather),),
        backward=(whole(Phase.INPUT_GRAD, gather), whole(Phase.INPUT_GRAD, scatter)),
    )


def _comm(
    context: LayerContext, phase: Phase, kind: Collective, size_bytes: FloatArray, overlaps: OpKey | None = None
) -> Comm:
    """Returns a collective over cp; of messages one to the next rank for every other rank."""
    several = context.layout.cp > 1
    is_message = kind is Collective.P2P
    return replace(
        collective(
            OpKey(Module.ATTENTION, ROLES[kind], None if is_message else Role.CORE),
            phase,
            kind,
            Axis.CP,
            np.where(several, size_bytes, 0.0),
            context.job.precision.activation,
        ),
        lane=Lane.OVERLAP if overlaps else Lane.MAIN,
        overlaps=overlaps,
        overlap_phase=phase,
        repeat=context.layout.cp - 1 if is_message else 1,
    )
