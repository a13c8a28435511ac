"""Sequences longer than one rank: keys and values travel a ring.

Ring attention (arXiv 2310.01889 sec. 3): every rank attends to one block of keys and values after
another while the next one is on its way. Causal work is balanced by giving each rank a block from the
front and one from the back of the sequence (Llama 3, arXiv 2407.21783 sec. 3.3.2; Megatron-LM does the
same), so that after the first, causal, step every step is half a block of full attention.
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.op import Attention, Axis, Comm, Lane, Phase, Piece
from ops.roles import Module, OpKey, Role
from spec.collectives import Collective
from spec.mixers.attention import AttentionSpec


def ring_steps(context: LayerContext, attention: AttentionSpec, first: Attention) -> Piece:
    """The cp - 1 steps after the first: full attention to half of another rank's keys, beside the hop
    that brings the next block. The backward carries the gradients of keys and values along."""
    layout = context.layout
    if not np.any(layout.cp > 1):
        return Piece()
    steps = layout.cp - 1
    later = replace(
        first,
        role=Role.RING,
        name="",
        mask="full",
        kv_len=np.maximum(first.kv_len // 2, 1),
        repeat=steps,
        saved_bytes=0.0 * first.saved_bytes,
        input_bytes=0.0 * first.input_bytes,
    )
    channels = first.kv_heads * (attention.qk_dim + attention.v_dim)
    size = (context.tokens * channels * context.activation_bytes).astype(np.int64)

    def hop(phase: Phase, blocks: int) -> Comm:
        return Comm(
            module=Module.ATTENTION,
            role=Role.RING_HOP,
            phase=phase,
            lane=Lane.BESIDE,
            beside=OpKey(Module.ATTENTION, Role.RING),
            beside_phase=phase,
            repeat=steps,
            collective=Collective.P2P,
            axis=Axis.CP,
            size_bytes=blocks * size,
            dtype=context.job.precision.activation,
        )

    backward = replace(later, phase=Phase.INPUT_GRAD, direction="backward")
    return Piece(
        forward=(hop(Phase.FORWARD, 1), later),
        backward=(hop(Phase.INPUT_GRAD, 2), backward),
    )
