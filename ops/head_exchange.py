"""Tokens exchanged for heads around what mixes tokens, and back (Ulysses, arXiv 2309.14509 sec. 3).

A rank that holds a part of the tokens, with all heads, hands each other rank its heads' share of them and ends up
with all tokens of its own heads.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.op import Axis, Comm, Phase, Piece
from ops.roles import Identity, Module, Role
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTensor:
    """An activation of ``dim`` channels for each of a layer's ``heads``."""

    name: str
    heads: int
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTensors:
    """What goes ``into`` the part of a mixer that needs the whole sequence of some heads, and comes ``out``;
    ``module`` is the mixer's."""

    module: Module
    into: tuple[HeadTensor, ...]
    out: tuple[HeadTensor, ...]


def exchanged_over_tp(context: LayerContext, tensors: HeadTensors) -> tuple[Piece, Piece]:
    """Before and after, where tokens are cut over tp; fewer heads than ranks are repeated first (InternEvo,
    expandKVPacked)."""
    tp = context.layout.tp
    rows = ceil_div(context.tokens, tp)

    def exchange(tensor: HeadTensor) -> Comm:
        heads = np.maximum(tensor.heads, tp)
        what = _exchange(tensors.module, f"{tensor.name}_exchange")
        return _all_to_all(context, what, Axis.TP, rows * heads * tensor.dim)

    return _both_ways(tensors, exchange)


def exchanged_over_cp(context: LayerContext, tensors: HeadTensors) -> tuple[Piece, Piece]:
    """Before and after, where all-to-all context parallelism cuts the tokens over cp and tp the heads; nothing
    for a ring."""
    layout = context.layout
    if not context.exchanges_context or not np.any(layout.cp > 1):
        return Piece(), Piece()

    def exchange(tensor: HeadTensor) -> Comm:
        heads = np.maximum(ceil_div(layout.constant(tensor.heads), layout.tp), 1)
        what = _exchange(tensors.module, f"{tensor.name}_context")
        return _all_to_all(context, what, Axis.CP, context.tokens * heads * tensor.dim)

    return _both_ways(tensors, exchange)


def _exchange(module: Module, name: str) -> Identity:
    return Identity(module=module, role=Role.HEAD_EXCHANGE, name=f"{module}.{name}")


def _all_to_all(context: LayerContext, what: Identity, axis: Axis, elements: IntArray) -> Comm:
    """``elements`` of one rank, as many before as after."""
    return Comm(
        module=what.module,
        role=what.role,
        name=what.name,
        phase=Phase.FORWARD,
        collective=Collective.ALL_TO_ALL,
        axis=axis,
        size_bytes=(elements * context.activation_bytes).astype(np.int64),
        dtype=context.job.precision.activation,
    )


def _both_ways(tensors: HeadTensors, exchange: Callable[[HeadTensor], Comm]) -> tuple[Piece, Piece]:
    """Gradients take the same ways backward, last first."""

    def mirrored(side: tuple[HeadTensor, ...]) -> Piece:
        forward = tuple(exchange(tensor) for tensor in side)
        backward = tuple(replace(op, phase=Phase.INPUT_GRAD) for op in reversed(forward))
        return Piece(forward=forward, backward=backward)

    return mirrored(tensors.into), mirrored(tensors.out)
