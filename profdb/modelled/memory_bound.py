"""Memory-bound kernels from a hardware sheet: launch latency plus bytes over the HBM rate.

The fixed part makes the achieved bandwidth grow with size, as measured kernels show. Passes of plain PyTorch over
strided or broadcast operands take longer than their bytes (profdb.modelled.slow_kernels).
"""

import numpy as np

from ops.memory_bound import bytes_moved_per_element
from profdb.modelled.gemm import DRAM_EFFICIENCY, LAUNCH_S
from profdb.modelled.slow_kernels import excess_seconds
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import GpuSpec

RELATIVE_STD = 0.2  # Assumption: fused kernels of different authors differ by about this much


def streaming_seconds(gpu: GpuSpec, moved_bytes: FloatArray) -> FloatArray:
    """Seconds of one kernel that moves ``moved_bytes`` through HBM; 0 where it moves nothing."""
    seconds = LAUNCH_S + moved_bytes / (gpu.memory_bandwidth * DRAM_EFFICIENCY)
    return np.asarray(np.where(moved_bytes > 0.0, seconds, 0.0), dtype=np.float64)


def memory_bound_seconds(
    gpu: GpuSpec, kernel: str, direction: str, elements: IntArray | FloatArray, dtype: str
) -> FloatArray:
    """Seconds of a kernel of ops.memory_bound over ``elements`` (rows x width).

    Raises KeyError for an unknown kernel.
    """
    per_element = bytes_moved_per_element(kernel, backward=direction == "backward", dtype=dtype)
    counted = np.asarray(elements, dtype=np.float64)
    return streaming_seconds(gpu, counted * per_element) + excess_seconds(
        gpu, kernel, direction, counted, dtype
    )
