"""The step time of a workload by SimAI-Analytical's own closed form, and the table that it prints.

Source: SimAI 1.6/1.7, ``Layer::compute_time`` (time of one collective), ``Layer::report`` (what overlap hides of it,
the sum over rows) and ``Layer::compute_busbw``. Where that program yields NaN, an endless loop or free communication
without a message, this one raises WorkloadError, or adds a warning that says what it did instead."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from spec.collectives import Collective
from spec.units import GIB
from workload.diagnostics import WorkloadError
from workload.simai.busbw import (
    BusBandwidths,
    RatioTables,
    SimaiNetwork,
    bus_bandwidth_gib,
    group_shape,
    ratio_of,
    single,
)
from workload.simai.format import (
    CELL_LIMIT_NS,
    FORWARD_FLOOR_BYTES,
    GROUPS_OF_PASS,
    NO_COMM,
    RATIO_LIMIT_BYTES,
    SMALL_BYTES,
    SimaiGroup,
    SimaiHeader,
    SimaiPass,
    SimaiRow,
    SimaiWorkload,
    read_token,
    uses_ratio,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticalOptions:
    """Options of the closed form. Overlaps are the hidden shares 0..1 of each group's communication (-dp_o, -tp_o, -ep_o, -pp_o; the last is 1 by default as in SimAI, so that
    messages of the pipeline cost nothing). ``busbw`` are bandwidths that replace those of the network."""

    network: SimaiNetwork
    ratios: RatioTables | None = None
    busbw: BusBandwidths | None = None
    dp_overlap: float = 0.0
    tp_overlap: float = 0.0
    ep_overlap: float = 0.0
    pp_overlap: float = 1.0

    def check(self, header: SimaiHeader) -> None:
        """Raises WorkloadError for overlaps outside of their range, and for a world that tp x pp does not divide."""
        for flag, share in {
            "-dp_o": self.dp_overlap,
            "-tp_o": self.tp_overlap,
            "-ep_o": self.ep_overlap,
            "-pp_o": self.pp_overlap,
        }.items():
            if not 0 <= share <= 1:
                raise WorkloadError(f"{flag} = {share}: a share of 0 to 1")
        stage = header.tp * header.pp
        if header.all_gpus % stage:
            raise WorkloadError(
                f"-g {header.all_gpus}: must be a multiple of tp x pp = {header.tp} x {header.pp} = {stage}"
            )


# Times of rows.

# Layer::compute_time: nanoseconds of any collective of 2 bytes to 1 MiB - 1 by number of ranks.
FIXED_NS = {2: 10_000, 4: 12_000, 8: 15_000, 16: 66_000, 32: 135_000, 64: 200_000, 128: 320_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPrice:
    """One pass of a row: compute with its recomputations, its collective of ``size_bytes`` over ``ranks``, and the
    exposed part of that (ns)."""

    compute_ns: int
    comm_ns: int
    exposed_ns: int
    collective: Collective | None
    ranks: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPrice:
    """Name and passes of a row, and the groups under which the simulator adds up its collectives."""

    name: str
    passes: dict[SimaiPass, PassPrice]
    forward_group: SimaiGroup
    weight_grad_group: SimaiGroup


@dataclass(slots=True, kw_only=True)
class RowTimer:
    """Times the rows of a workload, each distinct collective once. ``uncorrected``: a collective that SimAI corrects by
    ratio tables was timed without them."""

    header: SimaiHeader
    options: AnalyticalOptions
    warnings: Counter[str] = field(default_factory=Counter)
    uncorrected: bool = False
    cache: dict[tuple[str, SimaiPass, int], int] = field(default_factory=dict)

    def price(self, row: SimaiRow, replays: int) -> RowPrice:
        """Returns the times of one row, whose forward is recomputed ``replays`` times."""
        if max(row.compute_ns(column) for column in SimaiPass) >= CELL_LIMIT_NS:
            self.warnings[f"a compute cell of {CELL_LIMIT_NS} ns or more: SimAI would never end"] += 1
        forward_group = read_token(row.forward_comm, SimaiPass.FORWARD)[1]
        # The simulator takes the overlap of a row's first two passes by the group of its forward.
        exposed_share = {
            SimaiPass.FORWARD: self._exposed_share(forward_group),
            SimaiPass.INPUT_GRAD: self._exposed_share(forward_group),
            SimaiPass.WEIGHT_GRAD: 1 - single(self.options.dp_overlap),
        }
        passes = {}
        for column in SimaiPass:
            token, size_bytes = row.comm(column)
            collective, group = read_token(token, column)
            timed_bytes = self._timed_bytes(size_bytes, column)
            comm_ns = self.price_ns(token, timed_bytes, column)
            runs = 1 + replays if column is SimaiPass.FORWARD else 1
            passes[column] = PassPrice(
                compute_ns=runs * int(single(row.compute_ns(column))),
                comm_ns=comm_ns,
                exposed_ns=int(single(single(comm_ns) * single(exposed_share[column]))),
                collective=collective,
                ranks=self._ranks(group, column),
                size_bytes=timed_bytes,
            )
        return RowPrice(
            name=row.name,
            passes=passes,
            forward_group=forward_group,
            weight_grad_group=read_token(row.weight_grad_comm, SimaiPass.WEIGHT_GRAD)[1],
        )

    def _exposed_share(self, forward_group: SimaiGroup) -> float:
        """Returns the exposed share of a row's forward and input-grad communication."""
        experts = forward_group is SimaiGroup.EP
        return 1 - single(self.options.ep_overlap if experts else self.options.tp_overlap)

    def _timed_bytes(self, size_bytes: int, column: SimaiPass) -> int:
        """Returns the bytes that the simulator times: rounded to a C++ float, and at least the floor of a forward."""
        timed = int(single(size_bytes))
        if self.header.policy.endswith("FWD_IN_BCKWD") and column is SimaiPass.FORWARD and timed > 0:
            return max(timed, FORWARD_FLOOR_BYTES)
        return timed

    def price_ns(self, token: str, size_bytes: int, column: SimaiPass) -> int:
        """Returns the nanoseconds of one collective."""
        key = (token, column, size_bytes)
        if key not in self.cache:
            self.cache[key] = self._price(token, size_bytes, column)
        return self.cache[key]

    def _price(self, token: str, size_bytes: int, column: SimaiPass) -> int:
        collective, group = read_token(token, column)
        if collective is None:
            if token != NO_COMM:
                self.warnings[f"{token!r} in a {column.value} column is no communication word: it moves nothing"] += 1
            return 0
        if group not in GROUPS_OF_PASS[column]:
            self.warnings[f"{token} in a {column.value} column is timed with another group's size"] += 1
        ranks = self._ranks(group, column)
        if ranks <= 1:
            if group is SimaiGroup.TP and size_bytes not in SMALL_BYTES:
                self.warnings[f"{token} over a {group.value} group of one costs 0 here; SimAI adds 9.2e18 ns"] += 1
            return 0
        if size_bytes in SMALL_BYTES:
            if ranks not in FIXED_NS:
                self.warnings[f"collectives below 1 MiB over {ranks} ranks cost 0, as SimAI counts them"] += 1
            return FIXED_NS.get(ranks, 0)
        return self._transfer_ns(collective, group, size_bytes, ranks)

    def _transfer_ns(self, collective: Collective, group: SimaiGroup, size_bytes: int, ranks: int) -> int:
        busbw = self.options.busbw
        bandwidth = busbw.groups.get((group, collective)) if busbw else None
        if bandwidth is None:
            bandwidth = self._modelled_gib(collective, group, size_bytes, ranks)
        # Bus bandwidth to time, as in nccl-tests: 2 (n - 1) / n for an all-reduce, (n - 1) / n for the others.
        factor = 2.0 if collective is Collective.ALL_REDUCE else 1.0
        return int(size_bytes / GIB / single(bandwidth) * 1e9 * factor * (ranks - 1) / ranks)

    def _modelled_gib(self, collective: Collective, group: SimaiGroup, size_bytes: int, ranks: int) -> float:
        network = self.options.network
        shape = group_shape(group, ranks, self.header, network)
        bandwidth, nvlink_bound = bus_bandwidth_gib(collective, shape, network)
        if self.options.ratios is None:
            if uses_ratio(collective, group):
                self.uncorrected = True
                if size_bytes > RATIO_LIMIT_BYTES:
                    self.warnings["gathers above 16 GiB: SimAI's result file would be empty"] += 1
            return bandwidth
        ratio = ratio_of(self.options.ratios, collective, group, size_bytes, shape, nvlink_bound=nvlink_bound)
        return bandwidth * single(ratio)

    def _ranks(self, group: SimaiGroup, column: SimaiPass) -> int:
        """Returns the group size that the simulator uses, which depends on the pass first."""
        if column is SimaiPass.WEIGHT_GRAD:
            return self.header.group_ranks(group if group is SimaiGroup.DP_EP else SimaiGroup.DP)
        return self.header.ep if group is SimaiGroup.EP else self.header.tp


# The step (Layer::report).

EMBEDDING = "embedding_layer"
US = 1e-6


@dataclass(slots=True, kw_only=True)
class PrintedTimes:
    """Microseconds summed over rows in the simulator's order, so that they round as its own; expert and tensor
    communication are split by the row's forward group. Until ``end`` ``bubble_us`` is the sum that the bubble is a
    share of. ``warnings``: where the simulator would have gone wrong, with how often."""

    compute_us: float = 0.0
    exposed_us: float = 0.0
    dp_us: float = 0.0
    dp_ep_us: float = 0.0
    tp_us: float = 0.0
    ep_us: float = 0.0
    pp_us: float = 0.0
    bubble_us: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, float]:
        """Returns the seconds of each part, in the order of the simulator's result file; they sum to ``total_s``."""
        names = ("dp", "dp_ep", "tp", "ep", "pp", "bubble", "compute")
        return {name: getattr(self, f"{name}_us") * US for name in names}

    @property
    def total_s(self) -> float:
        """Returns the seconds of the step."""
        return sum(self.parts.values())

    @property
    def total_us(self) -> float:
        """Returns the step."""
        return self.compute_us + self.exposed_us + self.bubble_us + self.pp_us

    def add(self, row: RowPrice) -> None:
        """Adds one row."""
        forward, input_grad, weight_grad = (row.passes[column] for column in SimaiPass)
        if row.name != EMBEDDING:
            comm_ns = forward.comm_ns + input_grad.comm_ns
            self.bubble_us += (comm_ns + sum(each.compute_ns for each in row.passes.values())) / 1000
        over_data_us = weight_grad.exposed_ns / 1000
        inside_us = (forward.exposed_ns + input_grad.exposed_ns) / 1000
        if row.weight_grad_group is SimaiGroup.DP_EP:
            self.dp_ep_us += over_data_us
        else:
            self.dp_us += over_data_us
        if row.forward_group is SimaiGroup.EP:
            self.ep_us += inside_us
        else:
            self.tp_us += inside_us
        for each in (forward, weight_grad, input_grad):
            self.compute_us += each.compute_ns / 1000
            self.exposed_us += each.exposed_ns / 1000

    def end(self, header: SimaiHeader, pipeline_us: float) -> None:
        """Adds what the pipeline costs: the bubble, (pp - 1) / (ga vpp) of the rows' sum, and its messages."""
        self.bubble_us *= (header.pp - 1) / (header.ga * header.vpp)
        self.pp_us = pipeline_us


def price_simai(workload: SimaiWorkload, options: AnalyticalOptions) -> PrintedTimes:
    """Returns the step time of ``workload``. Raises WorkloadError for options outside their range, a world that tp x pp
    does not divide, groups without a NIC, and sizes above the ratio tables."""
    header = workload.header
    options.check(header)
    row_timer = RowTimer(header=header, options=options)
    times = PrintedTimes()
    for row in row_prices(workload, row_timer):
        times.add(row)
    if options.ratios is None and row_timer.uncorrected:
        row_timer.warnings["no ratio tables: gathers and all-to-alls run at their full bus bandwidth"] += 1
    times.end(header, _pipeline_us(header, options, row_timer.warnings))
    counts = row_timer.warnings.items()
    times.warnings = tuple(text if count == 1 else f"{text} ({count} times)" for text, count in counts)
    return times


def row_prices(workload: SimaiWorkload, row_timer: RowTimer) -> Iterator[RowPrice]:
    """Yields the times of every row."""
    rows = list(workload.rows)
    for row, replays in zip(rows, row_timer.header.replays(len(rows)), strict=True):
        yield row_timer.price(row, replays)


def _pipeline_us(header: SimaiHeader, options: AnalyticalOptions, warnings: Counter[str]) -> float:
    """Returns the exposed messages of the pipeline (us). SimAI divides by its overlap share as if it were a bandwidth;
    here the bandwidth comes from the busbw file, or the time is 0 with a warning."""
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
    # A message forward and one backward, of every chunk and micro-batch.
    size_bytes = 2 * header.vpp * header.ga * header.pp_comm_bytes
    return size_bytes / GIB / bandwidth * (1 - options.pp_overlap) / US


# The table that SimAI-Analytical writes (``EndToEnd.csv``): a summary and a line a row, times in microseconds. Where it
# writes ``-nan`` for the bandwidth of a collective that takes no time the cell is empty here.

# The order of the passes in a row, and the word that stands for each.
PASSES = ((SimaiPass.FORWARD, "fwd"), (SimaiPass.WEIGHT_GRAD, "wg"), (SimaiPass.INPUT_GRAD, "ig"))
RUN = "Analytical_test"
TITLES = (
    "File name, Expose DP comm, Expose DP_EP comm, Expose TP comm, Expose_EP_comm, Expose_PP_comm, bubble time, "
    "total comp, total exposed comm, Total time"
)


def summary_lines(times: PrintedTimes, name: str) -> tuple[str, str]:
    """Returns the first two lines; ``name`` is the prefix of the file's name."""
    parts = (
        *(times.dp_us, times.dp_ep_us, times.tp_us, times.ep_us, times.pp_us),
        *(times.bubble_us, times.compute_us, times.exposed_us),
    )
    total = times.total_us
    shares = [f"{each:.0f} ({each / total if total else 0.0:.2%})" for each in parts]
    return TITLES, ", ".join([name, *shares, f"{total:.0f}"])


def row_lines(workload: SimaiWorkload, options: AnalyticalOptions) -> Iterator[str]:
    """Yields the titles of the rows, and a line for each row."""
    row_timer = RowTimer(header=workload.header, options=options)
    words = [word for _, word in PASSES]
    yield ",".join(
        [
            "layer_name",
            RUN,
            *(f"{word} compute" for word in words),
            *(f"{word} exposed comm" for word in words),
            *(f"{word} total comm,algbw,busbw" for word in words),
        ]
    )
    for row in row_prices(workload, row_timer):
        yield _line(row)


def _line(row: RowPrice) -> str:
    passes = [row.passes[column] for column, _ in PASSES]
    cells = [row.name, RUN]
    cells += [f"{each.compute_ns / 1000:.0f}" for each in passes]
    cells += [f"{each.exposed_ns / 1000:.0f}" for each in passes]
    for each in passes:
        cells += [f"{each.comm_ns / 1000:.0f}", *_bandwidths(each)]
    return ",".join(cells)


def _bandwidths(one: PassPrice) -> tuple[str, str]:
    """Returns algorithm and bus bandwidth (GiB/s) of a collective."""
    if one.collective is None:
        return "", "0.00"
    if not one.comm_ns:
        return "", ""
    algbw = single(one.size_bytes / (one.comm_ns / 1000) * 1e6 / GIB)
    factor = 2 if one.collective is Collective.ALL_REDUCE else 1
    busbw = single(algbw * factor * (one.ranks - 1) / one.ranks)
    return f"{algbw:.2f}", f"{busbw:.2f}"
