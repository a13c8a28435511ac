"""The step time SimAI-Analytical would print for a workload, by its own closed form.

Source: SimAI 1.6/1.7, ``Layer::report``.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from spec.units import GIB
from workload.simai.closed_form.options import AnalyticalOptions
from workload.simai.closed_form.row_price import RowPrice, RowPricer
from workload.simai.format import SimaiHeader, SimaiWorkload
from workload.simai.tokens import Column, SimaiGroup
from workload.workload_error import WorkloadError

EMBEDDING = "embedding_layer"
US = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticalReport:
    """Seconds by part; they sum to ``total_s``. ``printed`` is what the simulator adds up and prints (us).
    ``warnings`` name where it would have gone wrong, with how often."""

    compute_s: float
    dp_s: float
    dp_ep_s: float
    tp_s: float
    ep_s: float
    pp_s: float
    bubble_s: float
    printed: "PrintedTimes"
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


@dataclass(slots=True, kw_only=True)
class PrintedTimes:
    """Microseconds summed over rows in the simulator's order, so that they round as its own; expert and tensor
    communication split by the row's forward group. ``bubble_us`` is what the bubble is a share of until ``end``."""

    compute_us: float = 0.0
    exposed_us: float = 0.0
    dp_us: float = 0.0
    dp_ep_us: float = 0.0
    tp_us: float = 0.0
    ep_us: float = 0.0
    pp_us: float = 0.0
    bubble_us: float = 0.0

    @property
    def total_us(self) -> float:
        """The step."""
        return self.compute_us + self.exposed_us + self.bubble_us + self.pp_us

    def add(self, row: RowPrice) -> None:
        """Add one row."""
        forward, input_grad, weight_grad = (row.passes[column] for column in Column)
        if row.name != EMBEDDING:
            held = forward.comm_ns + input_grad.comm_ns
            self.bubble_us += (held + sum(each.compute_ns for each in row.passes.values())) / 1000
        if row.weight_grad_group is SimaiGroup.DP_EP:
            self.dp_ep_us += weight_grad.exposed_ns / 1000
        else:
            self.dp_us += weight_grad.exposed_ns / 1000
        if row.forward_group is SimaiGroup.EP:
            self.ep_us += (forward.exposed_ns + input_grad.exposed_ns) / 1000
        else:
            self.tp_us += (forward.exposed_ns + input_grad.exposed_ns) / 1000
        for each in (forward, weight_grad, input_grad):
            self.compute_us += each.compute_ns / 1000
            self.exposed_us += each.exposed_ns / 1000

    def end(self, header: SimaiHeader, pipeline_us: float) -> None:
        """Take the pipeline's share of what the rows hold, and its transfers."""
        self.bubble_us *= (header.pp - 1) / (header.ga * header.vpp)
        self.pp_us = pipeline_us


def price_simai(workload: SimaiWorkload, options: AnalyticalOptions) -> AnalyticalReport:
    """Price ``workload``. Raises WorkloadError for options outside their range, a world that tp x pp does
    not divide, groups without a NIC, and sizes above the ratio tables."""
    header = options.world(workload.header)
    pricer = RowPricer(header=header, options=options)
    times = PrintedTimes()
    for row in priced_rows(workload, pricer):
        times.add(row)
    if options.ratios is None and pricer.uncorrected:
        pricer.warnings["no ratio tables: gathers and all-to-alls run at their full bus bandwidth"] += 1
    times.end(header, _pipeline_us(header, options, pricer.warnings))
    return AnalyticalReport(
        compute_s=times.compute_us * US,
        dp_s=times.dp_us * US,
        dp_ep_s=times.dp_ep_us * US,
        tp_s=times.tp_us * US,
        ep_s=times.ep_us * US,
        pp_s=times.pp_us * US,
        bubble_s=times.bubble_us * US,
        printed=times,
        warnings=tuple(
            text if count == 1 else f"{text} ({count} times)" for text, count in pricer.warnings.items()
        ),
    )


def priced_rows(workload: SimaiWorkload, pricer: RowPricer) -> Iterator[RowPrice]:
    """Every row with what it takes."""
    rows = list(workload.rows)
    for row, replays in zip(rows, pricer.header.replays(len(rows)), strict=True):
        yield pricer.price(row, replays)


def _pipeline_us(header: SimaiHeader, options: AnalyticalOptions, warnings: Counter[str]) -> float:
    """Exposed pipeline transfers (us). Upstream divides by its overlap share as if it were a bandwidth; here
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
    return hops / GIB / bandwidth * (1 - options.pp_overlap) / US
