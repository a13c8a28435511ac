"""Sequences longer than one rank: keys and values travel a ring, or are gathered.

Ring attention (arXiv 2310.01889 sec. 3): every rank attends to one block of keys and values after
another while the next one is on its way. Causal work is balanced by giving each rank a block from the
front and one from the back of the sequence (Llama 3, arXiv 2407.21783 sec. 3.3.2; Megatron-LM and PyTorch do the
same), so that after the first, causal, step every step is half a block of full attention.

Gathered (ibid.; Megatron-LM --cp-comm-type all_gather, torchtitan's context_parallel_rotate_method
"allgather"): PyTorch gathers beside the first step, then takes the same steps, and hands on gradients in fp32
as in a ring. Transformer Engine waits for the gather, attends from each of its two blocks to all keys before
it in one call, and reduce-scatters their gradients.
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.mixers.copied_heads import repeats_keys
from ops.mixers.partial_attention import Parts, around_parts
from ops.op import Attention, Axis, Comm, Lane, Phase, Piece, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.mixers.attention import AttentionSpec

ROLES = {
    Collective.P2P: Role.RING_HOP,
    Collective.ALL_GATHER: Role.GATHER,
    Collective.REDUCE_SCATTER: Role.REDUCE,
}
CORE, RING = OpKey(Module.ATTENTION, Role.CORE), OpKey(Module.ATTENTION, Role.RING)


def parts_of_sequence(context: LayerContext, attention: AttentionSpec, first: Attention) -> Piece:
    """What follows the ``first`` call, to the rank's own keys: attention to the others' as they come, and what it
    takes to bring and to merge them."""
    layout = context.layout
    if not np.any(layout.cp > 1):
        return Piece()
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
        brought = _hops(context, keys_bytes, gradients=2.0 if torch else 1.0)
    elif torch:
        brought = _gathered_beside(context, keys_bytes)
    else:
        brought = _gathered_first(context, keys_bytes)
    return sequence(brought, steps, around_parts(context, parts))


def _later_calls(context: LayerContext, first: Attention, *, at_once: bool) -> Piece:
    """Full attention to half of each other rank's keys, one after another or ``at_once``."""
    others = context.layout.cp - 1
    others_at_once: IntArray = np.maximum(others * at_once, 1)
    later = replace(
        first,
        role=Role.RING,
        name="",
        mask="full",
        kv_len=np.maximum(first.kv_len // 2, 1) * others_at_once,
        repeat=np.minimum(others, 1) if at_once else others,
        saved_bytes=0.0 * first.saved_bytes,
        input_bytes=0.0 * first.input_bytes,
    )
    return Piece(forward=(later,), backward=(replace(later, phase=Phase.INPUT_GRAD, direction="backward"),))


def _hops(context: LayerContext, keys_bytes: FloatArray, *, gradients: float) -> Piece:
    """A block a step beside its attention; the backward's brings ``gradients`` times as many bytes of gradients."""

    def hop(phase: Phase, blocks: float) -> Comm:
        return _comm(context, phase, Collective.P2P, blocks * keys_bytes, beside=RING)

    return Piece(forward=(hop(Phase.FORWARD, 1.0),), backward=(hop(Phase.INPUT_GRAD, 1.0 + gradients),))


def _gathered_beside(context: LayerContext, keys_bytes: FloatArray) -> Piece:
    """All keys and values beside the first call of either pass; gradients in fp32 hop beside the later ones, and
    once more after the last."""
    everything = keys_bytes * context.layout.cp

    def gather(phase: Phase) -> Comm:
        return _comm(context, phase, Collective.ALL_GATHER, everything, beside=CORE)

    hop = _comm(context, Phase.INPUT_GRAD, Collective.P2P, 2.0 * keys_bytes, beside=RING)
    home = replace(hop, lane=Lane.MAIN, beside=None, repeat=1)
    return Piece(forward=(gather(Phase.FORWARD),), backward=(gather(Phase.INPUT_GRAD), hop, home))


def _gathered_first(context: LayerContext, keys_bytes: FloatArray) -> Piece:
    """All keys and values before the calls of either pass, their gradients reduced after the backward's."""
    everything = keys_bytes * context.layout.cp

    def whole(phase: Phase, kind: Collective) -> Comm:
        return _comm(context, phase, kind, everything)

    gather, scatter = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    return Piece(
        forward=(whole(Phase.FORWARD, gather),),
        backward=(whole(Phase.INPUT_GRAD, gather), whole(Phase.INPUT_GRAD, scatter)),
    )


def _comm(
    context: LayerContext,
    phase: Phase,
    kind: Collective,
    size_bytes: FloatArray,
    beside: OpKey | None = None,
) -> Comm:
    """Over cp; a message to the next rank once for every other one."""
    several = context.layout.cp > 1
    hops = kind is Collective.P2P
    return Comm(
        module=Module.ATTENTION,
        role=ROLES[kind],
        serves=None if hops else Role.CORE,
        phase=phase,
        lane=Lane.BESIDE if beside else Lane.MAIN,
        beside=beside,
        beside_phase=phase,
        repeat=context.layout.cp - 1 if hops else 1,
        collective=kind,
        axis=Axis.CP,
        size_bytes=np.where(several, size_bytes, 0.0).astype(np.int64),
        dtype=context.job.precision.activation,
    )
