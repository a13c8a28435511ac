"""Whether the stages' rows fit together: every message is received, and nobody waits for ever.

One rank stands for its stage: groups inside a stage run the same rows. Sends go on at once, receives and collectives
over several stages wait.
"""

from collections import deque
from collections.abc import Sequence

from runner.replay.program import ACROSS_STAGES, Channel, Launch, Launches, Program
from workload.findings import WorkloadError


def check_stages(programs: Sequence[Program]) -> None:
    """Raises WorkloadError naming the rows at which the stages' files contradict each other."""
    counts = {len(program.iterations) for program in programs}
    if len(counts) > 1:
        raise WorkloadError(
            f"{programs[0].where} and the other stages' files have {', '.join(map(str, sorted(counts)))} iterations"
        )
    _play([program.init for program in programs], programs, "initialisation")
    for index in range(counts.pop()):
        _play([program.iterations[index] for program in programs], programs, f"iteration {index + 1}")


def _play(parts: Sequence[Launches], programs: Sequence[Program], name: str) -> None:
    """One part of every stage, until all are through or none gets on."""
    places = [0] * len(parts)
    sent: dict[tuple[Channel, int], deque[Launch]] = {}
    moved = True
    while moved:
        moved = False
        for stage in range(len(parts)):
            before = places[stage]
            _advance(stage, parts, places, sent, programs)
            moved = moved or places[stage] > before
    stuck = [stage for stage, part in enumerate(parts) if places[stage] < len(part)]
    if stuck:
        waits = "; ".join(f"stage {stage} in {parts[stage][places[stage]].label()}" for stage in stuck[:4])
        raise WorkloadError(f"{programs[stuck[0]].where}: {name} would wait for ever: {waits}")
    for (_, stage), waiting in sent.items():
        if waiting:
            raise WorkloadError(
                f"{programs[stage].where}: {name}: stage {stage} never receives {waiting[0].label()} of its neighbour"
            )


def _advance(
    stage: int,
    parts: Sequence[Launches],
    places: list[int],
    sent: dict[tuple[Channel, int], deque[Launch]],
    programs: Sequence[Program],
) -> None:
    """Run a stage until it has to wait for another."""
    part = parts[stage]
    while places[stage] < len(part):
        launch = part[places[stage]]
        if launch.channel is not None:
            if launch.item.comm_type == "isend":
                sent.setdefault((launch.channel, launch.peer), deque()).append(launch)
            elif not _received(launch, sent.get((launch.channel, stage)), programs[stage]):
                return
        elif launch.item.comm_group in ACROSS_STAGES:
            others = _members(launch, len(parts))
            if stage in others:
                if not _together(launch, others, parts, places):
                    return
                for other in others:
                    places[other] += other != stage
        places[stage] += 1


def _received(launch: Launch, waiting: deque[Launch] | None, program: Program) -> bool:
    """Whether the message is there; it is taken. Raises WorkloadError for one of another size."""
    if not waiting:
        return False
    message = waiting.popleft()
    if message.item.msg_size != launch.item.msg_size:
        raise WorkloadError(
            f"{program.where}: {launch.label()} meets a message of {message.item.msg_size} bytes, row {message.line}"
        )
    return True


def _members(launch: Launch, stages: int) -> tuple[int, ...]:
    return (0, stages - 1) if launch.item.comm_group == "embedding_group" else tuple(range(stages))


def _together(
    launch: Launch, stages: Sequence[int], parts: Sequence[Launches], places: Sequence[int]
) -> bool:
    """Whether all stages of a collective stand at it."""

    def key(one: Launch) -> tuple[str, str, int]:
        return one.item.comm_type, one.item.comm_group, one.item.msg_size

    here = [parts[stage][places[stage]] for stage in stages if places[stage] < len(parts[stage])]
    return len(here) == len(stages) and all(key(one) == key(launch) for one in here)
