"""One AdamW step from a hardware sheet: the bytes a fused step moves, and its launches."""

import numpy as np

from profdb.modelled.gemm import LAUNCH_S
from profdb.modelled.memory_bound import streaming_seconds
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import GpuSpec
from spec.dtypes import dtype_bytes

RELATIVE_STD = 0.2  # Assumption: as other memory-bound kernels

# Both moments, fp32, read and written (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2).
MOMENT_BYTES = 16.0

# One launch of a fused step takes at most this many tensors and elements: PyTorch,
# aten/src/ATen/native/cuda/MultiTensorApply.cuh, depth_to_max_tensors (4 lists), chunk size x blocks.
TENSORS_PER_LAUNCH = 36
ELEMENTS_PER_LAUNCH = 65536 * 320


def adamw_seconds(
    gpu: GpuSpec, elements: IntArray, tensors: IntArray, parameter_dtype: str, gradient_dtype: str
) -> FloatArray:
    """Seconds over ``elements`` parameters held in ``tensors`` pieces; 0 for none.

    Reads and writes the parameters and both moments, reads the gradients.
    """
    per_element = 2.0 * dtype_bytes(parameter_dtype) + dtype_bytes(gradient_dtype) + MOMENT_BYTES
    launches = np.maximum(np.ceil(tensors / TENSORS_PER_LAUNCH), np.ceil(elements / ELEMENTS_PER_LAUNCH))
    streaming = streaming_seconds(gpu, np.asarray(elements, dtype=np.float64) * per_element)
    return np.where(elements > 0, streaming + np.maximum(launches - 1.0, 0.0) * LAUNCH_S, 0.0)
