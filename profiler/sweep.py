"""Measuring case after case: within a budget, recorded one by one, all ranks of one mind."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from profdb.cases import Case
from profdb.sample import Sample
from profiler.cases.sweep_plan import benchmark_of, describe
from profiler.journal import Journal
from profiler.measurement import Bench, measure
from profiler.outcome import DeviceLostError
from profiler.sample_quality import AGAIN, LONGEST_SHARE, SPREAD, noisy_cases
from spec.program.progress import progress

STOP = -1

AFTER_S, AFTER_SAMPLE_S = 8.0, 5e-3
"""Seconds of fitting, saving and drawing after a sweep, and of each sample more: 9,910 samples of a GPU's
sweep that scatter by 5 % take 37 to 55 s of one core to fit, nine tenths of it for boosted trees, and 8 to
draw."""

MOST_RESERVED = 0.5
"""Of a short budget, the share that may be kept for that."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """Seconds that a run may take, fits and pictures included; 0: as long as it needs. Counted from its start."""

    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def spent(self, measured: int) -> bool:
        """True if no case should be started any more: what is left is for the fits and pictures of ``measured``
        samples."""
        reserve_s = min(AFTER_S + AFTER_SAMPLE_S * measured, MOST_RESERVED * self.seconds)
        return self.seconds > 0.0 and self.elapsed_s + reserve_s >= self.seconds

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Result of a sweep: cases by status, how many were left when the budget ended, and of how many noisy ones how
    many were measured ``again``."""

    statuses: Counter[str]
    num_remaining: int
    seconds: float
    noisy: int = 0
    again: int = 0


def sweep(cases: Sequence[Case], bench: Bench, journal: Journal | None, budget: Budget, date: str) -> SweepResult:
    """Measure ``cases`` in order, then the noisy ones again. Rank 0 decides before each whether to go on and keeps the
    samples (``journal``; None on the other ranks).

    Raises RankFailedError on every rank that is still well when another one is not, DeviceLostError on all when the
    device of one answers no more; the samples so far are kept.
    """
    world = bench.world
    start = time.monotonic()
    samples: list[tuple[Case, Sample]] = []

    def goes_on(limit_s: float, num_remaining: int) -> bool:
        """Rank 0's decision."""
        late = limit_s > 0.0 and time.monotonic() - start > limit_s
        return world.decide(STOP if late or not num_remaining or budget.spent(len(samples)) else num_remaining) != STOP

    def take(case: Case, why: str) -> None:
        world.begin(describe(case), saved=f"{len(samples)} samples of this run")
        samples.append((case, measure_and_record(case, bench, journal, date, why)))
        bar.update()

    with progress(len(cases), "sweep", "case", speaks=world.leads, stays=True) as bar:
        while goes_on(0.0, len(cases) - len(samples)):
            bar.set_description(benchmark_of(cases[len(samples)]), refresh=False)
            take(cases[len(samples)], "")
        num_measured = len(samples)
        statuses = Counter(sample.status for _, sample in samples)
        noisy = noisy_cases(samples) if num_measured == len(cases) else []
        limit_s = (1.0 + LONGEST_SHARE) * (time.monotonic() - start)
        again = 0
        while goes_on(limit_s, len(noisy) - again):
            take(noisy[again], SPREAD)
            again += 1
    return SweepResult(
        statuses=statuses,
        num_remaining=len(cases) - num_measured,
        seconds=time.monotonic() - start,
        noisy=len(noisy),
        again=again,
    )


def measure_and_record(case: Case, bench: Bench, journal: Journal | None, date: str, why: str = "") -> Sample:
    """The sample of a case, in the journal; ``why`` it is taken again, if it is. DeviceLostError when the device was
    lost over it."""
    if journal is None:
        return measure(case, bench, date)
    journal.begin(case)
    try:
        sample = measure(case, bench, date)
        if why:
            sample = replace(sample, launched={**sample.launched, AGAIN: why})
    except DeviceLostError as lost:
        journal.append(lost.sample)
        raise
    except KeyboardInterrupt:
        journal.withdraw()
        raise
    journal.append(sample)
    return sample
