"""Seconds of one operation on one rank: the cost model asked for its curve, and what a training step does to it."""

from dataclasses import dataclass

import numpy as np

from ops.layout import Layout, group_of, neighbours
from ops.op import (
    Attention,
    Axis,
    BatchedGemm,
    Comm,
    CpuOverhead,
    GroupedGemm,
    HostTransfer,
    HostUpdate,
    MemoryBound,
    Op,
)
from ops.roles import Role
from profdb.cost_model import CostModel, ProfileCostModel, attention_query, has_measured_casts, kernel_calls_s, kernel_s
from profdb.host_copies import TO_DEVICE, TO_HOST, HostCopies, host_copies, host_transfer_s, host_update_s
from profdb.layer_sum import LayerSum, layer_sum
from profdb.modelled.flash_generations import attention_price, published_rates
from profdb.modelled.slow_kernels import (
    NOTHING_MEASURED,
    MeasuredExtents,
    longer_under_load,
    measured_extents,
    unaligned_s,
)
from profdb.overlap_losses import Losses, OverlapLosses, overlap_losses
from profdb.queries import CollectiveQuery, LinearQuery, P2PQuery, TimeEstimate
from profdb.sustained import NOTHING_SUSTAINED, SustainedRates, sustained_rates
from solver.times.contention import ALONE, Contention
from solver.times.expert_exchange import MeasuredExchanges, even_s, measured_exchanges
from solver.times.step_parts import COMM_PART, Share
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ceil_div, expected_largest, floats, of_rows
from spec.cluster.cluster import HOST_NEEDED, ClusterSpec, GpuSpec, HostSpec
from spec.collectives import Collective
from spec.errors import ConfigError
from spec.origin import Origin

# Across five large clusters the times of one GPU vary by 8 % of the median on average, outliers aside (arXiv
# 2208.11035, abstract). Assumption: that range lies between the whiskers of a box plot, and times of different GPUs are
# normal and independent.
VARIATION = 0.08

# The whiskers span from Q1 - 1.5 (Q3 - Q1) to Q3 + 1.5 (Q3 - Q1), the quartiles of a normal distribution at 0.6745.
SPREAD = VARIATION / (8 * 0.6745)


def slowest_of(ranks: int) -> float:
    """Compute time of the slowest of ``ranks`` GPUs (at least 1) over that of a typical one; 1 for one GPU.

    GPUs of one model differ in the clock they hold at their power limit, and a training step ends when the slowest
    rank has computed."""
    return 1.0 + SPREAD * expected_largest(ranks)


STREAMS = 4
"""That grouped products start on in turn (nvte_get_num_compute_streams), each with a workspace of cuBLAS."""
# Assumption: output elements of one thread block either way, the usual cuBLAS tile of 16-bit products.
TILE = 128


def products_apart_s(cost_model: CostModel, op: GroupedGemm, whole: TimeEstimate, num_sms: int) -> TimeEstimate:
    """Seconds of ``op`` for every shape: ``whole`` (the cost model's own grouped time) where it was measured,
    elsewhere one product of ``linear_s`` an expert, as many beside each other as multiprocessors and
    streams allow, and never faster than ``whole``. Transformer Engine's grouped linear starts a cuBLAS product for
    every expert on four streams in turn (transformer_engine/common/gemm/cublaslt_gemm.cu, multi_stream_cublas_gemm),
    so each product has its own tiles and its own last wave.

    Arrays of the shapes' length. Origin DERIVED where the single product was measured. Raises
    MissingCurveError as ``cost_model.linear_s`` does.
    """
    unknown = whole.origin >= int(Origin.MODELLED)
    if not unknown.any():
        return whole
    groups = np.maximum(op.groups, 1)
    rows = ceil_div(op.m, groups)
    turned = op.layout == "TN"
    m, k, n = (op.n, rows, op.k) if turned else (rows, op.k, op.n)
    one = cost_model.linear_s(
        LinearQuery(m=m, k=k, n=n, layout=op.layout, dtype=op.dtype, scale_recipe=op.scale_recipe)
    )
    seconds = np.where(op.groups > 0, groups * one.seconds / _beside(groups, m, n, num_sms), 0.0)
    origin = np.where(one.origin < int(Origin.MODELLED), int(Origin.DERIVED), one.origin)
    return TimeEstimate(
        seconds=np.where(unknown, np.maximum(seconds, whole.seconds), whole.seconds),
        relative_std=np.where(unknown, np.maximum(one.relative_std, whole.relative_std), whole.relative_std),
        origin=np.where(unknown, origin, whole.origin),
    )


def _beside(groups: IntArray, m: IntArray, n: IntArray, num_sms: int) -> FloatArray:
    """Returns how many products run at once: those whose tiles leave multiprocessors free share the GPU."""
    tiles = np.maximum(ceil_div(m, TILE) * ceil_div(n, TILE), 1)
    room = np.maximum(num_sms / tiles, 1.0)
    return np.asarray(np.minimum(room, np.minimum(groups, STREAMS)), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOp(Share):
    """An operation with its time for N rows; ``crosses`` where what is cut into pieces leaves the scale-up domain, over
    which nobody pipelines it; ``losses`` of a collective and products beside it where they were measured; ``twice``
    the share of a product that a second wave doubles beside a collective (solver.times.contention)."""

    op: Op
    crosses: BoolArray | bool = False
    losses: Losses | None = None
    twice: FloatArray | float = 1.0

    @property
    def products_s(self) -> FloatArray:
        """Seconds of matrix products that lose a second wave, or what was measured, beside a collective."""
        return self.seconds * self.twice * (self.part in PRODUCTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimer:
    """A cost model, the domains that decide where collectives run (``middle_ranks`` of the second of
    three, 0 where there are two), and what a training step does to the times of its parts:
    ``training_rate_ratio`` (spec.cluster.cluster.GpuSpec; in the formats of ``sustained`` what the profile
    measured) and ``contention`` with collectives. With a ``gpu``, compute takes as long as on the slowest of
    the world (solver.times.op_times); without one, times are taken as they are. ``overlap``: what
    collectives and products were measured to lose to each other; ``copies``: what copies to the host and back
    were measured to take; ``layers``: how much longer than its kernels a layer was measured to take;
    ``exchanges`` of tokens as they were measured; ``casts``: their own kernels were; ``unaligned``: products
    with rows at odd addresses that were measured.
    """

    cost_model: CostModel
    domain_ranks: int
    training_rate_ratio: float = 1.0
    sustained: SustainedRates = NOTHING_SUSTAINED
    contention: Contention = ALONE
    gpu: GpuSpec | None = None
    middle_ranks: int = 0
    host: HostSpec | None = None
    gpus_per_node: int = 1
    overlap: OverlapLosses | None = None
    copies: HostCopies | None = None
    layers: LayerSum | None = None
    exchanges: MeasuredExchanges | None = None
    casts: bool = False
    unaligned: MeasuredExtents = NOTHING_MEASURED

    @staticmethod
    def on(cluster: ClusterSpec, cost_model: CostModel) -> "OpTimer":
        """Returns the timer of operations for a cluster's domains, clocks under load, and multiprocessors."""
        return OpTimer(
            cost_model=cost_model,
            domain_ranks=cluster.scale_up_ranks,
            training_rate_ratio=cluster.gpu.training_rate_ratio,
            sustained=sustained_rates(cost_model, cluster.gpu.name),
            contention=Contention.on(cluster.gpu),
            gpu=cluster.gpu,
            middle_ranks=cluster.middle_ranks,
            host=cluster.host,
            gpus_per_node=cluster.gpus_per_node,
            overlap=overlap_losses(cost_model.profile) if isinstance(cost_model, ProfileCostModel) else None,
            copies=host_copies(cost_model.profile) if isinstance(cost_model, ProfileCostModel) else None,
            layers=layer_sum(cost_model) if isinstance(cost_model, ProfileCostModel) else None,
            exchanges=measured_exchanges(cost_model) if isinstance(cost_model, ProfileCostModel) else None,
            casts=has_measured_casts(cost_model),
            unaligned=measured_extents(cost_model.profile)
            if isinstance(cost_model, ProfileCostModel)
            else NOTHING_MEASURED,
        )

    def time(self, op: Op, layout: Layout) -> TimedOp:
        """Returns the seconds of one operation for every row of ``layout``."""
        rows, world = len(layout), layout.world_size
        load = 1.0
        longer_s: FloatArray | float = 0.0
        twice: FloatArray | float = 1.0
        crosses: BoolArray | bool = False
        match op:
            case Comm():
                part, family = COMM_PART[op.axis], op.collective.value
                priced = self._collective(op, layout)
                if op.pieces is not None:
                    crosses = bools(group_of(op.axis, layout, self.domain_ranks).inter > 1)
            case CpuOverhead():
                part = family = "host"
                priced = self._host(op)
            case HostTransfer() | HostUpdate():
                part = family = "offload"
                priced = self._offloaded(op, layout)
            case Attention():
                part, family = "attention", f"attention {op.direction}"
                priced = attention_price(self.cost_model, self.gpu, attention_query(op))
                rates = published_rates(op.kernel, self.gpu.architecture) if self.gpu else None
                load = self._load(op.dtype, world, clocked=rates is None or not rates.holds_under_load)
            case BatchedGemm() | GroupedGemm():
                part, family = ("gemm", f"gemm {op.layout}") if isinstance(op, BatchedGemm) else ("grouped_gemm",) * 2
                priced, load = self._kernel(op), self._load(op.dtype, world)
                # What products lose as they were measured holds for all alike.
                if self.overlap is None:
                    twice = self.contention.twice(op)
            case MemoryBound():
                part = family = "memory_bound"
                priced = kernel_calls_s(self.cost_model, op) if op.stands_for and self.casts else self._kernel(op)
                if self.gpu:
                    direction, elements = (
                        "backward" if op.backward else "forward",
                        floats(op.repeat * op.rows * op.width),
                    )
                    longer_s = longer_under_load(self.gpu, op.kernel, direction, elements, op.dtype)
            case _:
                part = family = "optimizer"
                priced = self._kernel(op)
        return TimedOp(
            op=op,
            part=part,
            family=family,
            seconds=of_rows(priced.seconds, rows) * op.repeat * load + longer_s,
            relative_std=of_rows(priced.relative_std, rows),
            origin=of_rows(priced.origin, rows),
            carried_std=of_rows(priced.carried_std, rows),
            crosses=crosses,
            losses=self.losses(op, layout) if self.overlap else None,
            twice=twice,
        )

    def _kernel(self, op: Op) -> TimeEstimate:
        """Work that a rank does alone, products with the kernels that the framework starts for them."""
        priced = kernel_s(self.cost_model, op)
        if priced is None:
            raise TypeError(f"no price for {type(op).__name__}")
        if isinstance(op, GroupedGemm) and self.gpu and not op.one_kernel:
            return products_apart_s(self.cost_model, op, priced, self.gpu.num_sms)
        if isinstance(op, BatchedGemm) and self.gpu:
            return unaligned_s(self.gpu, op, priced, self.unaligned)
        return priced

    def _load(self, dtype: str, world_size: int, *, clocked: bool = True) -> float:
        """Seconds of an operation in a step of so many GPUs over its seconds alone on a typical one: it waits for the
        slowest of them and, where it is ``clocked`` down, runs at the rate of training."""
        waits = slowest_of(world_size) if self.gpu else 1.0
        if not clocked:
            return waits
        return waits / self.sustained.of(dtype, otherwise=self.training_rate_ratio)

    def losses(self, op: Op, layout: Layout) -> Losses | None:
        """Returns what a collective of NCCL and products beside it lose to each other, for every row of ``layout``;
        None where nobody measured it."""
        if self.overlap is None or not isinstance(op, Comm) or op.thread_blocks:
            return None
        group = group_of(op.axis, layout, self.domain_ranks)
        return self.overlap.of(op.collective, op.size_bytes, group.intra, group.inter)

    def p2p(self, layout: Layout, size_bytes: IntArray) -> TimeEstimate:
        """One activation from a pipeline stage to the next."""
        return self._neighbours(Axis.PP, layout, size_bytes)

    def _neighbours(self, axis: Axis, layout: Layout, size_bytes: IntArray) -> TimeEstimate:
        """A message from every member of a group to the next one, all at once."""
        group = group_of(axis, layout, self.domain_ranks)
        pair = neighbours(group, self.domain_ranks)
        middle = self.middle_ranks or self.domain_ranks
        outer = neighbours(group_of(axis, layout, middle), middle)
        return self.cost_model.p2p_s(
            P2PQuery(
                size_bytes=np.where(group.ranks > 1, size_bytes, 0),
                intra=pair.intra,
                inter=pair.inter,
                siblings=pair.siblings,
                outer_intra=outer.intra if self.middle_ranks else 0,
                outer_siblings=outer.siblings if self.middle_ranks else 0,
            )
        )

    def _host(self, op: CpuOverhead) -> TimeEstimate:
        launch = self.cost_model.cpu_s("launch")
        return TimeEstimate(
            seconds=op.launches * launch.seconds[0],
            relative_std=np.full(len(op.launches), launch.relative_std[0]),
            origin=np.full(len(op.launches), launch.origin[0]),
        )

    def _offloaded(self, op: HostTransfer | HostUpdate, layout: Layout) -> TimeEstimate:
        ranks = min(self.gpus_per_node, layout.world_size)
        if isinstance(op, HostTransfer) and self.copies is not None:
            way = TO_DEVICE if op.role in FROM_HOST else TO_HOST
            measured = self.copies.of(way, op.size_bytes, ranks)
            if measured is not None:
                return measured
        if self.host is None:
            raise ConfigError(where="--cluster", key="host", value=None, allowed=HOST_NEEDED)
        if isinstance(op, HostTransfer):
            return host_transfer_s(self.host, op.size_bytes, self.gpus_per_node)
        return host_update_s(self.host, op.elements, ranks)

    def _collective(self, op: Comm, layout: Layout) -> TimeEstimate:
        """A collective of every group of its axis at once, a message to the next member, or an exchange of tokens."""
        if op.collective is Collective.P2P:
            return self._neighbours(op.axis, layout, op.size_bytes)
        group = group_of(op.axis, layout, self.domain_ranks)
        if (op.routed or op.kernel) and not self.middle_ranks:
            exchange_s = self.exchanges.priced if self.exchanges else even_s
            return exchange_s(self.cost_model, op, group)
        outer = group_of(op.axis, layout, self.middle_ranks) if self.middle_ranks else None
        return self.cost_model.collective_s(
            CollectiveQuery(
                collective=op.collective,
                size_bytes=np.where(group.ranks > 1, op.size_bytes, 0),
                intra=group.intra,
                inter=group.inter,
                siblings=group.siblings,
                outer_intra=outer.intra if outer else 0,
                outer_siblings=outer.siblings if outer else 0,
            )
        )


PRODUCTS = ("gemm", "grouped_gemm")
FROM_HOST = (Role.ACTIVATIONS_FROM_HOST, Role.PARAMETERS_FROM_HOST)
COMPUTE_BOUND = (BatchedGemm, GroupedGemm, Attention)
