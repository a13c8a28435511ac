"""The step time SimAI-Analytical would print for a workload, by its own closed form.

Source: SimAI 1.6/1.7, ``Layer::compute_time`` (price of one collective) and ``Layer::report`` (totals).
Where that program yields NaN, an endless loop or free communication without a word, this one raises
WorkloadError or adds a warning that says what it did instead.
"""

from collections import Counter
from dataclasses import dataclass, field

from spec.collectives import Collective
from spec.units import GIB
from workload.simai.closed_form.busbw_yaml import BusBandwidths
from workload.simai.closed_form.network import SimaiNetwork, bus_bandwidth_gib, group_shape
from workload.simai.closed_form.ratio import RatioTables, ratio_of
from workload.simai.format import SimaiHeader, SimaiRow, SimaiWorkload
from workload.simai.rules import CELL_LIMIT_NS, RATIO_LIMIT_BYTES, uses_ratio
from workload.simai.tokens import GROUPS_OF_COLUMN, NO_COMM, Column, SimaiGroup, read_token
from workload.workload_error import WorkloadError

# Layer::compute_time: nanoseconds of any collective of 2 bytes to 1 MiB - 1 by number of ranks.
FIXED_NS = {2: 10_000, 4: 12_000, 8: 15_000, 16: 66_000, 32: 135_000, 64: 200_000, 128: 320_000}
FIXED_BYTES = range(2, 2**20)
FORWARD_FLOOR_BYTES = 4096
EMBEDDING = "embedding_layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticalOptions:
    """``gpus``: the world (-g; the header's when None). Overlaps are the hidden shares 0..1 of each
    group's communication (-dp_o, -tp_o, -ep_o, -pp_o; the last is 1 by default as upstream, so that
    pipeline transfers cost nothing). ``busbw``: bandwidths that go before the network's."""

    network: SimaiNetwork
    gpus: int | None = None
    ratios: RatioTables | None = None
    busbw: BusBandwidths | None = None
    dp_overlap: float = 0.0
    tp_overlap: float = 0.0
    ep_overlap: float = 0.0
    pp_overlap: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticalReport:
    """Seconds by part; they sum to ``total_s``. ``warnings`` name where the simulator itself would have
    gone wrong, with how often."""

    compute_s: float
    dp_s: float
    dp_ep_s: float
    tp_s: float
    ep_s: float
    pp_s: float
    bubble_s: float
    warnings: tuple[str, ...]

    @property
    def parts(self) -> dict[str, float]:
        """Name of each part, in the order of the simulator's result file, and its seconds."""
        return {
            "dp": self.dp_s,
            "dp_ep": self.dp_ep_s,
            "tp": self.tp_s,
            "ep": self.ep_s,
            "pp": self.pp_s,
            "bubble": self.bubble_s,
            "compute": self.compute_s,
        }

    @property
    def total_s(self) -> float:
        """The step."""
        return sum(self.parts.values())


def price_simai(workload: SimaiWorkload, options: AnalyticalOptions) -> AnalyticalReport:
    """Price ``workload``. Raises WorkloadError for options outside their range, a world that tp x pp does
    not divide, groups without a NIC, and sizes above the ratio tables."""
    header = _world(workload.header, options)
    pricer = _Pricer(header=header, options=options)
    totals = _Totals()
    rows = list(workload.rows)
    for row, replays in zip(rows, header.replays(len(rows)), strict=True):
        pricer.add(row, replays, totals)
    if options.ratios is None and pricer.uncorrected:
        pricer.warnings["no ratio tables: gathers and all-to-alls run at their full bus bandwidth"] += 1
    bubble_ns = totals.bubble_base_ns * (header.pp - 1) / (header.ga * header.vpp)
    return AnalyticalReport(
        compute_s=totals.compute_ns * 1e-9,
        dp_s=totals.dp_ns * (1 - options.dp_overlap) * 1e-9,
        dp_ep_s=totals.dp_ep_ns * (1 - options.dp_overlap) * 1e-9,
        tp_s=totals.tp_ns * (1 - options.tp_overlap) * 1e-9,
        ep_s=totals.ep_ns * (1 - options.ep_overlap) * 1e-9,
        pp_s=_pipeline_s(header, options, pricer.warnings),
        bubble_s=bubble_ns * 1e-9,
        warnings=tuple(
            text if count == 1 else f"{text} ({count} times)" for text, count in pricer.warnings.items()
        ),
    )


@dataclass(slots=True, kw_only=True)
class _Totals:
    """Nanoseconds summed over rows; expert and tensor communication split by the row's forward group."""

    compute_ns: int = 0
    dp_ns: int = 0
    dp_ep_ns: int = 0
    tp_ns: int = 0
    ep_ns: int = 0
    bubble_base_ns: int = 0


@dataclass(slots=True, kw_only=True)
class _Pricer:
    """Prices of a workload's collectives, each distinct one computed once."""

    header: SimaiHeader
    options: AnalyticalOptions
    warnings: Counter[str] = field(default_factory=Counter)
    uncorrected: bool = False
    known: dict[tuple[str, Column, int], int] = field(default_factory=dict)

    def add(self, row: SimaiRow, replays: int, totals: _Totals) -> None:
        """Add one row, its forward replayed ``replays`` times."""
        compute = sum(row.compute_ns(column) for column in Column) + replays * row.forward_ns
        if max(row.compute_ns(column) for column in Column) >= CELL_LIMIT_NS:
            self.warnings[f"a compute cell of {CELL_LIMIT_NS} ns or more: SimAI would never end"] += 1
        forward, input_grad, weight_grad = (self.price_ns(*row.comm(column), column) for column in Column)
        totals.compute_ns += compute
        if read_token(row.weight_grad_comm, Column.WEIGHT_GRAD)[1] is SimaiGroup.DP_EP:
            totals.dp_ep_ns += weight_grad
        else:
            totals.dp_ns += weight_grad
        if read_token(row.forward_comm, Column.FORWARD)[1] is SimaiGroup.EP:
            totals.ep_ns += forward + input_grad
        else:
            totals.tp_ns += forward + input_grad
        if row.name != EMBEDDING:
            totals.bubble_base_ns += compute + forward + input_grad

    def price_ns(self, token: str, size_bytes: int, column: Column) -> int:
        """Nanoseconds of one collective."""
        key = (token, column, size_bytes)
        if key not in self.known:
            self.known[key] = self._price(token, size_bytes, column)
        return self.known[key]

    def _price(self, token: str, size_bytes: int, column: Column) -> int:
        collective, group = read_token(token, column)
        if collective is None:
            if token != NO_COMM:
                self.warnings[
                    f"{token!r} in a {column.value} column is no communication word: it moves nothing"
                ] += 1
            return 0
        if group not in GROUPS_OF_COLUMN[column]:
            self.warnings[f"{token} in a {column.value} column is timed with another group's size"] += 1
        ranks = self._ranks(group, column)
        if self.header.policy.endswith("FWD_IN_BCKWD") and column is Column.FORWARD and size_bytes > 0:
            size_bytes = max(size_bytes, FORWARD_FLOOR_BYTES)
        if ranks <= 1:
            if group is SimaiGroup.TP and size_bytes not in FIXED_BYTES:
                self.warnings[
                    f"{token} over a {group.value} group of one costs 0 here; SimAI adds 9.2e18 ns"
                ] += 1
            return 0
        if size_bytes in FIXED_BYTES:
            if ranks not in FIXED_NS:
                self.warnings[f"collectives below 1 MiB over {ranks} ranks cost 0, as SimAI counts them"] += 1
            return FIXED_NS.get(ranks, 0)
        return self._transfer_ns(collective, group, size_bytes, ranks)

    def _transfer_ns(self, collective: Collective, group: SimaiGroup, size_bytes: int, ranks: int) -> int:
        busbw = self.options.busbw
        bandwidth = busbw.groups.get((group, collective)) if busbw else None
        if bandwidth is None:
            bandwidth = self._derived_gib(collective, group, size_bytes, ranks)
        factor = 2.0 if collective is Collective.ALL_REDUCE else 1.0
        return int(size_bytes / GIB / bandwidth * 1e9 * factor * (ranks - 1) / ranks)

    def _derived_gib(self, collective: Collective, group: SimaiGroup, size_bytes: int, ranks: int) -> float:
        network = self.options.network
        shape = group_shape(group, ranks, self.header, network)
        bandwidth, nvlink_bound = bus_bandwidth_gib(collective, shape, network)
        if self.options.ratios is None:
            if uses_ratio(collective, group):
                self.uncorrected = True
                if size_bytes > RATIO_LIMIT_BYTES:
                    self.warnings["gathers above 16 GiB: SimAI's result file would be empty"] += 1
            return bandwidth
        return bandwidth * ratio_of(
            self.options.ratios,
            collective,
            group,
            size_bytes,
            shape,
            nvlink_bound=nvlink_bound,
        )

    def _ranks(self, group: SimaiGroup, column: Column) -> int:
        """The size the simulator uses, which depends on the column first."""
        if column is Column.WEIGHT_GRAD:
            return self.header.group_ranks(group if group is SimaiGroup.DP_EP else SimaiGroup.DP)
        return self.header.ep if group is SimaiGroup.EP else self.header.tp


def _world(header: SimaiHeader, options: AnalyticalOptions) -> SimaiHeader:
    """The header with the world of the options; WorkloadError for options that make no sense."""
    for flag, share in {
        "-dp_o": options.dp_overlap,
        "-tp_o": options.tp_overlap,
        "-ep_o": options.ep_overlap,
        "-pp_o": options.pp_overlap,
    }.items():
        if not 0 <= share <= 1:
            raise WorkloadError(f"{flag} = {share}: a share of 0 to 1")
    gpus = header.all_gpus if options.gpus is None else options.gpus
    stage = header.tp * header.pp
    if gpus < 1 or gpus % stage:
        raise WorkloadError(f"-g {gpus}: must be a multiple of tp x pp = {header.tp} x {header.pp} = {stage}")
    return SimaiHeader(
        policy=header.policy,
        tp=header.tp,
        ep=header.ep,
        pp=header.pp,
        vpp=header.vpp,
        ga=header.ga,
        all_gpus=gpus,
        checkpoints=header.checkpoints,
        checkpoint_initiates=header.checkpoint_initiates,
        pp_comm_bytes=header.pp_comm_bytes,
    )


def _pipeline_s(header: SimaiHeader, options: AnalyticalOptions, warnings: Counter[str]) -> float:
    """Exposed pipeline transfers (s). Upstream divides by its overlap share as if it were a bandwidth; here
    a bandwidth comes from the busbw file or the price is 0 with a warning."""
    if header.pp == 1 or header.pp_comm_bytes == 0:
        return 0.0
    bandwidth = options.busbw.pipeline_gib if options.busbw else None
    if options.pp_overlap == 1:
        warnings["pipeline transfers are not counted (-pp_o 1, as SimAI's default)"] += 1
        return 0.0
    if bandwidth is None:
        raise WorkloadError(
            f"-pp_o {options.pp_overlap}: needs the pipeline's bandwidth (PP: busbw in the -busbw file); "
            "SimAI takes the overlap itself for GiB/s"
        )
    hops = 2 * header.vpp * header.ga * header.pp_comm_bytes
    return hops / GIB / bandwidth * (1 - options.pp_overlap)
