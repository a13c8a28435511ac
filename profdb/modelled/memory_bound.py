"""Memory-bound kernels and AdamW steps from a hardware spec: launch latency plus bytes over the HBM rate.

The fixed part makes the achieved bandwidth grow with size, as measured kernels show. Passes of plain PyTorch over
strided or broadcast operands take longer than their bytes (profdb.modelled.slow_kernels).
"""

import numpy as np

from ops.memory_bound import bytes_moved_per_element
from profdb.modelled.gemm import DRAM_EFFICIENCY, LAUNCH_S
from profdb.modelled.slow_kernels import excess_s
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import GpuSpec
from spec.dtypes import dtype_bytes

RELATIVE_STD = 0.2  # Assumption: fused kernels of different authors differ by about this much

# Both moments, fp32, read and written (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2).
MOMENT_BYTES = 16.0

# One launch of a fused step takes at most this many tensors and elements: PyTorch,
# aten/src/ATen/native/cuda/MultiTensorApply.cuh, depth_to_max_tensors (4 lists), chunk size x blocks.
TENSORS_PER_LAUNCH = 36
ELEMENTS_PER_LAUNCH = 65536 * 320


def streaming_seconds(gpu: GpuSpec, moved_bytes: FloatArray) -> FloatArray:
    """Returns the time of one kernel that moves ``moved_bytes`` through HBM; 0 where it moves nothing."""
    seconds = LAUNCH_S + moved_bytes / (gpu.memory_bandwidth * DRAM_EFFICIENCY)
    return np.asarray(np.where(moved_bytes > 0.0, seconds, 0.0), dtype=np.float64)


def memory_bound_seconds(
    gpu: GpuSpec, kernel: str, direction: str, elements: IntArray | FloatArray, dtype: str
) -> FloatArray:
    """Returns the time of a kernel of ops.memory_bound over ``elements`` (rows x width).

    Raises KeyError for an unknown kernel.
    """
    per_element = bytes_moved_per_element(kernel, backward=direction == "backward", dtype=dtype)
    counted = np.asarray(elements, dtype=np.float64)
    return streaming_seconds(gpu, counted * per_element) + counted * excess_s(gpu, kernel, direction, dtype)


def adamw_seconds(
    gpu: GpuSpec, elements: IntArray, tensors: IntArray, parameter_dtype: str, gradient_dtype: str
) -> FloatArray:
    """Returns the time of an AdamW step over ``elements`` parameters in ``tensors`` pieces; 0 for none.

    It reads and writes the parameters and both moments, and reads the gradients.
    """
    per_element = 2.0 * dtype_bytes(parameter_dtype) + dtype_bytes(gradient_dtype) + MOMENT_BYTES
    # The first launch is part of ``streaming_seconds``; each further one costs its latency.
    launches = np.maximum(np.ceil(tensors / TENSORS_PER_LAUNCH), np.ceil(elements / ELEMENTS_PER_LAUNCH))
    streaming = streaming_seconds(gpu, np.asarray(elements, dtype=np.float64) * per_element)
    return np.where(elements > 0, streaming + np.maximum(launches - 1.0, 0.0) * LAUNCH_S, 0.0)
