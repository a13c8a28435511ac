"""Bandwidths of a logged operation as AICB counts them: GiB/s, with its own bus factors.

They differ from nccl-tests' (profdb.busbw): an all-to-all counts whole, a gibibyte is 2^30.
"""

from workload.aicb.csv_workload import COMPUTATION, GeneralItem

GIB = 2**30
HALVES = frozenset({"all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"})
SHOWN_DECIMALS = 2


def bus_factor(kind: str, ranks: int) -> float:
    """busbw / algbw: all_reduce 2(n-1)/n, all_gather and reduce_scatter (n-1)/n, barrier and computation 0,
    all else 1.
    """
    if kind in ("barrier", COMPUTATION):
        return 0.0
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in HALVES else 1.0


def bandwidths(item: GeneralItem, elapsed_ms: float) -> tuple[float, float]:
    """algbw and busbw in GiB/s; 0 for what moves nothing, and busbw 0 where a file does not say the group's size."""
    if item.comm_type in ("barrier", COMPUTATION) or elapsed_ms <= 0:
        return 0.0, 0.0
    algbw = item.msg_size / GIB / (elapsed_ms * 1e-3)
    return algbw, algbw * bus_factor(item.comm_type, item.comm_group_size) if item.comm_group_size else 0.0
