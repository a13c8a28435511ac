"""Measuring case after case within a budget; every sample is recorded at once, and all ranks do the same."""

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
"""Seconds of fitting, saving and drawing after a sweep, and of each further sample: 9,910 samples of a GPU's
sweep that scatter by 5 % take 37 to 55 s of one core to fit, nine tenths of it for boosted trees, and 8 to
draw."""

MOST_RESERVED = 0.5
"""Largest share of a short budget that is reserved for that."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """Seconds that a run may take, fits and pictures included, counted from its start; 0: as long as it needs."""

    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def spent(self, measured: int) -> bool:
        """Returns whether no case should be started any more: the remaining time is for the fits and pictures of
        ``measured`` samples."""
        reserve_s = min(AFTER_S + AFTER_SAMPLE_S * measured, MOST_RESERVED * self.seconds)
        return self.seconds > 0.0 and self.elapsed_s + reserve_s >= self.seconds

    @property
    def elapsed_s(self) -> float:
        """Returns the seconds since it was made."""
        return time.monotonic() - self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Result of a sweep: cases by status, the number of cases not measured when the budget ended, and the noisy ones,
    with how many of them were measured ``again``."""

    statuses: Counter[str]
    num_remaining: int
    seconds: float
    noisy: int = 0
    again: int = 0


def sweep(cases: Sequence[Case], bench: Bench, journal: Journal | None, budget: Budget, date: str) -> SweepResult:
    """Returns the result of measuring ``cases`` in order, then the noisy ones again. Rank 0 decides before each case
    whether to go on and stores the samples (``journal``; None on the other ranks).

    Raises RankFailedError on every rank that is still well when another one is not, and DeviceLostError on all when
    the device of one does not answer any more; the samples so far are stored.
    """
    world = bench.world
    start = time.monotonic()
    samples: list[tuple[Case, Sample]] = []

    def goes_on(limit_s: float, num_remaining: int) -> bool:
        """Rank 0's decision."""
        # Clocks differ between ranks, so that only rank 0's decides; the others follow its broadcast.
        late = limit_s > 0.0 and time.monotonic() - start > limit_s
        return world.decide(STOP if late or not num_remaining or budget.spent(len(samples)) else num_remaining) != STOP

    def take(case: Case, why: str) -> None:
        world.begin(describe(case), saved=f"{len(samples)} samples of this run")
        samples.append((case, measure_and_record(case, bench, journal, date, why)))
        bar.update()

    with progress(len(cases), "sweep", "case", speaks=world.leads, stays=True) as bar:
        while goes_on(0.0, len(cases) - len(samples)):
            # Families alternate, so that the bar names the benchmark of each case.
            bar.set_description(benchmark_of(cases[len(samples)]), refresh=False)
            take(cases[len(samples)], "")
        num_measured = len(samples)
        statuses = Counter(sample.status for _, sample in samples)
        # Only a complete sweep measures again: within a budget, cases without any sample come first.
        noisy = noisy_cases(samples) if num_measured == len(cases) else []
        # Measuring again may take LONGEST_SHARE of the sweep's own time.
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
    """Returns the sample of a case, once it is in the journal; ``why`` it is measured again, if it is. Raises
    DeviceLostError when the device was lost in it."""
    if journal is None:
        return measure(case, bench, date)
    journal.begin(case)
    try:
        sample = measure(case, bench, date)
        if why:
            sample = replace(sample, launched={**sample.launched, AGAIN: why})
    # The sample of the lost case goes to the journal before the program starts again: it is not tried twice.
    except DeviceLostError as lost:
        journal.append(lost.sample)
        raise
    except KeyboardInterrupt:
        # Ctrl-C is not the case's fault: --resume measures it.
        journal.withdraw()
        raise
    journal.append(sample)
    return sample
