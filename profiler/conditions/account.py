"""How far the samples of a run can be trusted, in a few lines: what was taken again, and what still looks odd."""

from collections.abc import Sequence
from dataclasses import dataclass

from profdb.odd_samples import OddSample, far_above
from profdb.sample import ProfileDatabase, Sample
from profiler.cases.sweep_plan import describe
from profiler.conditions.second_look import CLOCK, NOISY, SPREAD, spread_of, taken_again

SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Samples taken again for their spread and for a falling clock, those that still spread by more than NOISY, and
    those far above their curve."""

    for_spread: int = 0
    for_clock: int = 0
    still_noisy: int = 0
    far_above: tuple[OddSample, ...] = ()


def account_of(measured: Sequence[Sample], kept: Sequence[Sample], profile: ProfileDatabase) -> Account:
    """Of the samples ``measured`` by a run and those ``kept`` of them, in the ``profile`` that they have
    become part of.
    """
    again = taken_again(measured)
    dates = {sample.taken for sample in measured}
    return Account(
        for_spread=again[SPREAD],
        for_clock=again[CLOCK],
        still_noisy=sum(spread_of(sample) > NOISY for sample in kept),
        far_above=tuple(odd for date in sorted(dates) for odd in far_above(profile, date)),
    )


def account_lines(account: Account) -> list[str]:
    """The counts, and the oddest samples by name."""
    lines = [
        f"measured again: {account.for_spread} for a spread above {NOISY:.0%} ({account.still_noisy} still above it), "
        f"{account.for_clock} for a falling clock; {len(account.far_above)} samples far above their curve"
        + (":" if account.far_above else "")
    ]
    lines += [
        f"  {describe(odd.case)}: {odd.seconds * 1e6:.4g} us, {odd.told_s * 1e6:.4g} us by its neighbours"
        for odd in account.far_above[:SHOWN]
    ]
    return lines
