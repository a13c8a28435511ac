"""Shares add up by origin row by row."""

from dataclasses import replace

import numpy as np
import pytest

from solver.times.step_parts import Share, sum_by_part
from spec.arrays import floats, ints
from spec.origin import Origin

MEASURED, MODELLED = int(Origin.MEASURED), int(Origin.MODELLED)


def share(seconds: list[float], origin: list[int]) -> Share:
    """Of products."""
    return Share(
        part="gemm",
        family="gemm NT",
        seconds=floats(seconds),
        relative_std=floats([0.1] * len(seconds)),
        origin=ints(origin),
    )


def test_seconds_of_one_origin_and_of_several_add_up() -> None:
    total = sum_by_part(
        [share([1.0, 2.0, 4.0], [MEASURED, MODELLED, MEASURED]), share([8.0, 16.0, 32.0], [MODELLED] * 3)], 3
    )
    assert total.origins[Origin.MEASURED].tolist() == [1.0, 0.0, 4.0]
    assert total.origins[Origin.MODELLED].tolist() == [8.0, 18.0, 32.0]
    assert np.array_equal(sum(total.origins.values()), total.seconds)


def test_shares_of_no_rows_have_no_origin() -> None:
    assert sum_by_part([share([], [])], 0).origins == {}


def test_errors_of_a_family_add_and_those_of_two_add_in_quadrature() -> None:
    """0.1 of (20 + 10) and of 40 seconds: 3 and 4 make 5."""
    other = replace(share([40.0], [MODELLED]), family="collective")
    total = sum_by_part([share([20.0], [MEASURED]), share([10.0], [MODELLED]), other], 1)
    assert total.standard_error_s.tolist() == pytest.approx([5.0])
