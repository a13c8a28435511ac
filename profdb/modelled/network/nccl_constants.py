"""The constants of NCCL's own cost model that no architecture changes, as facts.

Those by architecture are in configs/architectures.

Source: NVIDIA/nccl, src/graph/tuning.cc (2.27) and src/tuning/cost_model.cc, ring.cc, tree.cc,
nvls.cc, pat.cc (2.30), ``ncclTunerConstantsDefaults``; src/graph/topo.h for link rates. Latencies
there are microseconds and rates GB/s; here seconds and bytes/s.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from spec.arrays import FloatArray


class Protocol(IntEnum):
    """LL: flag in every 8 bytes; LL128: flag in every 128 bytes; Simple: whole chunks."""

    LL = 0
    LL128 = 1
    SIMPLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HopLatency:
    """Seconds of one hop by protocol (LL, LL128, Simple), for the ring and the tree."""

    ring: tuple[float, float, float]
    tree: tuple[float, float, float]


# baseLatencies (Tree and Ring rows): what a launch costs before the first hop.
RING_BASE_S = (6.6e-6, 14.0e-6, 8.4e-6)
TREE_BASE_S = (6.8e-6, 14.0e-6, 8.4e-6)

# hwLatencies.
NVLINK_HOP = HopLatency(ring=(0.6e-6, 1.9e-6, 3.4e-6), tree=(0.6e-6, 1.25e-6, 4.0e-6))
HOPS: dict[str, HopLatency] = {
    "nvlink": NVLINK_HOP,
    # RCCL's table calls AMD's mesh NVLINK too; HCCL's is not published.
    "mesh": NVLINK_HOP,
    "pcie": HopLatency(ring=(1.0e-6, 2.5e-6, 5.7e-6), tree=(1.0e-6, 1.9e-6, 4.0e-6)),
    # NCCL has no row for two processors of one server: a hop between them goes over PCIe.
    "socket": HopLatency(ring=(1.0e-6, 2.5e-6, 5.7e-6), tree=(1.0e-6, 1.9e-6, 4.0e-6)),
    "network": HopLatency(ring=(2.7e-6, 4.0e-6, 14.0e-6), tree=(5.0e-6, 8.5e-6, 14.0e-6)),
}
NVLS_HOP_S = 25.0e-6
NVLS_TREE_NET_HOP_S = 20.9e-6
PAT_BASE_S = 8.0e-6
PAT_NET_HOP_S = 14.0e-6 / 3.5
PAT_RANK_S = 2.8e-6
PAT_RATE = 0.75

# getNetOverhead: posting one network step from an Intel host; Simple posts three times.
NET_OVERHEAD_S = (1.0e-6, 1.0e-6, 3.0e-6)

# llMaxBws, columns of 2 and of 4 or more nodes: they follow the host CPU, the Intel row.
LL_MAX_RATE_NODES = (39.0e9, 20.4e9)

# Payload rate over raw rate of a link: PCI_BW = 12 GB/s of a gen3 x16 slot's 16.
PCIE_EFFICIENCY = 12.0 / 16.0
# The same through the processor's memory (NCCL's SHM), every GPU sending and receiving: 10.2 GB/s each way of
# A40 (NVIDIA/nccl-tests issue 74, bidirectional copies with P2P disabled: 19.1 to 21.2 both ways) and 15 of
# RTX 4090 (NVIDIA/nccl issue 814: 30), both of gen4 x16's 32. Assumption: NCCL's kernels reach what these
# copies do, and hops take as long as between peers.
HOST_MEMORY_EFFICIENCY = (10.2 + 15.0) / 2.0 / 32.0

# Share of the rate that carries data: LL half; LL128 120 of 128 bytes, which ring.cc takes as 0.92.
RING_LL_SHARE = 0.5
RING_LL128_SHARE = 0.92
TREE_SHARE = 0.92
TREE_LL_SHARE = 1.0 / 3.8
TREE_LL128_SHARE = (7.0 / 9.0, 120.0 / 128.0)

NVLS_MAX_RANKS = 32

# Between nodes LL128 needs GPUs and NICs below one PCIe switch (tuning.cc, ``typeInter``); published runs
# between nodes follow Simple from 2 MiB on.
LL128_MAX_BYTES = 2 * 2**20

# "Plateau effect of ring": its condition in bytes per channel and rank; 16 channels (Assumption: what
# DGX-class systems use).
PLATEAU_BYTES = 64 * 16

# treeCorrectionFactor[protocol][log2(bytes / 64)], 64 bytes to 512 MiB; above that nothing is corrected.
_TREE_CORRECTION_ROWS = (
    "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1 1",
    "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1 1",
    ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9 .9",
)
TREE_CORRECTION: FloatArray = np.array(
    [f"{row} 1".split() for row in _TREE_CORRECTION_ROWS], dtype=np.float64
)


def tree_correction(protocol: Protocol, size_bytes: FloatArray) -> FloatArray:
    """Share of the rate that trees keep at a size: their pipelines fill slowly."""
    column = np.log2(np.maximum(size_bytes / 64.0, 1.0)).astype(np.int64)
    return np.asarray(TREE_CORRECTION[protocol][np.minimum(column, TREE_CORRECTION.shape[1] - 1)])
