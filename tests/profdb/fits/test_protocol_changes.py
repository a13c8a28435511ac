"""Between two far sizes other groups say where the time rises."""

import numpy as np
import pytest

from profdb.fits.group_shape import ShapeCurve
from profdb.fits.monotone_curve import climb, fit_monotone_curve
from profdb.fits.protocol_changes import fill_gaps, holdout_errors

LOGS = np.arange(10.0, 27.0)


def ring_s(log_size: np.ndarray, ranks: int) -> np.ndarray:
    """(n - 1) steps of hop latency and S/n over a rate: two protocols, the second beyond 1 MiB a rank."""
    chunk = 2.0**log_size / ranks
    first, second = 1e-6 + chunk / 2e11, 8e-6 + chunk / 4e11
    return (ranks - 1) * np.where(chunk < 2**20, first, second)


def curve(ranks: int, without: float = 0.0) -> ShapeCurve:
    logs = LOGS[without != LOGS]
    return ShapeCurve(intra=ranks, inter=1, siblings=1, monotone=fit_monotone_curve(2.0**logs, ring_s(logs, ranks)))


def test_a_jump_is_found_where_other_groups_have_it() -> None:
    # 8 ranks change protocol at 8 MiB; without that size the chord from 4 to 16 MiB cannot know
    missing = 23.0
    own, others = curve(8, without=missing), [curve(2), curve(4)]
    real = ring_s(np.asarray([missing]), 8)[0]
    chord = climb(own.monotone, np.asarray([2.0**missing]))[0][0]
    for weight in (0.25, 0.5):
        predicted = climb(fill_gaps(own, others, weight), np.asarray([2.0**missing]))[0][0]
        assert abs(np.log(predicted / real)) < (1.0 - 0.5 * weight) * abs(np.log(chord / real))
    assert climb(fill_gaps(own, others, 0.0), np.asarray([2.0**missing]))[0][0] == pytest.approx(chord)


def test_own_rungs_stay_and_the_time_never_falls() -> None:
    own = curve(8, without=23.0)
    monotone = fill_gaps(own, [curve(2), curve(4)], 0.25)
    predicted, within = climb(monotone, 2.0**own.monotone.log_size)
    np.testing.assert_allclose(predicted, np.exp(own.monotone.log_seconds))
    assert within.all()
    assert np.all(np.diff(monotone.log_seconds) >= 0.0)


def test_the_jump_makes_borrowing_win_and_sizes_are_left_out_of_all_groups() -> None:
    errors = holdout_errors([curve(2), curve(4), curve(8)])
    assert errors.shape == (2, 3 * (LOGS.size - 2))
    assert np.log1p(errors[1]).mean() < np.log1p(errors[0]).mean()


def test_groups_of_another_reach_say_nothing() -> None:
    own = curve(8, without=23.0)
    across = ShapeCurve(intra=2, inter=2, siblings=1, monotone=curve(4).monotone)
    assert fill_gaps(own, [across], 0.25).log_size.tolist() == own.monotone.log_size.tolist()
