"""What reduce-scatters have read and the allocator may not yet give out again.

ProcessGroupNCCL records a collective's tensors on its stream, before PyTorch 2.2 those of waited-for
collectives too (pytorch pull requests 76861 and 111431): freed by Python they stay reserved until the device
is through with the collective, so a host that runs ahead makes the allocator take new memory. A host is at
most some 1000 commands ahead (NVIDIA developer forum, "CUDA stream are blocked when luanch lots of kernels
(>1000)"), ``tensor_parallel.recorded_layers`` of a framework's layers.
"""

import numpy as np

from ops.context import LayerContext
from ops.strategies.sharding import Sharding, full_tokens_bytes
from solver.pipeline.stages import StageTable
from spec.arrays import FloatArray

REDUCED_PER_LAYER = 2
"""Reduce-scatters of a layer's forward: of attention's and of the feed-forward network's output (arXiv
2205.05198 sec. 4.2).
"""


def recorded_bytes(
    context: LayerContext, sharding: Sharding, stages: StageTable, chunks: FloatArray
) -> FloatArray:
    """Reserved beyond what is allocated, of the rows of a stage table with ``chunks`` micro-batches in
    flight. A host that sleeps between looks for its messages (pipeline.looks_every_s) is not ahead."""
    preset, layout = context.job.preset, context.layout
    # Tokens cut between linears and whole inside: msp and fsp.
    reduces = (np.asarray(sharding.norm_shards(layout)) > 1) & (np.asarray(sharding.gemm_shards(layout)) == 1)
    ahead = preset.tensor_parallel.recorded_layers * (preset.pipeline.looks_every_s == 0.0)
    behind = np.minimum(np.sum(stages.layers, axis=0) * chunks, ahead)
    return np.asarray(np.where(reduces, REDUCED_PER_LAYER * full_tokens_bytes(context) * behind, 0.0))
