"""Seconds of one operation on one rank: the cost model's time of its kernels, and what a training step adds to it.

``OpTimer.time`` chooses by the operation's kind: matrix products, attention and memory-bound kernels run alone and at
the clocks of a loaded GPU; collectives depend on where their group lies; CPU overhead and offload have figures of their
own."""

from dataclasses import dataclass, field, fields, replace
from operator import attrgetter

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
    Phase,
    Update,
)
from ops.roles import Role
from profdb.cost_model import CostModel, ProfileCostModel, has_measured_casts, kernel_calls_s, kernel_s
from profdb.host_copies import TO_DEVICE, TO_HOST, HostCopies, host_copies, host_transfer_s, host_update_s
from profdb.layer_sum import LayerSum, layer_sum
from profdb.modelled.flash_generations import attention_price, published_rates
from profdb.modelled.slow_kernels import (
    NOTHING_MEASURED,
    MeasuredExtents,
    longer_under_load_s,
    measured_extents,
    unaligned_s,
)
from profdb.overlap_losses import Losses, OverlapLosses, overlap_losses
from profdb.queries import CollectiveQuery, LinearQuery, P2PQuery, TimeEstimate
from profdb.sustained import NOTHING_SUSTAINED, SustainedRates, sustained_rates
from solver.times.contention import ALONE, Contention
from solver.times.expert_exchange import MeasuredExchanges, exchange_s, measured_exchanges
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
    """Returns the compute time of the slowest of ``ranks`` GPUs (at least 1) over that of a typical one; 1 for one GPU.

    GPUs of one model differ in the clock they hold at their power limit, and a training step ends when the slowest
    rank has computed."""
    return 1.0 + SPREAD * expected_largest(ranks)


STREAMS = 4
"""CUDA streams that grouped products start on in turn (nvte_get_num_compute_streams), each with a workspace of
cuBLAS."""
# Assumption: output elements of one thread block either way, the usual cuBLAS tile of 16-bit products.
TILE = 128


def products_apart_s(cost_model: CostModel, op: GroupedGemm, whole: TimeEstimate, num_sms: int) -> TimeEstimate:
    """Returns the seconds of ``op`` for every shape: ``whole`` (the cost model's own grouped time) where that was
    measured, elsewhere one product of ``linear_s`` an expert, as many at a time as multiprocessors and streams allow,
    and never faster than ``whole``. Transformer Engine's grouped linear starts a cuBLAS product for every expert on
    four streams in turn (transformer_engine/common/gemm/cublaslt_gemm.cu, multi_stream_cublas_gemm), so each product
    has its own tiles and its own last wave.

    Origin DERIVED where the single product was measured. Raises MissingCurveError as ``cost_model.linear_s`` does.
    """
    modelled = whole.origin >= int(Origin.MODELLED)
    if not modelled.any():
        return whole
    groups = np.maximum(op.groups, 1)
    rows = ceil_div(op.m, groups)
    # A weight gradient (TN) sums over the expert's rows, forward and input gradient (NT, NN) have them as m.
    m, k, n = (op.n, rows, op.k) if op.layout == "TN" else (rows, op.k, op.n)
    one = cost_model.linear_s(
        LinearQuery(m=m, k=k, n=n, layout=op.layout, dtype=op.dtype, scale_recipe=op.scale_recipe)
    )
    seconds = np.where(op.groups > 0, groups * one.seconds / _concurrent_products(groups, m, n, num_sms), 0.0)
    origin = np.where(one.origin < int(Origin.MODELLED), int(Origin.DERIVED), one.origin)
    return TimeEstimate(
        seconds=np.where(modelled, np.maximum(seconds, whole.seconds), whole.seconds),
        relative_std=np.where(modelled, np.maximum(one.relative_std, whole.relative_std), whole.relative_std),
        origin=np.where(modelled, origin, whole.origin),
    )


def _concurrent_products(groups: IntArray, m: IntArray, n: IntArray, num_sms: int) -> FloatArray:
    """Returns how many products run at once: those whose tiles leave multiprocessors free share the GPU."""
    tiles = np.maximum(ceil_div(m, TILE) * ceil_div(n, TILE), 1)
    fit = np.maximum(num_sms / tiles, 1.0)
    return np.asarray(np.minimum(fit, np.minimum(groups, STREAMS)), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOp(Share):
    """An operation with its time for N rows.

    ``crosses``: a collective in pieces leaves the scale-up domain, where no framework pipelines it; ``losses``: what a
    collective and products that overlap it lose to each other, where that was measured; ``second_wave``: the share of a
    product that a second wave of tiles doubles while a collective runs (solver.times.contention).
    """

    op: Op
    crosses: BoolArray | bool = False
    losses: Losses | None = None
    second_wave: FloatArray | float = 1.0

    @property
    def products_s(self) -> FloatArray:
        """Returns the seconds of a matrix product that a collective beside it slows down."""
        return self.seconds * self.second_wave * (self.part in PRODUCTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimer:
    """Times operations: a cost model, the network domains that decide how collectives run (``middle_ranks`` of the
    second of three, 0 where there are two), and what a training step does to the times of kernels.

    ``training_rate_ratio`` (spec.cluster.cluster.GpuSpec) are the clocks of a step over those of a benchmark, in the
    formats of ``sustained`` as the profile measured them; ``contention`` what kernels lose to collectives. With a
    ``gpu`` compute takes as long as on the slowest GPU of the world; without one the cost model's times stand. The rest
    is what a profile measured, and None or empty otherwise: ``overlap``, what collectives and products lose to each
    other; ``copies`` to the host and back; ``layers``, how much longer a layer takes than its kernels; ``exchanges`` of
    tokens; ``casts``, whether they have kernels of their own; ``unaligned``, products with rows at odd addresses."""

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
    known: dict[tuple[object, ...], TimedOp] | None = field(default=None, compare=False, repr=False)

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
        """Returns the seconds of one operation for every row of ``layout``. With ``known``, of this layout alone, equal
        operations are timed once: most of a layer's are there again, in recomputed forwards, first layers and other
        blocks."""
        key = timed_content(op) if self.known is not None else ()
        if self.known and key in self.known:
            return replace(self.known[key], op=op)
        rows, world = len(layout), layout.world_size
        # Factor of a step's load, seconds that a loaded GPU adds, and the share of a second wave.
        load = 1.0
        longer_s: FloatArray | float = 0.0
        second_wave: FloatArray | float = 1.0
        crosses: BoolArray | bool = False
        match op:
            case Comm():
                part, family = COMM_PART[op.axis], op.collective.value
                estimate = self._collective(op, layout)
                if op.pieces is not None:
                    # Ring exchange in pieces needs NVLink between all members.
                    crosses = bools(group_of(op.axis, layout, self.domain_ranks).inter > 1)
            case CpuOverhead():
                part = family = "host"
                estimate = self._host(op)
            case HostTransfer() | HostUpdate():
                part = family = "offload"
                estimate = self._offloaded(op, layout)
            case Attention():
                part, family = "attention", f"attention {op.direction}"
                estimate = attention_price(self.cost_model, self.gpu, op)
                # Rates published for a kernel on this GPU under load need no factor for its clocks.
                rates = published_rates(op.kernel, self.gpu.architecture) if self.gpu else None
                load = self._load(op.dtype, world, clocked=rates is None or not rates.holds_under_load)
            case BatchedGemm() | GroupedGemm():
                part, family = ("gemm", f"gemm {op.layout}") if isinstance(op, BatchedGemm) else ("grouped_gemm",) * 2
                estimate, load = self._kernel(op), self._load(op.dtype, world)
                # Losses that were measured are of all products alike, so no wave is counted.
                if self.overlap is None:
                    second_wave = self.contention.second_wave(op)
            case MemoryBound():
                part = family = "memory_bound"
                estimate = kernel_calls_s(self.cost_model, op) if op.stands_for and self.casts else self._kernel(op)
                # Some kernels take longer in a step than in a benchmark, by elements (profdb.modelled.slow_kernels).
                if self.gpu:
                    direction, elements = "backward" if op.backward else "forward", op.repeat * op.rows * op.width
                    longer_s = floats(elements) * longer_under_load_s(self.gpu, op.kernel, direction, op.dtype)
            case _:
                part = family = "optimizer"
                estimate = self._kernel(op)
        timed = TimedOp(
            op=op,
            part=part,
            family=family,
            seconds=of_rows(estimate.seconds, rows) * op.repeat * load + longer_s,
            relative_std=of_rows(estimate.relative_std, rows),
            origin=of_rows(estimate.origin, rows),
            carried_std=of_rows(estimate.carried_std, rows),
            crosses=crosses,
            losses=self.losses(op, layout) if self.overlap else None,
            second_wave=second_wave,
        )
        return timed if self.known is None else self.known.setdefault(key, timed)

    def _kernel(self, op: Op) -> TimeEstimate:
        """Returns the time of what a rank does alone, of products by the kernels that the framework starts for them."""
        estimate = kernel_s(self.cost_model, op)
        if estimate is None:
            raise TypeError(f"no price for {type(op).__name__}")
        if isinstance(op, GroupedGemm) and self.gpu and not op.one_kernel:
            return products_apart_s(self.cost_model, op, estimate, self.gpu.num_sms)
        if isinstance(op, BatchedGemm) and self.gpu:
            return unaligned_s(self.gpu, op, estimate, self.unaligned)
        return estimate

    def _load(self, dtype: str, world_size: int, *, clocked: bool = True) -> float:
        """Returns the seconds of an operation in a step of so many GPUs over its seconds alone on a typical one: it
        waits for the slowest of them and, where it is ``clocked`` down, runs at the rate of training."""
        slowest = slowest_of(world_size) if self.gpu else 1.0
        if not clocked:
            return slowest
        return slowest / self.sustained.of(dtype, otherwise=self.training_rate_ratio)

    def losses(self, op: Op, layout: Layout) -> Losses | None:
        """Returns what a collective of NCCL and products beside it lose to each other, for every row of ``layout``;
        None where no profile measured it."""
        # Collectives with thread blocks of their own (user buffers, DeepEP) are none of NCCL's, which were measured.
        if self.overlap is None or not isinstance(op, Comm) or op.thread_blocks:
            return None
        group = group_of(op.axis, layout, self.domain_ranks)
        return self.overlap.of(op.collective, op.size_bytes, group.intra, group.inter)

    def p2p(self, layout: Layout, size_bytes: IntArray) -> TimeEstimate:
        """Returns the time of a message from a pipeline stage to the next."""
        return self._neighbours(Axis.PP, layout, size_bytes)

    def _neighbours(self, axis: Axis, layout: Layout, size_bytes: IntArray) -> TimeEstimate:
        """Returns the time of a message from every member of a group to the next one, all at once."""
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
            direction = TO_DEVICE if op.role in FROM_HOST else TO_HOST
            measured = self.copies.of(direction, op.size_bytes, ranks)
            if measured is not None:
                return measured
        if self.host is None:
            raise ConfigError(where="--cluster", key="host", value=None, allowed=HOST_NEEDED)
        if isinstance(op, HostTransfer):
            return host_transfer_s(self.host, op.size_bytes, self.gpus_per_node)
        return host_update_s(self.host, op.elements, ranks)

    def _collective(self, op: Comm, layout: Layout) -> TimeEstimate:
        """Returns the time of a collective in every group of its axis at once, of a message to the next member, or of
        an exchange of tokens."""
        if op.collective is Collective.P2P:
            return self._neighbours(op.axis, layout, op.size_bytes)
        group = group_of(op.axis, layout, self.domain_ranks)
        # Tokens sent once to each domain, or by a dispatcher's kernel: two levels of network, which have a model of
        # their own.
        if (op.routed or op.kernel) and not self.middle_ranks:
            time_of = self.exchanges.time if self.exchanges else exchange_s
            return time_of(self.cost_model, op, group)
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


def timed_content(op: Op) -> tuple[object, ...]:
    """Returns all of an operation that its time depends on, with arrays as their bytes, and objects by their id."""
    kind: type = type(op)
    phase = Phase.FORWARD if op.phase is Phase.RECOMPUTE else op.phase
    values = (
        one.tobytes() if isinstance(one, np.ndarray) else one if isinstance(one, str | int | float) else id(one)
        for one in TIMED_FIELDS[kind](op)
    )
    return (kind, phase, *values)


KINDS = (Attention, BatchedGemm, Comm, CpuOverhead, GroupedGemm, HostTransfer, HostUpdate, MemoryBound, Update)
# The time of an operation depends on these alone of the fields that every operation has (bytes, lanes, names, owners).
UNTIMED = {one.name for one in fields(Op)} - {"role", "repeat", "pieces"}
TIMED_FIELDS: dict[type, "attrgetter[tuple[object, ...]]"] = {
    kind: attrgetter(*(one.name for one in fields(kind) if one.name not in UNTIMED)) for kind in KINDS
}

PRODUCTS = ("gemm", "grouped_gemm")
FROM_HOST = (Role.ACTIVATIONS_FROM_HOST, Role.PARAMETERS_FROM_HOST)
COMPUTE_BOUND = (BatchedGemm, GroupedGemm, Attention)
