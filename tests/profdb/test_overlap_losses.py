"""Losses told from times together and alone are those that a replay of both was made with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profdb.cases import OverlapCase
from profdb.overlap_losses import overlap_losses
from profdb.sample import ProfileDatabase, Sample
from spec.arrays import ints
from spec.collectives import Collective
from spec.origin import Origin
from tests.profdb.profiles import profile

PRODUCT_S, COLLECTIVE_S = 4e-4, 2e-3
MIXES = ((8, 0), (0, 8), (1, 8), (8, 1), (64, 1))


def replayed(compute_s: float, comm_s: float, compute_loss: float, comm_loss: float) -> float:
    """Both run at once, each slower by its loss; when one has ended the other runs as if alone."""
    if not compute_s or not comm_s:
        return compute_s + comm_s
    together = min(compute_s / (1.0 - compute_loss), comm_s / (1.0 - comm_loss))
    left = max(compute_s - together * (1.0 - compute_loss), comm_s - together * (1.0 - comm_loss))
    return together + max(left, 0.0)


def samples(
    losses: tuple[float, float],
    *,
    size: int = 1 << 20,
    intra: int = 8,
    inter: int = 1,
    origin: Origin = Origin.MEASURED,
) -> list[Sample]:
    """One product beside one all-gather, in every mix."""
    gather = {"collective": Collective.ALL_GATHER, "size_bytes": size, "intra": intra, "inter": inter}
    return [
        Sample(
            case=OverlapCase(**gather, m=64, k=64, n=64, products=products, collectives=collectives),
            trials_s=(replayed(products * PRODUCT_S, collectives * COLLECTIVE_S, *losses),),
            origin=origin,
        )
        for products, collectives in MIXES
    ]


def told(taken: list[Sample], size: int, inter: int = 1, intra: int = 8) -> tuple[float, float] | None:
    found = overlap_losses(ProfileDatabase(machine=profile([]).machine, samples=taken))
    assert found is not None
    losses = found.of(Collective.ALL_GATHER, ints(size), ints(intra), ints(inter))
    return None if losses is None else (float(losses.compute[0]), float(losses.comm[0]))


@given(st.floats(min_value=0.0, max_value=0.6), st.floats(min_value=0.0, max_value=0.6))
def test_both_losses_of_a_replay_come_back(compute_loss: float, comm_loss: float) -> None:
    if compute_loss + comm_loss > 0.9:
        return  # at 1 they take as long as one after the other, which tells the two losses no more apart
    given_losses = (compute_loss, comm_loss)
    assert told(samples(given_losses), 1 << 20) == pytest.approx(given_losses, abs=1e-9)


def test_between_sizes_a_loss_is_interpolated_and_kept_beyond_them() -> None:
    taken = [*samples((0.1, 0.0)), *samples((0.3, 0.2), size=1 << 24)]
    assert told(taken, 1 << 22) == pytest.approx((0.2, 0.1))
    assert told(taken, 1 << 10) == pytest.approx((0.1, 0.0), abs=1e-9)
    assert told(taken, 1 << 30) == pytest.approx((0.3, 0.2))


def test_what_was_measured_inside_a_domain_says_nothing_of_messages_between_two() -> None:
    assert told(samples((0.1, 0.0)), 1 << 20, inter=2) is None
    both = [*samples((0.1, 0.0)), *samples((0.4, 0.3), inter=4)]
    assert told(both, 1 << 20, inter=2) == pytest.approx((0.4, 0.3))


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ((8, 3), (8, 2)),  # log2 of 3 / 2 against log2 of 8 / 3
        ((8, 4), (8, 2)),  # as near to 2 domains as to 8: the fewer
        ((8, 5), (8, 8)),
        ((4, 8), (8, 8)),  # 1 against 2: not the distance with its sign
        ((2, 2), (4, 2)),
        ((1, 8), (8, 8)),  # 3 against 2 + 2
    ],
)
def test_the_group_nearest_in_both_degrees_answers(asked: tuple[int, int], nearest: tuple[int, int]) -> None:
    """Distances in log2 of ranks in a domain and of domains are added."""
    measured = {(8, 2): (0.1, 0.0), (8, 8): (0.2, 0.0), (4, 2): (0.3, 0.0)}
    taken = [one for (intra, inter), loss in measured.items() for one in samples(loss, intra=intra, inter=inter)]
    assert told(taken, 1 << 20, asked[1], asked[0]) == pytest.approx(measured[nearest], abs=1e-9)


def test_another_collective_was_not_measured() -> None:
    found = overlap_losses(ProfileDatabase(machine=profile([]).machine, samples=samples((0.1, 0.1))))
    assert found is not None
    assert found.of(Collective.ALL_REDUCE, ints(1 << 20), ints(8), ints(1)) is None
    alone = found.of(Collective.ALL_GATHER, ints([1 << 20, 8]), ints(1), ints(1))
    assert alone is not None
    assert np.array_equal(alone.compute, [0.0, 0.0])


def test_half_a_measurement_and_a_model_are_none() -> None:
    machine = profile([]).machine
    whole = samples((0.1, 0.1))
    for taken in (whole[1:], [whole[0], *whole[2:]], whole[:3], samples((0.1, 0.1), origin=Origin.MODELLED)):
        assert overlap_losses(ProfileDatabase(machine=machine, samples=taken)) is None


def test_two_that_take_turns_lose_half_each() -> None:
    serial = [
        Sample(
            case=one.case,
            trials_s=(one.case.products * PRODUCT_S + one.case.collectives * COLLECTIVE_S,),  # type: ignore[union-attr]
        )
        for one in samples((0.0, 0.0))
    ]
    assert told(serial, 1 << 20) == (0.5, 0.5)
