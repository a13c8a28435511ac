"""Samples far above their curve are found among those that belong there."""

from profdb.cases import GemmCase
from profdb.odd_samples import far_above
from profdb.sample import MachineFacts, ProfileDatabase, Sample

RATE = 5e14
TODAY, BEFORE = "2026-11-22", "2026-01-01"


def profile_with(slow: dict[GemmCase, float], date: str = TODAY) -> ProfileDatabase:
    """Products at one rate, but those in ``slow`` so many times slower."""
    samples = [
        Sample(
            case=case,
            trials_s=(2.0 * case.m * case.k * case.n / RATE * slow.get(case, 1.0),),
            date=date if case in slow else BEFORE,
        )
        for m in (1024, 2048, 4096, 8192, 16384)
        for k, n in ((4096, 4096), (4096, 11008), (11008, 4096), (8192, 8192), (8192, 28672))
        for case in [GemmCase(m=m, k=k, n=n)]
    ]
    return ProfileDatabase(machine=MachineFacts(gpu="x"), samples=samples)


def test_a_sample_far_above_its_curve_is_named_with_what_the_others_tell() -> None:
    odd = GemmCase(m=4096, k=8192, n=8192)
    (found,) = far_above(profile_with({odd: 1.8}), TODAY)
    assert found.case == odd
    assert 1.5 < found.seconds / found.predicted_s < 2.1


def test_what_is_fast_or_slightly_slow_or_of_another_run_is_not() -> None:
    odd = GemmCase(m=4096, k=8192, n=8192)
    assert far_above(profile_with({odd: 1.3}), TODAY) == []
    assert far_above(profile_with({odd: 1 / 3}), TODAY) == []
    assert far_above(profile_with({odd: 3.0}, date=BEFORE), TODAY) == []
