"""Quality of the samples of a run: noisy cases, the better of two samples of a case, and the report's lines."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profdb.cases import Case
from profdb.odd_samples import OddSample, far_above
from profdb.sample import ProfileDatabase, Sample
from profiler.cases.sweep_plan import describe

NOISY = 0.2
"""Spread of the trials above which a case is measured again at the end of a sweep."""

LONGEST_SHARE = 0.25
"""Largest share of a sweep's time for measuring again: where half of all cases are noisy the machine is busy with
something else, and a second sample is no better."""

AGAIN = "measured_again"
SPREAD, CLOCK = "spread", "clock"
"""Values of AGAIN in the notes of a sample that was measured again: its reason."""

MAX_LISTED = 5


def spread_of(sample: Sample) -> float:
    """Returns the relative width of the middle half of a sample's trials; 0 without trials."""
    return float(sample.launched.get("spread", 0.0)) if sample.status == "ok" else 0.0


def noisy_cases(samples: Iterable[tuple[Case, Sample]]) -> list[Case]:
    """Returns the cases whose samples spread by more than NOISY, the noisiest first. Trials are the slowest rank's,
    so every rank returns the same."""
    noisy = [(spread_of(sample), case) for case, sample in samples if spread_of(sample) > NOISY]
    return [case for _, case in sorted(noisy, key=lambda row: -row[0])]


def quieter_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the quieter of the two samples of a case that was measured again for its spread; the other samples
    unchanged."""
    result: list[Sample] = []
    place: dict[Case, int] = {}
    for sample in samples:
        at = place.get(sample.case)
        # The second sample replaces the first one in its place, or is dropped.
        if sample.launched.get(AGAIN) == SPREAD and at is not None:
            if sample.status == "ok" and spread_of(sample) < spread_of(result[at]):
                result[at] = sample
            continue
        place[sample.case] = len(result)
        result.append(sample)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuality:
    """Numbers of samples measured again for their spread and for a falling clock and of those that still spread by
    more than NOISY, and the samples far above their curve."""

    for_spread: int = 0
    for_clock: int = 0
    still_noisy: int = 0
    far_above: tuple[OddSample, ...] = ()


def sample_quality(measured: Sequence[Sample], samples: Sequence[Sample], profile: ProfileDatabase) -> SampleQuality:
    """Returns the quality of the samples ``measured`` by a run, of which ``samples`` are stored in ``profile``."""
    again = Counter(sample.launched.get(AGAIN) for sample in measured)
    dates = {sample.date for sample in measured}
    return SampleQuality(
        for_spread=again[SPREAD],
        for_clock=again[CLOCK],
        still_noisy=sum(spread_of(sample) > NOISY for sample in samples),
        far_above=tuple(odd for date in sorted(dates) for odd in far_above(profile, date)),
    )


def quality_lines(quality: SampleQuality) -> list[str]:
    """Returns the counts, and the oddest samples by name."""
    return [
        f"measured again: {quality.for_spread} for a spread above {NOISY:.0%} ({quality.still_noisy} still above it), "
        f"{quality.for_clock} for a falling clock; {len(quality.far_above)} samples far above their curve"
        + (":" if quality.far_above else ""),
        *(
            f"  {describe(odd.case)}: {odd.seconds * 1e6:.4g} us, {odd.predicted_s * 1e6:.4g} us by its neighbours"
            for odd in quality.far_above[:MAX_LISTED]
        ),
    ]
