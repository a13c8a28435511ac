"""One case measured: launch, agree, warm up, trials, and a sample under what was launched."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np

from profdb.cases import Case
from profdb.sample import Sample, WorldShape
from profiler.benchmarks.host import HostStopwatch
from profiler.benchmarks.launched import OUT_OF_MEMORY, Launched, Launcher, UnsupportedCaseError
from profiler.cases.sweep_plan import describe
from profiler.timing import Stopwatch, TrialPlan, burst_length, outliers, spread, stopwatch_for
from profiler.world import RankFailedError, World

OK, OOM, FAILED = "ok", "oom", "failed"

LONG_CALL_S = 0.05
"""A call this long fills the caches and raises the clocks by itself."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """What measuring needs: the processes, the launcher, the clocks, and how many trials."""

    world: World
    launcher: Launcher
    plan: TrialPlan = field(default_factory=TrialPlan)
    device_clock: Stopwatch | None = None
    host_clock: Stopwatch | None = None

    def clock_for(self, launched: Launched) -> Stopwatch:
        """The device's clock, or the host's for host costs."""
        if launched.on_host:
            self.host_clock = self.host_clock or HostStopwatch(device=self.world.device)
            return self.host_clock
        self.device_clock = self.device_clock or stopwatch_for(self.world.device)
        return self.device_clock


class TellOthers:
    """Tells the other ranks, who wait for this rank's word, that it fails; the error goes on."""

    def __init__(self, world: World, case: Case) -> None:
        self.world = world
        self.case = case

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send the error in place of the word the others wait for."""
        if isinstance(problem, Exception):
            self.world.gather(f"error {type(problem).__name__}: {problem}")


def attempt(world: World, case: Case, action: Callable[[], object]) -> tuple[str, str]:
    """Run ``action`` on every rank: ("ok", ""), ("oom", reason) or ("failed", reason), the same word
    on all. RankFailedError on the ranks that are well when another one is not."""
    word = OK
    with TellOthers(world, case):
        try:
            action()
        except UnsupportedCaseError as refused:
            word = f"{FAILED} {refused}"
        except (*OUT_OF_MEMORY, MemoryError) as full:
            word = f"{OOM} {str(full).splitlines()[0] if str(full) else 'out of memory'}"
    return common_word(world.gather(word), case)


def common_word(labels: list[str], case: Case) -> tuple[str, str]:
    """The worst of the ranks' words."""
    for rank, word in enumerate(labels):
        if word.startswith("error "):
            raise RankFailedError(f"rank {rank} failed in {describe(case)}: {word.removeprefix('error ')}")
    for status in (OOM, FAILED):
        for word in labels:
            if word.startswith(status):
                return status, word.removeprefix(status).strip()
    return OK, ""


def measure(case: Case, bench: Bench, taken: str) -> Sample:
    """The sample of one case; every rank calls this with the same case.

    Raises RankFailedError when another rank could not go on.
    """
    world = bench.world
    held: list[Launched] = []
    status, reason = attempt(world, case, lambda: held.append(bench.launcher.launch(case)))
    trials: list[float] = []
    notes: dict[str, str | int | float | bool] = {}
    if status == OK:
        launched = held[0]
        case = launched.case
        notes["implementation"] = launched.implementation
        if launched.collective:
            run_together(world, case, lambda: trials.extend(time_trials(launched, bench, notes)))
        else:
            warm: list[float] = []
            status, reason = attempt(world, case, lambda: warm.extend(warm_up(launched, bench)))
            if status == OK:
                trials.extend(time_trials(launched, bench, notes, warm[-1]))
    held.clear()
    if status != OK:
        notes["reason"] = reason
        trials = []
        world.device.release_memory()
    return Sample(
        case=case,
        trials_s=tuple(trials),
        status=status,
        launched=notes,
        taken=taken,
        world=WorldShape(nodes=world.layout.nodes, ranks=world.size),
    )


def run_together(world: World, case: Case, action: Callable[[], object]) -> None:
    """Run what needs every rank at once. When a rank dies in it the others hear of it from their
    connections: RankFailedError instead of torch's account of sockets."""
    try:
        action()
    except RankFailedError:
        raise
    except RuntimeError as broken:
        raise RankFailedError(
            f"rank {world.rank} lost the others in {describe(case)}: {str(broken).splitlines()[0]}"
        ) from broken


def warm_up(launched: Launched, bench: Bench) -> list[float]:
    """Seconds of the first launches, one by one; the last one is typical. Calls that take long need no
    second warm-up, unless every rank has to make the same number of them."""
    clock = bench.clock_for(launched)
    align = bench.world.align if launched.collective else None
    seconds = [clock.burst(launched.calls, 1, align)]
    while len(seconds) < bench.plan.warmup and (launched.collective or seconds[-1] < LONG_CALL_S):
        seconds.append(clock.burst(launched.calls, 1, align))
    bench.world.device.synchronize()
    return seconds


def time_trials(
    launched: Launched, bench: Bench, notes: dict[str, str | int | float | bool], one_call_s: float = 0.0
) -> list[float]:
    """Raw trials: seconds of one launch, each the maximum over the ranks; ``notes`` learns the burst
    length, the spread and the flagged outliers."""
    world = bench.world
    clock = bench.clock_for(launched)
    align = world.align if launched.collective else None
    one_call_s = one_call_s or warm_up(launched, bench)[-1]
    one_call_s = world.slowest([one_call_s])[0]
    count = burst_length(one_call_s)
    rounds = bench.plan.trials(one_call_s * count)
    if one_call_s < LONG_CALL_S:
        clock.burst(launched.calls, count, align)
    trials = world.slowest([clock.burst(launched.calls, count, align) for _ in range(rounds)])
    array = np.asarray(trials, dtype=np.float64)
    notes["launches_per_trial"] = count
    notes["spread"] = round(spread(array), 4)
    flagged = [str(index) for index in np.flatnonzero(outliers(array))]
    if flagged:
        notes["outliers"] = " ".join(flagged)
    return trials
