"""What one pipeline stage runs: the rows of its workload, cut into initialisation and iterations, peers named."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.groups.degrees import Degrees
from runner.groups.members import members
from workload.aicb.csv_workload import COMPUTATION, EPOCH_END, GeneralItem
from workload.findings import WorkloadError

MESSAGES = ("isend", "irecv")
PIPELINE = "pp_group"
ACROSS_STAGES = (PIPELINE, "embedding_group", "all")
# Send and receive, and the side they look to -> whether the message goes down the pipeline.
DOWNSTREAM = {"send_next": True, "recv_prev": True, "send_prev": False, "recv_next": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Messages of one direction between a stage and the next, or between the last and the first (``wraps``): a stream
    of their own, in which those sent first arrive first."""

    downstream: bool
    wraps: bool

    @property
    def group(self) -> str:
        """A name for the groups that carry it."""
        return f"pp_{'down' if self.downstream else 'up'}{'_wrap' if self.wraps else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a row. ``line`` is the row's place in its file; ``ranks`` the size of its group, 0 for
    computation; ``peer`` the stage at the other end of a message and ``channel`` its stream. A send over another group
    than the pipeline's has neither: all its ranks send to the next in a ring (context parallelism)."""

    item: GeneralItem
    line: int
    ranks: int = 0
    peer: int = 0
    channel: Channel | None = None

    @property
    def group(self) -> tuple[str, int] | None:
        """Name and size of the group; None for computation."""
        return (self.item.comm_group, self.ranks) if self.ranks else None

    def label(self) -> str:
        """``all_reduce of 4096 bytes over tp_group (forward.block0, row 12)``."""
        item = self.item
        what = item.comm_type
        if item.shapes is not None:
            what += " of " + " x ".join("[" + " ".join(map(str, one)) + "]" for one in item.shapes)
        elif item.msg_size:
            what += f" of {item.msg_size} {'bytes' if self.ranks else 'ns'}"
        over = f" over {item.comm_group}" if item.comm_group else ""
        return f"{what}{over} ({item.stage or 'no stage'}, row {self.line})"


Launches = tuple[Launch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """All launches of one rank of a stage. ``left_out`` rows are over groups of one rank."""

    stage: int
    where: Path
    init: Launches
    iterations: tuple[Launches, ...]
    left_out: int = 0

    def iteration(self, index: int) -> Launches:
        """The launches of an iteration; beyond those of the file the last again."""
        return self.iterations[min(index, len(self.iterations) - 1)]

    @property
    def everything(self) -> Launches:
        """Initialisation and every iteration of the file."""
        return self.init + tuple(launch for one in self.iterations for launch in one)


def program_of(items: Iterable[GeneralItem], stage: int, degrees: Degrees, where: Path) -> Program:
    """The rows of a stage's file as launches: a row of ``count`` is so many.

    Raises WorkloadError naming the row whose group or peer the degrees do not have, and for a file without an
    iteration.
    """
    parts: list[list[Launch]] = [[]]
    left_out = 0
    for line, item in enumerate(items, start=1):
        if item.comm_type == EPOCH_END:
            parts.append([])
            continue
        launch = _launch(item, line, stage, degrees, where)
        if launch is None:
            left_out += 1
            continue
        parts[-1] += [launch] * item.count
    ended, rest = parts[:-1], parts[-1]
    if rest or len(ended) < 2:
        raise WorkloadError(
            f"{where}: has no iteration: two {EPOCH_END} rows, after initialisation and after it"
        )
    init, *iterations = (tuple(part) for part in ended)
    return Program(stage=stage, where=where, init=init, iterations=tuple(iterations), left_out=left_out)


def _launch(item: GeneralItem, line: int, stage: int, degrees: Degrees, where: Path) -> Launch | None:
    place = f"{where}: row {line}: {item.comm_type}"
    count = item.count
    one = replace(item, count=1, elapsed_ms=None if item.elapsed_ms is None else item.elapsed_ms / count)
    if item.comm_type == COMPUTATION:
        return Launch(item=one, line=line)
    if item.comm_type in MESSAGES and item.comm_group in (PIPELINE, ""):
        return _message(one, line, stage, degrees, place)
    name = item.comm_group or "all"
    try:
        ranks = len(members(name, item.comm_group_size, degrees)[0])
    except WorkloadError as error:
        raise WorkloadError(f"{place} over {error}") from error
    ends = {"dst": item.dst, "src": item.src}
    for end, value in ends.items():
        if value is not None and value >= max(ranks, 1):
            raise WorkloadError(f"{place}: {end} = {value}: a place in its group of {ranks}, from 0")
    return (
        Launch(item=replace(one, comm_group=name, comm_group_size=ranks), line=line, ranks=ranks)
        if ranks > 1
        else None
    )


def _message(item: GeneralItem, line: int, stage: int, degrees: Degrees, place: str) -> Launch:
    """A send or receive with the stage it reaches."""
    if degrees.pp == 1:
        raise WorkloadError(f"{place} between stages, and there is one: --pp")
    sends = item.comm_type == "isend"
    if item.additional not in DOWNSTREAM or item.additional.startswith("send") is not sends:
        known = ", ".join(word for word in DOWNSTREAM if word.startswith("send") is sends)
        raise WorkloadError(f"{place}: additional = {item.additional!r}: {known}")
    downstream = DOWNSTREAM[item.additional]
    step = 1 if item.additional.endswith("next") else -1
    peer = (stage + step) % degrees.pp
    sender = stage if sends else peer
    wraps = sender == (degrees.pp - 1 if downstream else 0)
    return Launch(
        item=replace(item, comm_group=PIPELINE, comm_group_size=degrees.pp),
        line=line,
        ranks=degrees.pp,
        peer=peer,
        channel=Channel(downstream=downstream, wraps=wraps),
    )


def groups_used(programs: Sequence[Program]) -> list[tuple[str, int]]:
    """Name and size of every group over which something runs, in one order for all ranks."""
    found = {
        launch.group if launch.channel is None else (launch.channel.group, launch.ranks)
        for program in programs
        for launch in program.everything
    }
    return sorted(group for group in found if group is not None)
