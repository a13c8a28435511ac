"""What SimAI-Analytical takes for each row: the compute of its passes, and their collectives.

Source: SimAI 1.6/1.7, ``Layer::compute_time`` (price of one collective) and ``Layer::report`` (what overlap hides of
it). Where that program yields NaN, an endless loop or free communication without a word, this one raises WorkloadError
or adds a warning that says what it did instead.
"""

from collections import Counter
from dataclasses import dataclass, field

from spec.collectives import Collective
from spec.units import GIB
from workload.simai.closed_form.network import bus_bandwidth_gib, group_shape
from workload.simai.closed_form.options import AnalyticalOptions
from workload.simai.closed_form.ratio import ratio_of
from workload.simai.closed_form.single_precision import single
from workload.simai.format import SimaiHeader, SimaiRow
from workload.simai.rules import CELL_LIMIT_NS, RATIO_LIMIT_BYTES, uses_ratio
from workload.simai.tokens import GROUPS_OF_COLUMN, NO_COMM, Column, SimaiGroup, read_token

# Layer::compute_time: nanoseconds of any collective of 2 bytes to 1 MiB - 1 by number of ranks.
FIXED_NS = {2: 10_000, 4: 12_000, 8: 15_000, 16: 66_000, 32: 135_000, 64: 200_000, 128: 320_000}
FIXED_BYTES = range(2, 2**20)
FORWARD_FLOOR_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPrice:
    """One pass of a row: compute with its replays, its collective of ``size_bytes`` over ``ranks`` and what of it
    is not hidden (ns)."""

    compute_ns: int
    comm_ns: int
    exposed_ns: int
    collective: Collective | None
    ranks: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPrice:
    """A row's name and passes, and the groups of the collectives under which the simulator books it."""

    name: str
    passes: dict[Column, PassPrice]
    forward_group: SimaiGroup
    weight_grad_group: SimaiGroup


@dataclass(slots=True, kw_only=True)
class RowPricer:
    """Prices of a workload's rows, each distinct collective priced once."""

    header: SimaiHeader
    options: AnalyticalOptions
    warnings: Counter[str] = field(default_factory=Counter)
    uncorrected: bool = False
    known: dict[tuple[str, Column, int], int] = field(default_factory=dict)

    def price(self, row: SimaiRow, replays: int) -> RowPrice:
        """One row, its forward replayed ``replays`` times."""
        if max(row.compute_ns(column) for column in Column) >= CELL_LIMIT_NS:
            self.warnings[f"a compute cell of {CELL_LIMIT_NS} ns or more: SimAI would never end"] += 1
        forward_group = read_token(row.forward_comm, Column.FORWARD)[1]
        shown = {
            Column.FORWARD: self._shown(forward_group),
            Column.INPUT_GRAD: self._shown(forward_group),
            Column.WEIGHT_GRAD: 1 - single(self.options.dp_overlap),
        }
        passes = {}
        for column in Column:
            token, size_bytes = row.comm(column)
            collective, group = read_token(token, column)
            moved = self._moved_bytes(size_bytes, column)
            comm_ns = self.price_ns(token, moved, column)
            runs = 1 + replays if column is Column.FORWARD else 1
            passes[column] = PassPrice(
                compute_ns=runs * int(single(row.compute_ns(column))),
                comm_ns=comm_ns,
                exposed_ns=int(single(single(comm_ns) * single(shown[column]))),
                collective=collective,
                ranks=self._ranks(group, column),
                size_bytes=moved,
            )
        return RowPrice(
            name=row.name,
            passes=passes,
            forward_group=forward_group,
            weight_grad_group=read_token(row.weight_grad_comm, Column.WEIGHT_GRAD)[1],
        )

    def _shown(self, forward_group: SimaiGroup) -> float:
        """Share of a row's forward and input-grad communication that is not hidden."""
        experts = forward_group is SimaiGroup.EP
        return 1 - single(self.options.ep_overlap if experts else self.options.tp_overlap)

    def _moved_bytes(self, size_bytes: int, column: Column) -> int:
        """What the simulator makes of a size."""
        moved = int(single(size_bytes))
        if self.header.policy.endswith("FWD_IN_BCKWD") and column is Column.FORWARD and moved > 0:
            return max(moved, FORWARD_FLOOR_BYTES)
        return moved

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
        return int(size_bytes / GIB / single(bandwidth) * 1e9 * factor * (ranks - 1) / ranks)

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
        ratio = ratio_of(self.options.ratios, collective, group, size_bytes, shape, nvlink_bound=nvlink_bound)
        return bandwidth * single(ratio)

    def _ranks(self, group: SimaiGroup, column: Column) -> int:
        """The size the simulator uses, which depends on the column first."""
        if column is Column.WEIGHT_GRAD:
            return self.header.group_ranks(group if group is SimaiGroup.DP_EP else SimaiGroup.DP)
        return self.header.ep if group is SimaiGroup.EP else self.header.tp
