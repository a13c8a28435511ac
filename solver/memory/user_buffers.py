"""Buffers and workspaces that Transformer Engine holds from the first step to the last.

Source: Transformer Engine (d0067d0) ``pytorch/module/base.py``, initialize_ub: one buffer of a micro-batch's tokens x
hidden for each product whose tensor-parallel collective is overlapped, of which those that gather are a byte an element
under fp8 recipes; ``common/comm_gemm_overlap/comm_gemm_overlap.cpp``, CommOverlapP2PBase::initialize: one that is
reduced by ring exchange has room for what all other ranks send. ``pytorch/cpp_extensions/gemm.py``,
get_cublas_workspace: one for single products, one a stream for grouped ones, three for overlapped ones.
"""

import numpy as np

from ops.context import LayerContext, Sharding
from solver.times.op_times import STREAMS
from spec.arrays import FloatArray
from spec.cluster.cluster import ArchitectureSpec
from spec.units import MIB

# qkv_fprop, fc1_fprop, proj_dgrad, fc2_dgrad, and beside weight gradients proj_wgrad, fc2_wgrad (since 2025-08)
GATHERING = 6
# bulk: qkv_dgrad, fc1_dgrad gather; qkv_wgrad, fc1_wgrad reduce, and stay (not in fp8) where input gradients
# are reduced instead
BULK = 2
# proj_fprop, fc2_fprop
REDUCING = 2

WORKSPACE_BYTES = 32.0 * MIB
"""cuBLAS' on GPUs with asynchronous tensor cores (compute capability 9.0 and later)."""
SMALL_WORKSPACE_BYTES = 4.0 * MIB
"""cuBLAS' on those before (get_cublas_workspace_size_bytes)."""
OVERLAPPED_STREAMS = 3
"""Pieces of an overlapped product run on (_NUM_MAX_UB_STREAMS)."""


def user_buffer_bytes(context: LayerContext, sharding: Sharding) -> FloatArray:
    """Bytes on one rank, for every row, of what tensor-parallel overlap works in; nothing where PyTorch
    overlaps, or tokens are not cut between linears."""
    choices, layout = context.job.preset.tensor_parallel, context.layout
    if not choices.overlap or context.job.preset.host.code != "modules":
        return np.zeros(len(layout))
    one = 1.0 * context.tokens * context.model.hidden
    fp8 = context.job.precision.linear == "fp8"
    gathered, wide = (1.0 if fp8 else context.activation_bytes), context.activation_bytes
    reduced = wide * np.where(
        choices.overlap_rs_method == "ring_exchange", (2 * layout.tp - 1) / layout.tp, 1.0
    )
    dgrad = reduced if choices.overlap_rs_dgrad else gathered
    each = GATHERING * gathered + REDUCING * reduced + BULK * (dgrad + wide)
    cut = np.asarray(sharding.norm_shards(layout)) > 1
    return np.where(cut, one * each, 0.0)


def workspace_bytes(
    context: LayerContext, overlapped: FloatArray, architecture: ArchitectureSpec
) -> FloatArray:
    """Bytes of cuBLAS' workspaces on one rank; ``overlapped`` are the bytes that tensor-parallel overlap works in."""
    if context.job.preset.host.code != "modules":
        return np.zeros(len(overlapped))
    grouped = STREAMS * any(run.block.moe is not None for run in context.model.blocks)
    count = 1 + grouped + OVERLAPPED_STREAMS * (overlapped > 0)
    each = WORKSPACE_BYTES if architecture.asynchronous_products else SMALL_WORKSPACE_BYTES
    return np.asarray(count * each, dtype=np.float64)
