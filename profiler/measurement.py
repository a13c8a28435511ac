"""Measurement of one case: launch, agree, warm up, trials, and a sample under the case that really ran."""

import math
import time
from dataclasses import dataclass, field

import numpy as np

from profdb.cases import (
    FAMILY_OF,
    AttentionCase,
    Case,
    CollectiveCase,
    GemmCase,
    GroupedCase,
    GroupedGemmCase,
    LayerCase,
    ModuleCase,
)
from profdb.sample import Sample, WorldShape
from profiler.benchmarks.host import HostStopwatch
from profiler.benchmarks.launched import Launched, Launcher, Stopwatch
from profiler.clocks import MOST_DROP, ClockMonitor
from profiler.distributed.world import World
from profiler.links.slower import PeerTimes
from profiler.outcome import DeviceLostError, Outcome, run_on_all_ranks
from profiler.sample_quality import AGAIN, CLOCK
from profiler.timing import REST, ColdStopwatch, TrialPlan, launches, outliers, spread, stopwatch_for, works_alone

FIRST_AND_TYPICAL = 2

Notes = dict[str, str | int | float | bool]

POWER_BOUND = (GemmCase, GroupedGemmCase, AttentionCase, LayerCase, ModuleCase)
"""Cases whose launches draw more power than a GPU may draw for long; memory-bound kernels draw less."""

LONG_CALL_S = 0.05
"""A call this long fills the caches and raises the clocks by itself."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """Setup of measuring: the processes, the launcher, the stopwatches, the number of trials, and the monitor of the
    GPU's clocks."""

    world: World
    launcher: Launcher
    plan: TrialPlan = field(default_factory=TrialPlan)
    device_clock: Stopwatch | None = None
    host_clock: Stopwatch | None = None
    shared_clock: Stopwatch | None = None
    clocks: ClockMonitor = field(default_factory=ClockMonitor)
    ranks: PeerTimes = field(default_factory=PeerTimes)
    """Who is slower than its peers, over the cases so far."""

    def clock_for(self, launched: Launched) -> Stopwatch:
        """Returns the stopwatch for a launched case: its own, the host's for host costs, wall time for collectives,
        or the device's."""
        device = self.world.device
        if launched.clock is not None:
            return launched.clock
        if launched.on_host:
            self.host_clock = self.host_clock or HostStopwatch(device=device)
            return self.host_clock
        # On a CPU a rank waits for others in a collective, which its thread's CPU seconds do not count.
        if launched.collective and works_alone(device):
            self.shared_clock = self.shared_clock or stopwatch_for(device, collective=True)
            return self.shared_clock
        self.device_clock = self.device_clock or stopwatch_for(device)
        return self.device_clock

    def rest_s(self, case: Case, burst_s: float) -> float:
        """Returns the seconds to leave a GPU idle after a burst, so that its clocks stay up."""
        return REST * burst_s if self.world.device.kind == "cuda" and isinstance(case, POWER_BOUND) else 0.0


@dataclass(slots=True, kw_only=True)
class Measurement:
    """State of a case: the case that was really launched, notes, its trials in seconds, and the share by which the
    clock of a rank fell during them."""

    case: Case
    notes: Notes = field(default_factory=dict)
    trials_s: list[float] = field(default_factory=list)
    drop: float = 0.0


def measure(case: Case, bench: Bench, date: str) -> Sample:
    """Returns the sample of one case; every rank calls this with the same case. If the clocks fell by more than
    MOST_DROP, the case is measured again at once, on a GPU that is warm now, and the sample with the steadier clock
    is kept.

    Raises RankFailedError when another rank could not go on, and DeviceLostError, with the sample to keep, when the
    device does not answer any more.
    """
    world = bench.world
    measurement = Measurement(case=case)
    outcome = read(measurement, bench)
    if outcome.ok and measurement.drop > MOST_DROP:
        # Two readings of a full set of trials each; trials of both together would have two clocks.
        second = Measurement(case=case)
        again = read(second, bench)
        # A second attempt that fails does not discard the first, unless it has lost the device.
        if not again.ok:
            outcome = again if again.device_lost else outcome
        elif second.drop < measurement.drop:
            measurement = second
        measurement.notes[AGAIN] = CLOCK
    if not outcome.ok:
        if not outcome.device_lost:
            # Out of memory or failed: the next case starts with an empty cache.
            freed = run_on_all_ranks(world, world.device.release_memory)
            outcome = freed if freed.device_lost else outcome
        measurement.notes["reason"] = outcome.reason
    sample = Sample(
        case=measurement.case,
        trials_s=tuple(measurement.trials_s),
        status=outcome.status,
        launched=measurement.notes,
        date=date,
        world=WorldShape(nodes=world.layout.nodes, ranks=world.size),
    )
    if outcome.device_lost:
        raise DeviceLostError(sample)
    return sample


def read(measurement: Measurement, bench: Bench) -> Outcome:
    """Returns the outcome of launching, warming up and timing. Trials are stored only if all of these succeeded on
    every rank."""
    world, case = bench.world, measurement.case
    # The action's result leaves through a list: run_on_all_ranks returns its outcome.
    prepared: list[Launched] = []

    def prepare() -> None:
        world.device.leave_room()
        with world.compiling():
            prepared.append(bench.launcher.launch(case))

    outcome = run_on_all_ranks(world, prepare)
    if not outcome.ok:
        return outcome
    # Popped, so that no reference keeps the operands alive after this function.
    launched = prepared.pop()
    measurement.case = launched.case
    measurement.notes["implementation"] = launched.implementation
    warm: list[float] = []
    outcome = run_on_all_ranks(world, lambda: warm.extend(warm_up(launched, bench)))
    if not outcome.ok:
        return outcome
    # All ranks derive the number of launches and trials from the slowest rank's call.
    one_call_s = world.slowest(warm[-1:])[0]
    own: list[float] = []
    outcome = run_on_all_ranks(world, lambda: own.extend(time_trials(launched, bench, one_call_s)))
    if outcome.ok:
        # One reduction for the trials and the drop of the clock: of each the maximum over the ranks.
        *measurement.trials_s, measurement.drop = world.slowest([*own, bench.clocks.drop])
        note_spread(measurement, bursts(launched, bench, one_call_s)[0] * launched.operations)
        if isinstance(bench.clock_for(launched), ColdStopwatch):
            measurement.notes["timed"] = "CPU seconds, caches swept"
        measurement.notes |= bench.clocks.notes()
        if world.size > 1:
            measurement.notes |= note_ranks(launched.case, bench, float(np.median(own)))
        if launched.sustained_s:
            # Falling clocks are the result of a sustained case, not a disturbance.
            measurement.drop = 0.0
            measurement.notes |= bench.clocks.each()
    return outcome


def note_ranks(case: Case, bench: Bench, own_s: float) -> Notes:
    """Notes of a case on every rank's median: shortest, middle, longest, and whose; of ranks that rest, none."""
    world = bench.world
    if isinstance(case, CollectiveCase) and case.siblings < world.domain_ranks // case.intra:
        return {}
    seconds = np.array([one_s for (one_s,) in world.gather_rows([(own_s,)])])
    kind = FAMILY_OF[type(case)].value
    if isinstance(case, GroupedCase):
        kind = f"collectives {'inside a domain' if case.inter == 1 else 'across domains'}"
    bench.ranks.add(kind, seconds)
    low, high = int(np.argmin(seconds)), int(np.argmax(seconds))
    return {
        "rank_min_s": float(seconds[low]),
        "rank_median_s": float(np.median(seconds)),
        "rank_max_s": float(seconds[high]),
        "fastest_rank": low,
        "slowest_rank": high,
    }


def warm_up(launched: Launched, bench: Bench) -> list[float]:
    """Returns the seconds of the first launches, one by one; the last one is typical. The first may compile or load a
    kernel, so it is not. Long calls need no third launch, unless they are collective: then every rank has to make the
    same number."""
    clock = bench.clock_for(launched)
    align = bench.world.align if launched.collective else None
    seconds = [clock.burst(launched.calls, 1, align)]
    while len(seconds) < max(bench.plan.warmup, FIRST_AND_TYPICAL) and (
        launched.collective or len(seconds) < FIRST_AND_TYPICAL or seconds[-1] < LONG_CALL_S
    ):
        seconds.append(clock.burst(launched.calls, 1, align))
    bench.world.device.synchronize()
    return seconds


def time_trials(launched: Launched, bench: Bench, one_call_s: float) -> list[float]:
    """Returns the raw trials of this rank, seconds of one launch. Every rank makes equally many, since all agree on
    ``one_call_s``."""
    clock = bench.clock_for(launched)
    align = bench.world.align if launched.collective else None
    # Decided by the slowest rank's call, so that all ranks make equally many.
    count, rounds = bursts(launched, bench, one_call_s)
    # One burst more to warm caches and raise clocks, which short calls do not do by themselves.
    if one_call_s < LONG_CALL_S:
        clock.burst(launched.calls, count, align)
    trials_s: list[float] = []
    bench.clocks.begin()
    for _ in range(rounds):
        call_s = clock.burst(launched.calls, count, align)
        trials_s.append(call_s / launched.operations)
        bench.clocks.read()
        time.sleep(bench.rest_s(launched.case, count * call_s))
    return trials_s


def bursts(launched: Launched, bench: Bench, one_call_s: float) -> tuple[int, int]:
    """Returns (launches of a trial, trials)."""
    if launched.sustained_s:
        # Trials of about a second each, one per second of the case.
        return max(1, math.ceil(1.0 / one_call_s)), launched.sustained_s
    count, trial_s = launches(bench.clock_for(launched), one_call_s)
    return count, bench.plan.trials(trial_s)


def note_spread(measurement: Measurement, launches_per_trial: int) -> None:
    """Notes the length of a trial's burst, the spread of the trials, and the outliers."""
    trials_s = np.asarray(measurement.trials_s, dtype=np.float64)
    measurement.notes["launches_per_trial"] = launches_per_trial
    measurement.notes["spread"] = round(spread(trials_s), 4)
    flagged = [str(index) for index in np.flatnonzero(outliers(trials_s))]
    if flagged:
        measurement.notes["outliers"] = " ".join(flagged)
