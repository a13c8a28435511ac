"""What a profile has measured of overlap reaches the price of every collective, and nothing else does."""

from dataclasses import replace

import numpy as np

from ops.layout import Layout
from ops.op import Axis, Comm, Phase
from ops.roles import Module, Role
from profdb.cases import OverlapCase
from profdb.curvebook import CurveBook
from profdb.sample import ProfileDatabase, Sample
from solver.cluster_times import OtherNetwork
from solver.times.op_times import Pricer
from spec.arrays import ints
from spec.collectives import Collective
from tests.profdb.profiles import collective_samples, profile
from tests.solver.questions import cluster

GATHER = Comm(
    module=Module.MLP,
    role=Role.WEIGHT_GATHER,
    phase=Phase.FORWARD,
    collective=Collective.ALL_GATHER,
    axis=Axis.DP,
    size_bytes=ints(1 << 20),
)
LAYOUT = Layout.of(8)


def beside(products: int, collectives: int, seconds: float) -> Sample:
    case = OverlapCase(
        collective=Collective.ALL_GATHER,
        size_bytes=1 << 20,
        intra=8,
        inter=1,
        m=64,
        k=64,
        n=64,
        products=products,
        collectives=collectives,
    )
    return Sample(case=case, trials_s=(seconds,))


# a product and a collective of 1 s; the products lose a quarter, the collective nothing
OVERLAPPED = [beside(1, 0, 1.0), beside(0, 1, 1.0), beside(8, 1, 8.25), beside(1, 8, 8.0)]


def pricer(samples: list[Sample]) -> Pricer:
    return Pricer.on(cluster(), CurveBook(profile([*collective_samples(), *samples])))


def test_a_collective_carries_what_was_measured_of_it() -> None:
    losses = pricer(OVERLAPPED).time(GATHER, LAYOUT).losses
    assert losses is not None
    assert np.allclose([losses.compute, losses.comm], [[0.25], [0.0]])


def test_without_samples_and_in_blocks_of_its_own_it_carries_nothing() -> None:
    assert pricer([]).time(GATHER, LAYOUT).losses is None
    assert pricer(OVERLAPPED).time(replace(GATHER, thread_blocks=20), LAYOUT).losses is None


def test_another_network_was_not_measured() -> None:
    held: ProfileDatabase = profile([*collective_samples(), *OVERLAPPED])
    book = OtherNetwork(held, missing="error", network=None)  # type: ignore[arg-type]
    assert Pricer.on(cluster(), book).overlap is None
