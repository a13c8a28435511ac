"""The nouns of a SimAI workload file.

A file is one iteration of one representative rank: a header line, the number of rows, then rows of
twelve fields. Times are whole nanoseconds, sizes whole bytes of the full array of a collective (as
``spec.collectives`` counts them). Layout as SimAI 1.6/1.7 parses it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from workload.simai.tokens import NO_COMM, Column, SimaiGroup

TRANSFORMER = "HYBRID_TRANSFORMER"
TRANSFORMER_RECOMPUTE = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
# AICB writes 100 into field 12 of every model row; only the ns-3 front end reads it, as nanoseconds
# after each collective of the row.
UPDATE_NS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiHeader:
    """Line 1. ``pp_comm_bytes`` is one pipeline hop; 0 when ``pp`` is 1.

    ``vpp`` counts the virtual chunks of a stage, ``ga`` the micro-batches of a step, ``all_gpus`` the
    world. ``checkpoints`` are rows that start a recomputed segment, ``checkpoint_initiates`` rows whose
    input-grad triggers the recomputation; the simulator reads one of each.
    """

    tp: int
    ep: int = 1
    pp: int = 1
    vpp: int = 1
    ga: int = 1
    all_gpus: int
    checkpoints: tuple[int, ...] = ()
    checkpoint_initiates: tuple[int, ...] = ()
    pp_comm_bytes: int = 0
    policy: str = TRANSFORMER_RECOMPUTE

    @property
    def dp(self) -> int:
        """Data-parallel ranks as the simulator counts them: all_gpus / (tp pp)."""
        return self.all_gpus // (self.tp * self.pp)

    def group_ranks(self, group: SimaiGroup) -> int:
        """Members of one group of the kind."""
        return {
            SimaiGroup.TP: self.tp,
            SimaiGroup.EP: self.ep,
            SimaiGroup.DP: self.dp,
            SimaiGroup.DP_EP: self.dp // self.ep,
            SimaiGroup.NONE: 1,
        }[group]

    def replays(self, num_rows: int) -> list[int]:
        """How often each row's forward runs again: from the nearest checkpoint up to, not including, the row
        that initiates."""
        replays = [0] * num_rows
        for row in self.checkpoint_initiates:
            starts = [start for start in self.checkpoints if start <= row]
            if starts and row < num_rows:
                for place in range(max(starts), row):
                    replays[place] += 1
        return replays

    def line(self) -> str:
        """The header as AICB orders it, without the line break."""
        return (
            f"{self.policy} model_parallel_NPU_group: {self.tp} ep: {self.ep} pp: {self.pp} vpp: {self.vpp} "
            f"ga: {self.ga} all_gpus: {self.all_gpus} checkpoints: {_listed(self.checkpoints)} "
            f"checkpoint_initiates: {_listed(self.checkpoint_initiates)} pp_comm: {self.pp_comm_bytes}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiRow:
    """One row: compute (ns), word and size (bytes) of the collective after it, for three passes."""

    name: str
    dependency: int = -1
    forward_ns: int = 0
    forward_comm: str = NO_COMM
    forward_bytes: int = 0
    input_grad_ns: int = 0
    input_grad_comm: str = NO_COMM
    input_grad_bytes: int = 0
    weight_grad_ns: int = 0
    weight_grad_comm: str = NO_COMM
    weight_grad_bytes: int = 0
    update_ns: int = UPDATE_NS

    def compute_ns(self, column: Column) -> int:
        """Compute time of one pass."""
        return {
            Column.FORWARD: self.forward_ns,
            Column.INPUT_GRAD: self.input_grad_ns,
            Column.WEIGHT_GRAD: self.weight_grad_ns,
        }[column]

    def comm(self, column: Column) -> tuple[str, int]:
        """Word and size (bytes) of the collective of one pass."""
        return {
            Column.FORWARD: (self.forward_comm, self.forward_bytes),
            Column.INPUT_GRAD: (self.input_grad_comm, self.input_grad_bytes),
            Column.WEIGHT_GRAD: (self.weight_grad_comm, self.weight_grad_bytes),
        }[column]

    def with_pass(self, column: Column, *, compute_ns: int, comm: str, size_bytes: int) -> "SimaiRow":
        """The same row with another compute time and collective in one pass."""
        if column is Column.FORWARD:
            return replace(self, forward_ns=compute_ns, forward_comm=comm, forward_bytes=size_bytes)
        if column is Column.INPUT_GRAD:
            return replace(self, input_grad_ns=compute_ns, input_grad_comm=comm, input_grad_bytes=size_bytes)
        return replace(self, weight_grad_ns=compute_ns, weight_grad_comm=comm, weight_grad_bytes=size_bytes)

    def line(self) -> str:
        """The twelve fields with tabs between them, without the line break."""
        fields: list[object] = [self.name, self.dependency]
        for column in Column:
            fields += [self.compute_ns(column), *self.comm(column)]
        return "\t".join(str(each) for each in [*fields, self.update_ns])


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiWorkload:
    """A header and its rows; a generator of rows is written without being held in memory."""

    header: SimaiHeader
    rows: Iterable[SimaiRow]


def _listed(indices: tuple[int, ...]) -> str:
    """A list as the header holds it: its length, then its entries."""
    return " ".join(str(each) for each in (len(indices), *indices))
