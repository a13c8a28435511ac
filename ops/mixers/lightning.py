"""Lightning attention: queries, keys and values behind SiLU, a recurrence over chunks, a norm, a gate.

Source: transformers models/minimax/modeling_minimax.py, MiniMaxLightningAttention, for the order of things; arXiv 2405.17381 sec. 3.2
for the recurrence, whose products within a chunk and through the state are Mamba-2's (arXiv 2405.21060 sec. 7.2: keys for B, queries
for C, values for x), one group a head, without gradients of decays, and whose backward makes states and scores again.
"""

import numpy as np

from ops.context import HeadTensor, HeadTensors, LayerContext
from ops.memory_bound import Kernel, kernel
from ops.mixers.mamba2 import Chunks, chunked_recurrence
from ops.mixers.mixer import MixerRow, core_heads, into_mixer, out_of_mixer, projected_heads
from ops.op import Pass, as_recompute, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import ceil_div
from spec.mixers.lightning import LightningSpec


def projections(context: LayerContext, mixer: LightningSpec) -> Pass:
    """Returns queries, keys, values and gates of every token in one product."""
    inner = projected_heads(context, mixer.num_heads) * mixer.head_dim
    return into_mixer(context, OpKey(Module.LIGHTNING, Role.PROJECTION), 4 * inner)


def core(context: LayerContext, mixer: LightningSpec) -> Pass:
    """Returns SiLU of queries, keys and values, which keeps what it reads, and the recurrence, which keeps what that gives."""
    length, heads = context.core_sequence, core_heads(context, mixer.num_heads)
    rows, width = context.layout.micro_batch * length, 3 * heads * mixer.head_dim
    chunk = np.minimum(length, mixer.chunk_size)
    channels = context.layout.constant(mixer.head_dim)
    products = context.layout.micro_batch * ceil_div(length, chunk) * heads
    chunks = Chunks(products=products, length=chunk, width=channels, state=channels)
    what = OpKey(Module.LIGHTNING, Role.ACTIVATION)
    activated = kernel(context, Kernel(what, "gelu", rows, width, saved_bytes=2 * context.activations(rows, width)))
    recurrence = chunked_recurrence(context, chunks, Module.LIGHTNING, learned_decays=False)
    again = tuple(map(as_recompute, recurrence.forward[:3]))
    return sequence(activated, Pass(forward=recurrence.forward, backward=(*again, *recurrence.backward)))


def output(context: LayerContext, mixer: LightningSpec) -> Pass:
    """Returns the norm over a rank's heads, their gates, each keeping what it reads, and the product back to hidden states."""
    rows, inner = context.gemm_rows, projected_heads(context, mixer.num_heads) * mixer.head_dim
    kept = context.activations(rows, inner)
    named = OpKey(Module.LIGHTNING, Role.NORM, Role.OUT).named("lightning.inner_norm")
    normed = Kernel(named, "rmsnorm", rows, inner, saved_bytes=kept, parameters=inner)
    gated = Kernel(OpKey(Module.LIGHTNING, Role.OUTPUT_GATE), "swiglu", rows, inner, saved_bytes=2 * kept)
    product = out_of_mixer(context, OpKey(Module.LIGHTNING, Role.OUT), inner)
    return sequence(kernel(context, normed), kernel(context, gated), product)


def core_tensors(mixer: LightningSpec) -> HeadTensors:
    """Returns queries, keys and values, and the output; gates stay with their tokens."""
    q, k, v, out = (HeadTensor(name=name, heads=mixer.num_heads, dim=mixer.head_dim) for name in ("q", "k", "v", "out"))
    return HeadTensors(module=Module.LIGHTNING, into=(q, k, v), out=(out,))


LIGHTNING = MixerRow(
    module=Module.LIGHTNING,
    projections=projections,
    core=core,
    output=output,
    core_tensors=core_tensors,
    context_parallel=frozenset({"all_to_all"}),
)
