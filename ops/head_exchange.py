"""Tokens exchanged for heads around what mixes tokens, and back (Ulysses, arXiv 2309.14509 sec. 3).

A rank that holds a part of the tokens, with all heads, hands each other rank its heads' share of them and ends up
with all tokens of its own heads.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import HeadTensor, HeadTensors, LayerContext
from ops.memory_bound import memory_pass
from ops.op import Axis, Comm, MemoryBound, Op, Pass, Phase, collective
from ops.roles import OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective

# Copies of the whole array beside an all-to-all, by tensor_parallel.exchange_copies: where it hands on heads for
# tokens, and where tokens for heads. One sequence; several a micro-batch cost some of them a copy more.
COPIES = {
    # Transformer Engine, context_parallel.py, flash_attn_a2a_communicate: heads brought to the front; the blocks of the
    # front and the back of the sequence brought into order; the same backwards.
    "reordered": (2, 2),
    # InternEvo, modules/multi_head_attention.py, and XTuner, parallel/sequence/comm.py, _all_to_all: parts of the heads
    # made contiguous (those of the tokens are), received parts joined.
    "lists": (2, 1),
    # DeepSpeed, sequence/layer.py, single_all_to_all: permuted before the one, after the other.
    "permuted": (1, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadExchange:
    """Over the ``ranks`` of ``axis``: each holds ``tokens`` with one of ``cut`` parts of their heads; with
    ``repeats`` these are repeated where they are fewer than the ranks. ``label`` tells the messages of two exchanges
    apart."""

    axis: Axis
    tokens: IntArray
    cut: IntArray
    ranks: IntArray
    repeats: bool
    label: str


def over_tp(context: LayerContext) -> HeadExchange:
    """Returns the exchange of a strategy that cuts tokens over tp and leaves heads whole; fewer heads than ranks are
    repeated (InternEvo, expandKVPacked; DeepSpeed, runtime/sequence_parallel/ulysses_sp.py, kv_replication_factor)."""
    tp, whole = context.layout.tp, context.layout.constant(1)
    tokens = ceil_div(context.tokens, tp)
    return HeadExchange(axis=Axis.TP, tokens=tokens, cut=whole, ranks=tp, repeats=True, label="exchange")


def over_cp(context: LayerContext) -> HeadExchange:
    """Returns the exchange of all-to-all context parallelism, which cuts tokens over cp, and tp the heads.
    ``Assumption:`` heads suffice for all ranks (Transformer Engine refuses fewer)."""
    tp, cp = context.layout.tp, context.layout.cp
    return HeadExchange(axis=Axis.CP, tokens=context.tokens, cut=tp, ranks=cp, repeats=False, label="context")


def exchange_heads(context: LayerContext, tensors: HeadTensors, over: HeadExchange) -> tuple[Pass, Pass]:
    """Returns the passes before and after the core: all-to-alls whose array is ``tokens`` x the heads of a rank's
    part x ``dim``, as large before as after. Gradients take the same messages backward, last first."""

    scatters, gathers = COPIES[context.job.preset.tensor_parallel.exchange_copies]

    def exchange(tensor: HeadTensor, phase: Phase, copies: int) -> tuple[Op, ...]:
        # each rank needs at least one head of its own
        least = over.ranks if over.repeats or tensor.repeats else 1
        heads = np.maximum(ceil_div(context.layout.constant(tensor.heads), over.cut), least)
        elements = over.tokens * heads * tensor.dim
        name = f"{tensors.module}.{tensor.name}_{over.label}"
        message = collective(
            OpKey(tensors.module, Role.HEAD_EXCHANGE).named(name),
            phase,
            Collective.ALL_TO_ALL,
            over.axis,
            elements * context.activation_bytes,
            context.job.precision.activation,
        )
        return message, _copies(context, message, np.where(over.ranks > 1, elements, 0), copies)

    def one_direction(side: tuple[HeadTensor, ...], phase: Phase, copies: int) -> tuple[Op, ...]:
        return tuple(op for tensor in side for op in exchange(tensor, phase, copies))

    def both_directions(side: tuple[HeadTensor, ...], forward: int, backward: int) -> Pass:
        return Pass(
            forward=one_direction(side, Phase.FORWARD, forward),
            backward=one_direction(tuple(reversed(side)), Phase.INPUT_GRAD, backward),
        )

    return both_directions(tensors.into, scatters, gathers), both_directions(tensors.out, gathers, scatters)


def _copies(context: LayerContext, message: Comm, elements: IntArray, copies: int) -> MemoryBound:
    """Returns so many copies of what a ``message`` sends or has brought."""
    key = OpKey(message.module, Role.HEAD_EXCHANGE)
    what = key.served_by(Role.COPY, f"{message.name}_in_order")
    copy = memory_pass(what, message.phase, "copy", elements, context.job.precision.activation)
    return replace(copy, repeat=copies)
