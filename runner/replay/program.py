"""The workload of a run: a program for each pipeline stage, and the check that the stages' programs fit together.

A program holds the rows of the stage's file as launches, cut into initialisation and iterations, each message with the
stage at its other end. A workload comes from files or from a plan.
"""

import hashlib
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.groups.degrees import PLAN, Degrees, check_dp, degrees_of, plan_and_dp
from runner.groups.group_ranks import ranks_of_group
from solver.plans.plan_table import Plan
from solver.problem.loading import load_problem
from solver.problem.problem import Problem
from solver.problem.request import Request
from solver.problem.requested_plan import broken_rules, check_order, plan_of
from spec.errors import ConfigError
from workload.aicb.csv_workload import COMPUTATION, EPOCH_END, Arguments, GeneralItem, Workload, num_stages
from workload.aicb.plan_rows import GeneralOptions, general_items
from workload.diagnostics import WorkloadError
from workload.stage_work import stage_works

MESSAGES = ("isend", "irecv")
PIPELINE = "pp_group"
ACROSS_STAGES = (PIPELINE, "embedding_group", "all")
# A send or a receive and its neighbour -> whether the message goes down the pipeline.
DOWNSTREAM = {"send_next": True, "recv_prev": True, "send_prev": False, "recv_next": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Messages of one direction between a stage and the next, or between the last and the first (``wraps``). They have
    a stream of their own, in which messages arrive in the order in which they were sent."""

    downstream: bool
    wraps: bool

    @property
    def group(self) -> str:
        """Name of the groups that carry it."""
        return f"pp_{'down' if self.downstream else 'up'}{'_wrap' if self.wraps else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLaunch:
    """One launch of a row. ``line`` is the row's number in its file; ``ranks`` the size of its group, 0 for
    computation; ``peer`` the stage at the other end of a message and ``channel`` its stream. A send over a group other
    than the pipeline's has neither: each of its ranks sends to the next in a ring (context parallelism)."""

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


Launches = tuple[ReplayLaunch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgram:
    """All launches of one rank of a stage. ``left_out`` rows are over groups of one rank."""

    stage: int
    where: Path
    init: Launches
    iterations: tuple[Launches, ...]
    left_out: int = 0

    def iteration(self, index: int) -> Launches:
        """The launches of an iteration; the last iteration of the file repeats."""
        return self.iterations[min(index, len(self.iterations) - 1)]

    @property
    def everything(self) -> Launches:
        """Initialisation and every iteration of the file."""
        return self.init + tuple(launch for one in self.iterations for launch in one)


def program_of(items: Iterable[GeneralItem], stage: int, degrees: Degrees, where: Path) -> StageProgram:
    """The program of a stage's file; a row of ``count`` n is n launches.

    Raises WorkloadError for a row whose group or peer the degrees do not have, and for a file without an iteration.
    """
    # An epoch_end row ends a part: the first part is initialisation, each further one an iteration.
    parts: list[list[ReplayLaunch]] = [[]]
    left_out = 0
    for row, item in enumerate(items, start=1):
        if item.comm_type == EPOCH_END:
            parts.append([])
            continue
        launch = _launch(item, row, stage, degrees, where)
        if launch is None:
            left_out += 1
            continue
        parts[-1] += [launch] * item.count
    ended, rest = parts[:-1], parts[-1]
    if rest or len(ended) < 2:
        raise WorkloadError(f"{where}: has no iteration: two {EPOCH_END} rows, after initialisation and after it")
    init, *iterations = (tuple(part) for part in ended)
    return StageProgram(stage=stage, where=where, init=init, iterations=tuple(iterations), left_out=left_out)


def _launch(item: GeneralItem, line: int, stage: int, degrees: Degrees, where: Path) -> ReplayLaunch | None:
    place = f"{where}: row {line}: {item.comm_type}"
    # The time of a row is that of all its launches.
    elapsed_ms = None if item.elapsed_ms is None else item.elapsed_ms / item.count
    single = replace(item, count=1, elapsed_ms=elapsed_ms)
    if item.comm_type == COMPUTATION:
        return ReplayLaunch(item=single, line=line)
    if item.comm_type in MESSAGES and item.comm_group in (PIPELINE, ""):
        return _message(single, line, stage, degrees, place)
    name = item.comm_group or "all"
    try:
        ranks = len(ranks_of_group(name, item.comm_group_size, degrees)[0])
    except WorkloadError as error:
        raise WorkloadError(f"{place} over {error}") from error
    ends = {"dst": item.dst, "src": item.src}
    for end, value in ends.items():
        if value is not None and value >= max(ranks, 1):
            raise WorkloadError(f"{place}: {end} = {value}: a place in its group of {ranks}, from 0")
    if ranks == 1:
        return None
    return ReplayLaunch(item=replace(single, comm_group=name, comm_group_size=ranks), line=line, ranks=ranks)


def _message(item: GeneralItem, line: int, stage: int, degrees: Degrees, place: str) -> ReplayLaunch:
    """A send or a receive with the stage at its other end."""
    if degrees.pp == 1:
        raise WorkloadError(f"{place} between stages, but there is only one: give --pp")
    sends = item.comm_type == "isend"
    if item.additional not in DOWNSTREAM or item.additional.startswith("send") is not sends:
        allowed = ", ".join(word for word in DOWNSTREAM if word.startswith("send") is sends)
        raise WorkloadError(f"{place}: additional = {item.additional!r}: {allowed}")
    downstream = DOWNSTREAM[item.additional]
    step = 1 if item.additional.endswith("next") else -1
    peer = (stage + step) % degrees.pp
    # Interleaved stages: the last rank sends its chunk's output to the first rank, which runs the next chunk.
    sender = stage if sends else peer
    wraps = sender == (degrees.pp - 1 if downstream else 0)
    return ReplayLaunch(
        item=replace(item, comm_group=PIPELINE, comm_group_size=degrees.pp),
        line=line,
        ranks=degrees.pp,
        peer=peer,
        channel=Channel(downstream=downstream, wraps=wraps),
    )


def groups_used(programs: Sequence[StageProgram]) -> list[tuple[str, int]]:
    """Name and size of every group that a launch uses, sorted: all ranks must create groups in the same order."""
    result = {
        launch.group if launch.channel is None else (launch.channel.group, launch.ranks)
        for program in programs
        for launch in program.everything
    }
    return sorted(group for group in result if group is not None)


# Do the stages' programs fit together? Every message must be received, and no stage may wait for ever.
#
# One rank stands for its stage, as all ranks of a stage run the same rows. A send returns at once; a receive, or a
# collective over several stages, waits.


def check_stages(programs: Sequence[StageProgram]) -> None:
    """Raises WorkloadError naming the rows at which the stages' files contradict each other."""
    counts = {len(program.iterations) for program in programs}
    if len(counts) > 1:
        raise WorkloadError(
            f"{programs[0].where} and the other stages' files have {', '.join(map(str, sorted(counts)))} iterations"
        )
    _check_part([program.init for program in programs], programs, "initialisation")
    for index in range(counts.pop()):
        _check_part([program.iterations[index] for program in programs], programs, f"iteration {index + 1}")


def _check_part(parts: Sequence[Launches], programs: Sequence[StageProgram], name: str) -> None:
    """Simulate one part of every stage. Raises WorkloadError for a deadlock or a message that nobody receives."""
    places = [0] * len(parts)
    sent: dict[tuple[Channel, int], deque[ReplayLaunch]] = {}
    # Each round runs every stage as far as it can go; a round in which no stage moves ends it: all are done, or those
    # that are not wait for each other.
    progress = True
    while progress:
        progress = False
        for stage in range(len(parts)):
            before = places[stage]
            _advance(stage, parts, places, sent, programs)
            progress = progress or places[stage] > before
    stuck = [stage for stage, part in enumerate(parts) if places[stage] < len(part)]
    if stuck:
        waits = "; ".join(f"stage {stage} in {parts[stage][places[stage]].label()}" for stage in stuck[:4])
        raise WorkloadError(f"{programs[stuck[0]].where}: {name} would deadlock: {waits}")
    for (_, stage), waiting in sent.items():
        if waiting:
            raise WorkloadError(
                f"{programs[stage].where}: {name}: stage {stage} never receives {waiting[0].label()} of its neighbour"
            )


def _advance(
    stage: int,
    parts: Sequence[Launches],
    places: list[int],
    sent: dict[tuple[Channel, int], deque[ReplayLaunch]],
    programs: Sequence[StageProgram],
) -> None:
    """Run a stage until it has to wait for another; ``places`` and ``sent`` change."""
    part = parts[stage]
    while places[stage] < len(part):
        launch = part[places[stage]]
        if launch.channel is not None:
            if launch.item.comm_type == "isend":
                sent.setdefault((launch.channel, launch.peer), deque()).append(launch)
            elif not _receive(launch, sent.get((launch.channel, stage)), programs[stage]):
                return
        elif launch.item.comm_group in ACROSS_STAGES:
            others = _members(launch, len(parts))
            if stage in others:
                if not _all_arrived(launch, others, parts, places):
                    return
                # The last stage to arrive takes the others past the collective as well; its own place moves below.
                for other in others:
                    places[other] += other != stage
        places[stage] += 1


def _receive(launch: ReplayLaunch, waiting: deque[ReplayLaunch] | None, program: StageProgram) -> bool:
    """Take the next message of the queue; False if there is none. Raises WorkloadError if its size differs."""
    if not waiting:
        return False
    message = waiting.popleft()
    if message.item.msg_size != launch.item.msg_size:
        raise WorkloadError(
            f"{program.where}: {launch.label()} meets a message of {message.item.msg_size} bytes, row {message.line}"
        )
    return True


def _members(launch: ReplayLaunch, stages: int) -> tuple[int, ...]:
    return (0, stages - 1) if launch.item.comm_group == "embedding_group" else tuple(range(stages))


def _all_arrived(launch: ReplayLaunch, stages: Sequence[int], parts: Sequence[Launches], places: Sequence[int]) -> bool:
    """True if all stages of a collective have reached it."""

    def key(one: ReplayLaunch) -> tuple[str, str, int]:
        return one.item.comm_type, one.item.comm_group, one.item.msg_size

    here = [parts[stage][places[stage]] for stage in stages if places[stage] < len(parts[stage])]
    return len(here) == len(stages) and all(key(one) == key(launch) for one in here)


# The workload files of a run: one, or one for every pipeline stage.

STAGE_ENDING = re.compile(r"-stage\d+$")
NAME_ENDING = "_workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """What all ranks replay: a program for each stage. ``digest`` is the hash of its rows and arguments."""

    name: str
    degrees: Degrees
    programs: tuple[StageProgram, ...]
    workloads: tuple[Workload, ...]
    arguments: Arguments
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeOptions:
    """Degrees from the command line, which take precedence over a file's; ``order`` as in workload.traffic.ranks."""

    degrees: Mapping[str, int | None]
    order: str


def task_from_files(files: Sequence[Path], options: DegreeOptions, world: int) -> ReplayTask:
    """The workload of ``files`` for ``world`` ranks.

    Raises WorkloadError or ConfigError for files that cannot be read, contradict each other or want other ranks.
    """
    first, arguments = Workload.load(files[0])
    degrees = degrees_of(arguments, options.degrees, world, options.order)
    paths = stage_files(files, degrees.pp)
    _check_stage(arguments, files[0])
    together = len(files) == 1 and paths == [files[0]] * degrees.pp
    places = [(path, stage if together else 0) for stage, path in enumerate(paths)]
    workloads = [first if place == (files[0], 0) else Workload.load(*place)[0] for place in places]
    return task_from_workloads(workloads, paths, degrees, arguments=arguments, name=task_name(files[0]))


def task_from_workloads(
    workloads: Sequence[Workload], paths: Sequence[Path], degrees: Degrees, *, arguments: Arguments, name: str
) -> ReplayTask:
    """The task of one workload for each stage. Raises WorkloadError when they do not fit together."""
    # Ranks compare digests (read_on_all_ranks): all nodes must have the same files.
    cells = [" ".join(item.cells()) for workload in workloads for item in workload.items]
    digest = hashlib.sha256("\n".join([repr(sorted(arguments.items())), *cells]).encode())
    programs = tuple(
        program_of(workload.items, stage, degrees, path)
        for stage, (workload, path) in enumerate(zip(workloads, paths, strict=True))
    )
    check_stages(programs)
    return ReplayTask(
        name=name,
        degrees=degrees,
        programs=programs,
        workloads=tuple(workloads),
        arguments=arguments,
        digest=digest.hexdigest(),
    )


def stage_files(files: Sequence[Path], stages: int) -> list[Path]:
    """The file of each stage: those requested, a single one that holds every stage, or its siblings named -stage0,
    -stage1, ...

    Raises ConfigError for another number, and for a file that is not there.
    """
    if len(files) == stages:
        return list(files)
    if len(files) == 1 and num_stages(files[0]) == stages:
        return [files[0]] * stages
    stem = STAGE_ENDING.sub("", files[0].stem)
    result = [files[0].with_stem(f"{stem}-stage{stage}") for stage in range(stages)]
    missing = [path for path in result if not path.is_file()]
    if len(files) == 1 and not missing:
        return result
    absent = f" ({missing[0]} is not there)" if len(files) == 1 else ""
    raise ConfigError(
        where="run",
        key="files",
        value=len(files),
        allowed=f"{stages}, one for each pipeline stage (generate --stage all --format general){absent}",
    )


def task_name(path: Path) -> str:
    """The name of the results of a workload file: its own without -stage0 and _workload."""
    return STAGE_ENDING.sub("", path.stem).removesuffix(NAME_ENDING)


def _check_stage(arguments: Arguments, path: Path) -> None:
    """The first file is that of the first stage."""
    stage = arguments.get("stage")
    if isinstance(stage, int) and stage > 0:
        raise ConfigError(where=str(path), key="stage", value=stage, allowed="0 in the first file")


# The workload of a plan: every stage's rows, made in memory.


def task_from_request(request: Request, plan_text: str, world: int) -> ReplayTask:
    """The task of a plan (tp=2,dp=2,...) on ``world`` ranks, one iteration, its computation timed by the request's
    profile or cluster.

    Raises ConfigError for a plan that does not divide the ranks or that the framework cannot run, and as load_problem.
    """
    problem = load_problem(replace(request, world_size=world)).problem
    parsed, dp = plan_and_dp(plan_text)
    plan = plan_of(parsed, problem, PLAN)
    check_dp(plan, dp)
    check_order(plan, problem, PLAN)
    broken = broken_rules(problem, plan)
    if broken:
        raise ConfigError(where=PLAN, key="plan", value=plan_text, allowed="; ".join(broken))
    return task_from_plan(problem, plan)


def task_from_plan(problem: Problem, plan: Plan) -> ReplayTask:
    """The task of a plan: the rows of each stage's first rank."""
    options = GeneralOptions(epochs=1, computation=True, timed=True, everything=True)
    # stage_works merges equal stages; every stage needs rows of its own, as its neighbours differ.
    works = [
        replace(work, position=position, count=1)
        for work in stage_works(problem, plan)
        for position in range(work.position, work.position + work.count)
    ]
    workloads = [Workload(items=list(general_items(plan, work, options))) for work in works]
    name = re.sub(r"[^\w.=+-]+", "_", f"{problem.model.name}-{plan.label()}")
    degrees = Degrees(tp=plan.tp, cp=plan.cp, ep=plan.ep, etp=plan.etp, dp=plan.dp, pp=plan.pp, wp=plan.wp)
    return task_from_workloads(
        workloads,
        [Path(f"{name}-stage{work.position}") for work in works],
        degrees,
        arguments={
            "model": problem.model.name,
            "plan": plan.label(),
            "world_size": plan.world_size,
            "tensor_model_parallel_size": plan.tp,
            "context_parallel_size": plan.cp,
            "expert_model_parallel_size": plan.ep,
            "expert_tensor_parallel_size": plan.etp,
            "pipeline_model_parallel": plan.pp,
        },
        name=name,
    )
