"""A cost model by arithmetic, so that tests know every price by hand.

100 TFLOP/s, 1 TB/s of memory, 100 GB/s inside a domain and 10 GB/s between domains, no latency.
"""

import numpy as np

from ops.memory_bound import bytes_moved_per_element
from profdb.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
    TimeEstimate,
)
from spec.arrays import FloatArray, floats
from spec.collectives import busbw_factor
from spec.origin import Origin

FLOPS = 100e12
MEMORY_BANDWIDTH = 1e12
INTRA_BANDWIDTH = 100e9
INTER_BANDWIDTH = 10e9
RELATIVE_STD = 0.05


def _priced(seconds: FloatArray, origin: Origin = Origin.MEASURED) -> TimeEstimate:
    seconds = floats(seconds)
    return TimeEstimate(
        seconds=seconds,
        relative_std=np.full(len(seconds), RELATIVE_STD),
        origin=np.full(len(seconds), int(origin), dtype=np.int64),
    )


class FlatCostModel:
    """Implements profdb.cost_model.Book; ``asked`` records every query."""

    def __init__(self, *, flops: float = FLOPS, inter_bandwidth: float = INTER_BANDWIDTH) -> None:
        self.flops = flops
        self.inter_bandwidth = inter_bandwidth
        self.asked: list[object] = []

    def linear_s(self, query: LinearQuery) -> TimeEstimate:
        self.asked.append(query)
        c = query.columns()
        return _priced(2.0 * c["batch"] * c["m"] * c["k"] * c["n"] / self.flops)

    def grouped_linear_s(self, query: GroupedLinearQuery) -> TimeEstimate:
        self.asked.append(query)
        c = query.columns()
        return _priced(2.0 * c["m"] * c["k"] * c["n"] / self.flops)

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        self.asked.append(query)
        c = query.columns()
        work = c["batch"] * c["heads"] * c["q_len"] * c["kv_len"] * (c["qk_dim"] + c["v_dim"])
        return _priced((1.0 if query.direction == "forward" else 2.5) * work / self.flops)

    def memory_bound_s(self, query: MemoryBoundQuery) -> TimeEstimate:
        self.asked.append(query)
        c = query.columns()
        per = bytes_moved_per_element(query.kernel, backward=query.direction == "backward", dtype=query.dtype)
        return _priced(per * c["rows"] * c["width"] / MEMORY_BANDWIDTH)

    def collective_s(self, query: CollectiveQuery) -> TimeEstimate:
        self.asked.append(query)
        c = query.columns()
        ranks = c["intra"] * c["inter"]
        bandwidth = np.where(c["inter"] > 1, self.inter_bandwidth, INTRA_BANDWIDTH)
        busy = (ranks > 1) & (c["size_bytes"] > 0)
        seconds = busbw_factor(query.collective, np.maximum(ranks, 1)) * c["size_bytes"] / bandwidth
        return _priced(np.where(busy, seconds, 0.0), Origin.MODELLED)

    def p2p_s(self, query: P2PQuery) -> TimeEstimate:
        self.asked.append(query)
        c = query.columns()
        bandwidth = np.where(c["inter"] > 1, self.inter_bandwidth, INTRA_BANDWIDTH)
        return _priced(c["size_bytes"] / bandwidth, Origin.MODELLED)

    def optimizer_s(self, query: OptimizerQuery) -> TimeEstimate:
        self.asked.append(query)
        return _priced(30.0 * query.columns()["elements"] / MEMORY_BANDWIDTH)

    def cpu_s(self, kind: str) -> TimeEstimate:
        return _priced(floats(0.0))
