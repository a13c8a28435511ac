"""The row of a kind of token mixer in the table of ops.mixers.registry, and the linears in and out of one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ops.context import HeadTensors, LayerContext
from ops.linear import column_parallel, row_parallel
from ops.op import Linear, Pass
from ops.roles import Module, OpKey
from spec.arrays import IntArray, ceil_div

Spec = TypeVar("Spec")


def _nothing(_: object) -> frozenset[str]:
    return frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerRow(Generic[Spec]):
    """The operations between a layer's first norm and its first residual add, in three parts; each operation
    says what it saves, owns and moves."""

    module: Module
    """The module of them, and of the norm and the residual add around them too."""
    projections: Callable[[LayerContext, Spec], Pass]
    """From the normed hidden states to what the core reads, token by token."""
    core: Callable[[LayerContext, Spec], Pass]
    """The part that needs a whole sequence: over this rank's heads. It may own weights of more heads than it works on:
    those of the projections."""
    output: Callable[[LayerContext, Spec], Pass]
    """From what the core gives back to hidden states, token by token."""
    core_tensors: Callable[[Spec], HeadTensors]
    """The activations that the core reads and gives: they travel where ranks hold tokens outside the core and heads inside."""
    context_parallel: frozenset[str] = frozenset()
    """The kinds of context parallelism (JobSpec.context_parallel) under which the core can work."""
    refuses: Callable[[Spec], frozenset[str]] = _nothing
    """Returns those of them under which a core of this spec cannot."""

    def cuts_sequences(self, spec: Spec, kind: str) -> bool:
        """Returns whether the core of ``spec`` can work under this ``kind`` of context parallelism."""
        return kind in self.context_parallel and kind not in self.refuses(spec)


# The linears in and out of a mixer, and the share of it that a rank holds.

SAVED_SHARE = {"": 1.0, "e5m6": 12 / 16}
"""Of the bytes of 16-bit activations: a sign, five bits of exponent and six of mantissa."""


def projected_heads(context: LayerContext, heads: int) -> IntArray:
    """Returns the heads whose projections one rank computes; fewer heads than ranks are replicated."""
    shards = context.layout.tp_if(context.traits.cuts_matrices)
    # fewer heads than ranks: each rank computes one of them again
    return np.maximum(ceil_div(context.layout.constant(heads), shards), 1)


def core_heads(context: LayerContext, heads: int) -> IntArray:
    """Returns the heads of the core on one rank: cut over tp, and over cp where context parallelism exchanges."""
    layout = context.layout
    cut = layout.tp * layout.cp if context.exchanges_context else layout.tp
    return np.maximum(ceil_div(layout.constant(heads), cut), 1)


def into_mixer(context: LayerContext, key: OpKey, outputs: IntArray, *, bias: bool = False, matrices: int = 1) -> Pass:
    """Returns the linear from the hidden states, normed unless the block's norms stand elsewhere, cut over tp by its
    ``outputs`` on one rank, with the gradients of so many ``matrices``."""
    hidden = context.model.hidden
    layer = Linear(
        module=key.module,
        role=key.role,
        tokens=context.gemm_rows,
        inputs=context.layout.constant(hidden),
        outputs=outputs,
        saved_bytes=context.activations(context.saved_rows, hidden),
        bias=bias,
        after_norm=context.norm_place.leads,
        gathered="input",
    )
    return column_parallel(context, layer, matrices=matrices)


def out_of_mixer(
    context: LayerContext, key: OpKey, inputs: IntArray, *, bias: bool = False, saved_elsewhere: bool = False
) -> Pass:
    """Returns the linear back to hidden states, cut over tp by its ``inputs`` on one rank, which the mixer may keep as
    well (``saved_elsewhere``), then in the preset's format of it."""
    rows = context.gemm_rows
    layer = Linear(
        module=key.module,
        role=key.role,
        tokens=rows,
        inputs=inputs,
        outputs=context.layout.constant(context.model.hidden),
        saved_bytes=context.activations(rows, inputs),
        bias=bias,
        saved_elsewhere=saved_elsewhere,
        saved_share=SAVED_SHARE[context.job.preset.layers.saved_attention],
        gathered="gradient",
    )
    return row_parallel(context, layer)
