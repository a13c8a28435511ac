"""Tokens exchanged for heads around what mixes tokens, and back (Ulysses, arXiv 2309.14509 sec. 3).

A rank that holds a part of the tokens, with all heads, hands each other rank its heads' share of them and ends up
with all tokens of its own heads.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.op import Axis, Comm, Phase, Piece
from ops.roles import Module, Role
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTensor:
    """An activation of ``dim`` channels for each of a layer's ``heads``; ``repeats``: fewer heads than ranks are
    repeated, also where others of the layer suffice."""

    name: str
    heads: int
    dim: int
    repeats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTensors:
    """What goes ``into`` the part of a mixer that needs the whole sequence of some heads, and comes ``out``;
    ``module`` is the mixer's."""

    module: Module
    into: tuple[HeadTensor, ...]
    out: tuple[HeadTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Over the ``ranks`` of ``axis``: each holds ``tokens`` with one of ``cut`` parts of their heads; with
    ``repeats`` these are repeated where they are fewer than the ranks. ``label`` tells the messages of two exchanges
    apart."""

    axis: Axis
    tokens: IntArray
    cut: IntArray
    ranks: IntArray
    repeats: bool
    label: str


def over_tp(context: LayerContext) -> Exchange:
    """Where a strategy cuts tokens over tp and leaves heads whole; fewer heads than ranks are repeated
    (InternEvo, expandKVPacked; DeepSpeed, runtime/sequence_parallel/ulysses_sp.py, kv_replication_factor)."""
    tp, whole = context.layout.tp, context.layout.constant(1)
    tokens = ceil_div(context.tokens, tp)
    return Exchange(axis=Axis.TP, tokens=tokens, cut=whole, ranks=tp, repeats=True, label="exchange")


def over_cp(context: LayerContext) -> Exchange:
    """Where all-to-all context parallelism cuts tokens over cp, and tp the heads. ``Assumption:`` heads suffice
    for all ranks (Transformer Engine refuses fewer)."""
    tp, cp = context.layout.tp, context.layout.cp
    return Exchange(axis=Axis.CP, tokens=context.tokens, cut=tp, ranks=cp, repeats=False, label="context")


def exchanged(context: LayerContext, tensors: HeadTensors, over: Exchange) -> tuple[Piece, Piece]:
    """Before and after: all-to-alls whose array is ``tokens`` x the heads of a rank's part x ``dim``, as large
    before as after. Gradients take the same ways backward, last first."""

    def exchange(tensor: HeadTensor) -> Comm:
        least = over.ranks if over.repeats or tensor.repeats else 1
        heads = np.maximum(ceil_div(context.layout.constant(tensor.heads), over.cut), least)
        elements = over.tokens * heads * tensor.dim
        return Comm(
            module=tensors.module,
            role=Role.HEAD_EXCHANGE,
            name=f"{tensors.module}.{tensor.name}_{over.label}",
            phase=Phase.FORWARD,
            collective=Collective.ALL_TO_ALL,
            axis=over.axis,
            size_bytes=(elements * context.activation_bytes).astype(np.int64),
            dtype=context.job.precision.activation,
        )

    def mirrored(side: tuple[HeadTensor, ...]) -> Piece:
        forward = tuple(exchange(tensor) for tensor in side)
        backward = tuple(replace(op, phase=Phase.INPUT_GRAD) for op in reversed(forward))
        return Piece(forward=forward, backward=backward)

    return mirrored(tensors.into), mirrored(tensors.out)
