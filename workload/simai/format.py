"""The SimAI workload file: its header, its rows, and the communication words of a row.

Source: SimAI 1.6/1.7, astra-sim Workload.cc, ``Workload::initialize_workload``. A word such as ALLREDUCE_DP_EP names a
collective by its prefix and a group by its ending; a plain word means tensor parallel in the first two passes of a row
and data parallel in the last."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from spec.collectives import Collective
from spec.errors import ExportError

NO_COMM = "NONE"


class SimaiPass(StrEnum):
    """The three passes of a row, in the order of the file: fields 3-5, 6-8 and 9-11."""

    FORWARD = "forward"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"


class SimaiGroup(StrEnum):
    """The groups of ranks of the format. It has none for context or pipeline parallel."""

    TP = "tp"
    DP = "dp"
    EP = "ep"
    DP_EP = "dp_ep"
    NONE = "none"


# In the order in which the parser tests them.
PREFIXES: dict[str, Collective] = {
    "ALLREDUCE": Collective.ALL_REDUCE,
    "ALLTOALL": Collective.ALL_TO_ALL,
    "ALLGATHER": Collective.ALL_GATHER,
    "REDUCESCATTER": Collective.REDUCE_SCATTER,
}

# The groups that each pass can carry with their own size. The simulator times a DP_EP word in the first two passes with
# tp ranks, and an EP word in the last with dp ranks, so neither is ever written.
GROUPS_OF_PASS: dict[SimaiPass, tuple[SimaiGroup, ...]] = {
    SimaiPass.FORWARD: (SimaiGroup.TP, SimaiGroup.EP),
    SimaiPass.INPUT_GRAD: (SimaiGroup.TP, SimaiGroup.EP),
    SimaiPass.WEIGHT_GRAD: (SimaiGroup.DP, SimaiGroup.DP_EP),
}


def read_token(token: str, column: SimaiPass) -> tuple[Collective | None, SimaiGroup]:
    """Returns the collective and the group that SimAI takes ``token`` for; (None, NONE) when it moves nothing.

    As in the simulator, lower case, unknown words and unknown endings mean no communication.
    """
    prefix = next((prefix for prefix in PREFIXES if token.startswith(prefix)), None)
    if prefix is None:
        return None, SimaiGroup.NONE
    plain = SimaiGroup.DP if column is SimaiPass.WEIGHT_GRAD else SimaiGroup.TP
    endings = {"": plain, "_EP": SimaiGroup.EP, "_DP_EP": SimaiGroup.DP_EP}
    group = endings.get(token[len(prefix) :], SimaiGroup.NONE)
    return (None, group) if group is SimaiGroup.NONE else (PREFIXES[prefix], group)


def write_token(collective: Collective, group: SimaiGroup, column: SimaiPass) -> str:
    """Returns the word for ``collective`` over ``group`` in a pass; ExportError when there is none."""
    word = next((word for word, kind in PREFIXES.items() if kind is collective), None)
    if word is None:
        raise ExportError(f"a SimAI workload has no word for {collective.value}; it has {', '.join(PREFIXES)}")
    if group not in GROUPS_OF_PASS[column]:
        allowed = ", ".join(one.value for one in GROUPS_OF_PASS[column])
        raise ExportError(
            f"a SimAI workload has no {group.value} group in the {column.value} column; allowed: {allowed}"
        )
    ending = {SimaiGroup.EP: "_EP", SimaiGroup.DP_EP: "_DP_EP"}.get(group, "")
    return word + ending


def uses_ratio(collective: Collective, group: SimaiGroup) -> bool:
    """Returns whether SimAI corrects the collective by its ratio tables: tensor-parallel all-gather and reduce-scatter,
    and all-to-all over tensor or expert groups."""
    if collective is Collective.ALL_TO_ALL:
        return group in (SimaiGroup.TP, SimaiGroup.EP)
    return group is SimaiGroup.TP and collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


# Header and rows. A file is one iteration of one representative rank: a header line, the number of rows, then rows of
# twelve fields. Times are whole nanoseconds, sizes whole bytes of the full array of a collective (as spec.collectives
# counts them).

TRANSFORMER = "HYBRID_TRANSFORMER"
TRANSFORMER_RECOMPUTE = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
# AICB writes 100 into field 12 of every row of a model; only the ns-3 front end reads it, as nanoseconds after each
# collective of the row.
UPDATE_NS = 100

# Cells pass through a float32 and then a signed 32-bit event delay: from 2**31 - 64 on they round to
# 2**31, the delay becomes negative and the event loop never ends.
CELL_LIMIT_NS = 2**31 - 64
# The last row of SimAI's ratio tables; a look-up above it throws and the result file stays empty.
RATIO_LIMIT_BYTES = 16 * 2**30
# A collective of so many bytes takes a fixed time by its number of ranks.
SMALL_BYTES = range(2, 2**20)
# Under the recompute policy a forward collective counts as at least so many bytes.
FORWARD_FLOOR_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiHeader:
    """Line 1 of the file.

    ``vpp`` are the virtual chunks of a stage, ``ga`` the micro-batches of a step, ``all_gpus`` the world, and
    ``pp_comm_bytes`` a message between pipeline stages, 0 when ``pp`` is 1. ``checkpoints`` are rows that start a
    recomputed segment, ``checkpoint_initiates`` rows whose input-grad triggers the recomputation; the simulator reads
    one of each.
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
        """Returns the data-parallel ranks as the simulator counts them: all_gpus / (tp pp)."""
        return self.all_gpus // (self.tp * self.pp)

    def group_ranks(self, group: SimaiGroup) -> int:
        """Returns the ranks of one group of the kind."""
        return {
            SimaiGroup.TP: self.tp,
            SimaiGroup.EP: self.ep,
            SimaiGroup.DP: self.dp,
            SimaiGroup.DP_EP: self.dp // self.ep,
            SimaiGroup.NONE: 1,
        }[group]

    def replays(self, num_rows: int) -> list[int]:
        """Returns how often the forward of each row is recomputed: that of rows from the nearest checkpoint up to, not
        including, the row that initiates."""
        replays = [0] * num_rows
        for row in self.checkpoint_initiates:
            starts = [start for start in self.checkpoints if start <= row]
            if starts and row < num_rows:
                for place in range(max(starts), row):
                    replays[place] += 1
        return replays

    def line(self) -> str:
        """Returns the header in AICB's order, without the line break."""
        return (
            f"{self.policy} model_parallel_NPU_group: {self.tp} ep: {self.ep} pp: {self.pp} vpp: {self.vpp} "
            f"ga: {self.ga} all_gpus: {self.all_gpus} checkpoints: {_list_text(self.checkpoints)} "
            f"checkpoint_initiates: {_list_text(self.checkpoint_initiates)} pp_comm: {self.pp_comm_bytes}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiRow:
    """One row: for each of three passes compute (ns), and the word and size (bytes) of the collective after it."""

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

    def compute_ns(self, column: SimaiPass) -> int:
        """Returns the compute time of one pass."""
        value: int = getattr(self, f"{column.value}_ns")
        return value

    def comm(self, column: SimaiPass) -> tuple[str, int]:
        """Returns word and size (bytes) of the collective of one pass."""
        return getattr(self, f"{column.value}_comm"), getattr(self, f"{column.value}_bytes")

    def with_pass(self, column: SimaiPass, *, compute_ns: int, comm: str, size_bytes: int) -> "SimaiRow":
        """Returns the row with another compute time and collective in one pass."""
        values: dict[str, Any] = {"ns": compute_ns, "comm": comm, "bytes": size_bytes}
        return replace(self, **{f"{column.value}_{name}": value for name, value in values.items()})

    def line(self) -> str:
        """Returns the twelve fields with tabs between them, without the line break."""
        fields: list[object] = [self.name, self.dependency]
        for column in SimaiPass:
            fields += [self.compute_ns(column), *self.comm(column)]
        return "\t".join(str(each) for each in [*fields, self.update_ns])


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiWorkload:
    """A header and its rows; a generator of rows is written row by row, with constant memory."""

    header: SimaiHeader
    rows: Iterable[SimaiRow]


def _list_text(indices: tuple[int, ...]) -> str:
    """Returns a list in the form of the header: its length, then its entries."""
    return " ".join(str(each) for each in (len(indices), *indices))
