"""What a plan needs and what there is are told apart, and nearly all of it is warned of."""

import pytest

from solver.memory.shortfall import Verdict, nearly_all_words, needs_words, retries_words, verdict

GIB = 2**30


@pytest.mark.parametrize(
    ("needed_gib", "limit_gib", "said"),
    [
        (140.7, 139.6, "needs 140.7 GiB of 139.6"),
        (79.246, 79.234, "needs 79.25 GiB of 79.23"),
        (79.20004, 79.2, "needs 79.20004 GiB of 79.20000"),
    ],
)
def test_a_miss_has_the_digits_that_show_it(needed_gib: float, limit_gib: float, said: str) -> None:
    assert needs_words(needed_gib * GIB, limit_gib * GIB) == said


def test_more_than_95_percent_is_warned_of() -> None:
    assert nearly_all_words(95 * GIB, 100 * GIB) == ""
    assert nearly_all_words(95.1 * GIB, 100 * GIB).startswith("needs 95.1 GiB of 100.0, 95.1 %:")


@pytest.mark.parametrize(
    ("needed_gib", "device_gib", "said"),
    [
        (70, 79, Verdict.FITS),
        (70, 79.5, Verdict.RETRIES),
        (79, 90, Verdict.RETRIES),
        (79.3, 90, Verdict.SHORT),
    ],
)
def test_cached_segments_that_do_not_fit_are_no_miss_but_retries(
    needed_gib: float, device_gib: float, said: Verdict
) -> None:
    sizes = (needed_gib * GIB, device_gib * GIB, 79.2 * GIB)
    assert verdict(*sizes) is said
    assert bool(retries_words(*sizes)) is (said is Verdict.RETRIES)
