"""Copies between a GPU and its host, and an optimizer on the processors, from a hardware sheet."""

import numpy as np

from profdb.lookup.priced import TimeEstimate
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import HostSpec
from spec.origin import Origin

# NVIDIA nvbandwidth, host_to_device_memcpy_ce: 55.63 GB/s of page-locked memory over PCIe 5.0 x16, whose 32 GT/s
# in 128b/130b are 63.0 GB/s. Assumption: the same share on other generations and NVLink-C2C.
LINK_SHARE = 55.63 / 63.0

# Parameters a second for each byte a second of the memory. arXiv 2101.06840, table 4: CPU-Adam takes 1.03 s
# for 4 and 2.57 s for 10 billion parameters on a DGX-2 (two Xeon Platinum 8168, six channels of DDR4-2666
# each: 256 GB/s), 43 % of its rate at 28 bytes each (fp32: parameter and both moments read and written, the
# gradient read). Assumption: as much of other memories.
ADAM_PER_BYTE = 10.0e9 / 2.57 / 256e9

RELATIVE_STD = 0.25  # Assumption: placement of memory among the processors is not told


def host_transfer_s(host: HostSpec, size_bytes: FloatArray, gpus: int) -> TimeEstimate:
    """Seconds for ``size_bytes`` one way while all ``gpus`` GPUs of a node send."""
    return _modelled(np.asarray(size_bytes, dtype=np.float64) / (host.link_per_gpu(gpus) * LINK_SHARE))


def host_update_s(host: HostSpec, elements: IntArray, ranks: int) -> TimeEstimate:
    """Seconds for Adam over ``elements`` parameters of each of ``ranks`` ranks that share a node's memory."""
    return _modelled(elements * ranks / (host.memory_bandwidth * ADAM_PER_BYTE))


def _modelled(seconds: FloatArray) -> TimeEstimate:
    return TimeEstimate(
        seconds=seconds,
        relative_std=np.full(len(seconds), RELATIVE_STD),
        origin=np.full(len(seconds), int(Origin.MODELLED), dtype=np.int64),
    )
