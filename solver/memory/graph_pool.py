"""Memory that CUDA graphs keep from what runs outside them.

A captured graph replays into a pool of its own, whose free blocks no other code gets (PyTorch
``c10/cuda/CUDACachingAllocator.cpp``, private pools; "CUDA semantics", Graph memory management). Graphs of parts of
layers share one, through which what they keep passes as without graphs, since they are captured in the schedule's order
and reuse inputs and outputs (Megatron-LM ``transformer/cuda_graphs.py``, TECudaGraphHelper; Transformer Engine
``pytorch/graph.py``); what their backward holds for a moment stands beside what the rest of a layer, or the loss, does.
A graph of the whole iteration holds all forwards and backwards (Megatron-LM ``full_cuda_graph.py``), so that the
optimizer's buffers do not find the room of activations.
"""

import numpy as np

from ops.context import LayerContext, Sharding
from spec.arrays import FloatArray, ceil_div
from spec.mixers.attention import AttentionSpec

ROUTED = frozenset({"moe_router", "moe_preprocess"})


def pool_bytes(
    context: LayerContext, sharding: Sharding, passing: FloatArray, ended: FloatArray
) -> FloatArray:
    """Reserved on one rank beyond the peak of one pool for all, for every row: ``passing`` is what loss or
    layer hold for a moment, ``ended`` the part of the buffers of the step's end that finds room where the
    passes' tensors were."""
    scopes = context.job.cuda_graphs
    if "full_iteration" in scopes:
        return ended
    if not scopes:
        return np.zeros(len(passing))
    return np.minimum(_of_parts(context, sharding), passing)


def _of_parts(context: LayerContext, sharding: Sharding) -> FloatArray:
    """What the backward of a layer's graphed parts holds for a moment: static gradients of its output and of its input
    (make_graphed_callables: static_grad_outputs, static_grad_inputs), of what its router hands to the experts, and of
    queries, keys, values and the kernel's output."""
    scopes, hidden = context.job.cuda_graphs, context.model.hidden
    rows = ceil_div(context.tokens, sharding.norm_shards(context.layout))
    blocks = [run.block for run in context.model.blocks]
    routes = bool(scopes & ROUTED) and any(block.moe is not None for block in blocks)
    mixers = [block.mixer for block in blocks if isinstance(block.mixer, AttentionSpec)] * ("attn" in scopes)
    wide = max(
        ((one.num_heads + one.num_kv_heads) * (one.qk_dim + one.v_dim) for one in mixers),
        default=0,
    )
    attention = context.activations(context.tokens, wide) / context.layout.tp
    return (2.0 + routes) * context.activations(rows, hidden) + attention
