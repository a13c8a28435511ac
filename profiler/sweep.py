"""Measuring case after case: within a budget, recorded one by one, all ranks of one mind."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from profdb.cases import Case
from profdb.sample import Sample
from profiler.attempt import DeviceLostError
from profiler.cases.sweep_plan import benchmark_of, describe
from profiler.journal import Journal
from profiler.measurement import Bench, measure

STOP = -1

AFTER_S, AFTER_SAMPLE_S = 8.0, 3e-3
"""Seconds of fitting, saving and drawing after a sweep, and of each sample more: a modelled profile of 8,000 samples
takes 13 to 18 s to fit and 8 to draw on two cores."""

MOST_RESERVED = 0.5
"""Of a short budget, the share that may be kept for that."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """Seconds that a run may take, fits and pictures included; 0: as long as it needs. Counted from its start."""

    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def spent(self, measured: int) -> bool:
        """Whether no case should be started any more: what is left is for the fits and pictures of ``measured``
        samples."""
        reserve_s = min(AFTER_S + AFTER_SAMPLE_S * measured, MOST_RESERVED * self.seconds)
        return self.seconds > 0.0 and self.elapsed_s + reserve_s >= self.seconds

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """How a sweep ended: cases by status, and how many were left when the budget ended."""

    statuses: Counter[str]
    left: int
    seconds: float


def sweep(
    cases: Sequence[Case], bench: Bench, journal: Journal | None, budget: Budget, taken: str
) -> SweepResult:
    """Measure ``cases`` in order. Rank 0 decides before each whether to go on and keeps the samples
    (``journal``; None on the other ranks).

    Raises RankFailedError on every rank that is still well when another one is not, DeviceLostError on all when the
    device of one answers no more; the samples so far are kept.
    """
    world = bench.world
    statuses: Counter[str] = Counter()
    start = time.monotonic()
    done = 0
    progress = tqdm(
        total=len(cases), file=sys.stderr, disable=not (world.leads and sys.stderr.isatty()), unit="case"
    )
    with progress:
        while world.decide(STOP if done == len(cases) or budget.spent(done) else done) != STOP:
            case = cases[done]
            progress.set_description(benchmark_of(case), refresh=False)
            world.begin(describe(case), kept=f"{done} samples of this run")
            sample = kept_sample(case, bench, journal, taken)
            statuses[sample.status] += 1
            done += 1
            progress.update()
    return SweepResult(statuses=statuses, left=len(cases) - done, seconds=time.monotonic() - start)


def kept_sample(case: Case, bench: Bench, journal: Journal | None, taken: str) -> Sample:
    """The sample of a case, in the journal; DeviceLostError when the device was lost over it."""
    if journal is None:
        return measure(case, bench, taken)
    journal.begin(case)
    try:
        sample = measure(case, bench, taken)
    except DeviceLostError as lost:
        journal.append(lost.sample)
        raise
    except KeyboardInterrupt:
        journal.withdraw()
        raise
    journal.append(sample)
    return sample
