"""ModelledCostModel: answers every query of a ProfileCostModel from the hardware spec of a cluster."""

from dataclasses import dataclass

import numpy as np

from ops.memory_bound import KERNELS
from ops.op import AttentionCall, fields_of
from profdb.modelled import attention, gemm, memory_bound
from profdb.modelled.errors import HOST_STD, collective_std
from profdb.modelled.network import nccl, send_recv
from profdb.modelled.network.links import CommGroup
from profdb.modelled.rates import over_one_scale
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
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.cluster.cluster import ClusterSpec
from spec.collectives import TRAINING_COLLECTIVES, Collective
from spec.errors import ConfigError, MissingCurveError
from spec.origin import Origin

# ``launch``, Assumption: an eager framework launches one kernel in about 5 microseconds (dispatch, autograd
# and the driver's launch of 2 to 3 microseconds). ``call``: a forward of torch.nn.Linear issued from Python
# on the Xeon 8480C of a DGX H100 (TransformerEngine issue 2053).
HOST_SECONDS: dict[str, float] = {"launch": 5.0e-6, "call": 13.48e-6}
# The driver's part of a launch: an empty kernel on an Intel processor with an H100 (arXiv 2504.11750 table V).
DRIVER_SECONDS: dict[str, float] = {"launch": 2.3746e-6, "call": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledCostModel:
    """Times on a cluster that nobody has measured. Each method takes a query of profdb.queries and returns seconds
    with origin MODELLED; raises ConfigError for a label or number format it cannot model."""

    cluster: ClusterSpec

    def linear_s(self, query: LinearQuery) -> TimeEstimate:
        """Returns times of batched matrix products. Layout and bias do not change them (Assumption: both are fused)."""
        c, gpu = query.columns(), self.cluster.gpu
        seconds = gemm.gemm_seconds(gpu, c["batch"], c["m"], c["k"], c["n"], query.dtype)
        return _modelled(seconds * over_one_scale(gpu, query.dtype, query.scale_recipe), gemm.RELATIVE_STD)

    def grouped_linear_s(self, query: GroupedLinearQuery) -> TimeEstimate:
        """Returns times of grouped products: one product per group over an even part of the rows; TN reduces over the
        rows."""
        c = query.columns()
        groups = np.maximum(c["groups"], 1)
        rows = ceil_div(c["m"], groups)
        m, k = (c["k"], rows) if query.layout == "TN" else (rows, c["k"])
        # No groups: no products, while ``groups`` above only keeps the division by it defined.
        batch, gpu = np.where(c["groups"] > 0, groups, 0), self.cluster.gpu
        seconds = gemm.gemm_seconds(gpu, batch, m, k, c["n"], query.dtype)
        return _modelled(seconds * over_one_scale(gpu, query.dtype, query.scale_recipe), gemm.RELATIVE_STD)

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        """Returns times of attention. ``kernel`` core: batched products; any other name: a flash kernel."""
        _one_of(query.mask, ("causal", "full", "window", "varlen"), "mask")
        _one_of(query.direction, ("forward", "backward"), "direction")
        heads = attention.AttentionShapes(**fields_of(AttentionCall, query))
        model = attention.core_seconds if query.kernel == "core" else attention.flash_seconds
        seconds = model(self.cluster.gpu, heads)
        return _modelled(seconds, attention.RELATIVE_STD)

    def memory_bound_s(self, query: MemoryBoundQuery) -> TimeEstimate:
        """Returns times of the kernels of ops.memory_bound."""
        _one_of(query.kernel, tuple(KERNELS), "kernel")
        _one_of(query.direction, ("forward", "backward"), "direction")
        c = query.columns()
        elements = c["rows"].astype(np.float64) * c["width"]
        seconds = memory_bound.memory_bound_seconds(
            self.cluster.gpu, query.kernel, query.direction, elements, query.dtype
        )
        return _modelled(seconds, memory_bound.RELATIVE_STD)

    def collective_s(self, query: CollectiveQuery) -> TimeEstimate:
        """Returns times of the collectives of a training step."""
        _one_of(query.collective, TRAINING_COLLECTIVES, "collective")
        c = query.columns()
        group = _group(c)
        size = c["size_bytes"].astype(np.float64)
        # Messages and all-to-alls are grouped sends in NCCL, not rings or trees.
        if query.collective is Collective.P2P:
            seconds, inside = send_recv.p2p_seconds(self.cluster, size, group), send_recv.P2P_STD
        elif query.collective is Collective.ALL_TO_ALL:
            seconds = send_recv.all_to_all_seconds(self.cluster, size, group)
            inside = send_recv.ALL_TO_ALL_STD
        else:
            seconds = nccl.collective_seconds(self.cluster, query.collective, size, group)
            inside = nccl.RELATIVE_STD
        return _modelled(seconds, collective_std(self.cluster, size, group, inside))

    def p2p_s(self, query: P2PQuery) -> TimeEstimate:
        """Returns the time of one message, inside a domain (intra 2, inter 1) or across (intra 1, inter 2)."""
        return self.collective_s(CollectiveQuery(collective=Collective.P2P, **fields_of(P2PQuery, query)))

    def optimizer_s(self, query: OptimizerQuery) -> TimeEstimate:
        """Returns the time of one AdamW step."""
        _one_of(query.kernel, ("adamw",), "kernel")
        c = query.columns()
        seconds = memory_bound.adamw_seconds(
            self.cluster.gpu, c["elements"], c["tensors"], query.parameter_dtype, query.gradient_dtype
        )
        return _modelled(seconds, memory_bound.RELATIVE_STD)

    def cpu_s(self, kind: str) -> TimeEstimate:
        """Returns the CPU time of launching a kernel or of a call from Python, in arrays of length 1. The host's two
        slowdowns over a DGX H100's, in Python and PyTorch's dispatch and in the driver, scale its two parts. Raises
        MissingCurveError for other kinds, which a hardware spec does not determine."""
        if kind not in HOST_SECONDS:
            raise MissingCurveError(key=f"host {kind}", command="torchrun gen_profiler_data.py")
        driver_s = DRIVER_SECONDS[kind]
        # Both parts are times on a DGX H100; a host has a slowdown for each.
        python_s = HOST_SECONDS[kind] - driver_s
        seconds = python_s * self.cluster.host_slowdown + driver_s * self.cluster.driver_slowdown
        return _modelled(np.array([seconds]), HOST_STD)


def _group(columns: dict[str, IntArray]) -> CommGroup:
    """Returns the group of each row. Zero ranks count as one: either moves nothing."""
    return CommGroup(
        **{name: np.maximum(columns[name], 1) for name in ("intra", "inter", "siblings")},
        outer_intra=columns["outer_intra"],
        outer_siblings=columns["outer_siblings"],
    )


def _modelled(seconds: FloatArray, relative_std: float | FloatArray) -> TimeEstimate:
    return TimeEstimate(
        seconds=seconds,
        relative_std=np.broadcast_to(np.float64(relative_std), seconds.shape).copy(),
        origin=np.full(seconds.shape, int(Origin.MODELLED), dtype=np.int64),
    )


def _one_of(value: str, allowed: tuple[str, ...], key: str) -> None:
    if value not in allowed:
        raise ConfigError(where="modelled time", key=key, value=value, allowed=f"one of {', '.join(sorted(allowed))}")
