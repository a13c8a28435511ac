"""Attention and Mamba-2 side by side, as transformers models/falcon_h1/modeling_falcon_h1.py runs them: one after the other on one
normed input, whose results an addition joins before the layer's residual; what it multiplies them by costs nothing.
"""

from dataclasses import replace

from ops.context import HeadTensors, LayerContext
from ops.memory_bound import residual
from ops.mixers.attention import ATTENTION
from ops.mixers.mamba2 import MAMBA2
from ops.mixers.mixer import MixerRow
from ops.op import Pass, sequence
from ops.roles import Module, Role
from spec.mixers.side_by_side import SideBySideSpec


def projections(context: LayerContext, mixer: SideBySideSpec) -> Pass:
    """Returns both products in; attention's keeps the input of both."""
    second = MAMBA2.projections(context, mixer.mamba2)
    forward = tuple(
        replace(op, saved_bytes=0.0 * op.saved_bytes) if op.role is Role.PROJECTION else op for op in second.forward
    )
    return sequence(ATTENTION.projections(context, mixer.attention), replace(second, forward=forward))


def core(context: LayerContext, mixer: SideBySideSpec) -> Pass:
    """Returns attention, then the recurrence."""
    return sequence(ATTENTION.core(context, mixer.attention), MAMBA2.core(context, mixer.mamba2))


def output(context: LayerContext, mixer: SideBySideSpec) -> Pass:
    """Returns both products back to hidden states, and their sum."""
    return sequence(
        ATTENTION.output(context, mixer.attention),
        MAMBA2.output(context, mixer.mamba2),
        residual(context, Module.MIXER, context.norm_rows, "side_by_side.sum"),
    )


def core_tensors(mixer: SideBySideSpec) -> HeadTensors:
    """Returns the activations of both."""
    first, second = ATTENTION.core_tensors(mixer.attention), MAMBA2.core_tensors(mixer.mamba2)
    return HeadTensors(module=Module.MIXER, into=(*first.into, *second.into), out=(*first.out, *second.out))


SIDE_BY_SIDE = MixerRow(
    module=Module.MIXER,
    projections=projections,
    core=core,
    output=output,
    core_tensors=core_tensors,
    context_parallel=MAMBA2.context_parallel,
    refuses=lambda mixer: ATTENTION.refuses(mixer.attention),
)
