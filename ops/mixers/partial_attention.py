"""What moves bytes around attention to one part of a sequence after another: results merged, gradients added up.

Counted for the rank that holds the sequence's last block, to which the first half of every other part matters (no rank
does more), per element of the output, the queries and the keys and values.

- "fused": Transformer Engine (``pytorch/attention/dot_product_attention/context_parallel.py``, AttnFuncWithCPAndKVP2P; of an
  all-gather AttnFuncWithCPAndKVAllGather, whose two calls give different rows, so that nothing is merged);
- "torch": PyTorch (``torch/distributed/tensor/experimental/_attention.py``, _SDPAMerger,
  _templated_ring_attention and its backward): in fp32, one elementwise kernel after another.

Softmax statistics, one number a row and head, are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import MemoryBound, Phase, Piece
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray

CORE = OpKey(Module.ATTENTION, Role.CORE)
WIDE = 4.0  # bytes of fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Sizes of one call: elements of the ``output``, of the ``queries`` and of its own ``keys`` and values;
    ``later`` parts follow the first."""

    output: FloatArray
    queries: FloatArray
    keys: FloatArray
    later: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """``times`` kernels that read and write ``moved_bytes`` each."""

    name: str
    moved_bytes: FloatArray
    times: IntArray | int = 1


def around_parts(context: LayerContext, parts: Parts) -> Piece:
    """The kernels of a ring or of an all-gather, as the preset's framework runs them."""
    a = context.activation_bytes
    gathers = context.job.context_parallel == "all_gather"
    if context.job.preset.tensor_parallel.partial_attention == "torch":
        forward, backward = _torch(parts, a)
        held = 3.0 * WIDE * parts.output
    elif gathers:
        forward, backward = _fused_gather(parts, a)
        held = a * (parts.output + (parts.later + 1) * parts.keys)
    else:
        forward, backward = _fused_ring(parts, a)
        held = a * parts.output * (parts.later + 1)
    return Piece(
        forward=_kernels(context, forward, Phase.FORWARD, held),
        backward=_kernels(context, backward, Phase.INPUT_GRAD, 0.0 * held),
    )


def _fused_ring(parts: Parts, a: float) -> tuple[list[Moved], list[Moved]]:
    """Keys and values joined to travel, half of them copied for each later call; outputs scaled by what their part
    weighs, the first by itself, the others onto it; gradients added up in 16 bits."""
    o, q, kv, later = parts.output, parts.queries, parts.keys, parts.later
    halves = Moved(name="half_keys", moved_bytes=a * kv, times=later)
    joined = Moved(name="join_keys", moved_bytes=2 * a * kv)
    forward = [
        joined,
        halves,
        Moved(name="first_output", moved_bytes=2 * a * o),
        Moved(name="merge_outputs", moved_bytes=3 * a * o, times=later),
    ]
    backward = [
        joined,
        halves,
        Moved(name="first_gradient", moved_bytes=2 * a * (q + kv)),
        Moved(name="add_query_gradients", moved_bytes=3 * a * q, times=later),
        Moved(name="add_key_gradients", moved_bytes=1.5 * a * kv, times=later),
    ]
    return forward, backward


def _fused_gather(parts: Parts, a: float) -> tuple[list[Moved], list[Moved]]:
    """Gathered keys and values brought into the sequence's order, the two outputs copied to their rows; both calls'
    gradients of all keys and values added up, and brought back into the ranks' order."""
    everything = parts.keys * (parts.later + 1)
    ordered = Moved(name="order_keys", moved_bytes=2 * a * everything)
    forward = [ordered, Moved(name="both_outputs", moved_bytes=2 * a * parts.output)]
    backward = [
        ordered,
        Moved(name="both_gradients", moved_bytes=2 * a * parts.queries),
        Moved(name="add_key_gradients", moved_bytes=3 * a * everything, times=2),
        Moved(name="order_key_gradients", moved_bytes=2 * a * everything),
    ]
    return forward, backward


def _torch(parts: Parts, a: float) -> tuple[list[Moved], list[Moved]]:
    """Every output to fp32, then ``out - sigmoid(...) * (out - block)``; gradients added in fp32, those of keys and
    values put together again (_partial_update) and joined to travel each time."""
    o, q, kv, later = parts.output, parts.queries, parts.keys, parts.later
    every = later + 1
    joined = Moved(name="join_keys", moved_bytes=2 * a * kv, times=later)
    added = a + 2 * WIDE
    forward = [
        joined,
        Moved(name="widen_outputs", moved_bytes=(a + WIDE) * o, times=every),
        Moved(name="subtract_outputs", moved_bytes=3 * WIDE * o, times=2 * later),
        Moved(name="scale_outputs", moved_bytes=2 * WIDE * o, times=later),
        Moved(name="narrow_output", moved_bytes=(a + WIDE) * o),
    ]
    backward = [
        joined,
        Moved(name="add_query_gradients", moved_bytes=added * q, times=every),
        Moved(name="add_first_key_gradients", moved_bytes=added * kv),
        Moved(name="add_key_gradients", moved_bytes=added * kv / 2, times=later),
        Moved(name="update_key_gradients", moved_bytes=2 * WIDE * kv, times=later),
        Moved(name="join_key_gradients", moved_bytes=2 * WIDE * kv, times=every),
        Moved(name="narrow_gradients", moved_bytes=(a + WIDE) * (q + kv)),
    ]
    return forward, backward


def _kernels(
    context: LayerContext, moved: Sequence[Moved], phase: Phase, held_bytes: FloatArray
) -> tuple[MemoryBound, ...]:
    """Each as a copy of as many bytes, nothing where sequences are whole; the first holds ``held_bytes``."""
    several = context.layout.cp > 1
    a = context.activation_bytes
    found = []
    for index, one in enumerate(moved):
        rows = np.where(several, np.ceil(one.moved_bytes / (2.0 * a)), 0.0).astype(np.int64)
        what = CORE.served_by(Role.COPY, f"attention.{one.name}")
        copied = memory_pass(what, phase, "copy", rows, context.job.precision.activation)
        held = np.where(several & (index == 0), held_bytes, 0.0)
        found.append(replace(copied, repeat=one.times, transient_bytes=held))
    return tuple(found)
