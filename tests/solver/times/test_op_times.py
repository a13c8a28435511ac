"""What a profile has measured of overlap reaches the price of every collective, and nothing else does."""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import Axis, Comm, HostTransfer, KernelCalls, MemoryBound, Phase
from ops.roles import Module, Role
from profdb.cases import HostCopyCase, MemoryBoundCase, OverlapCase
from profdb.cost_model import ProfileCostModel
from profdb.sample import ProfileDatabase, Sample
from solver.problem.cluster_times import OtherNetwork
from solver.times.op_times import Pricer, TimedOp
from spec.arrays import ints
from spec.cluster.cluster import HostSpec
from spec.collectives import Collective
from spec.origin import Origin
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
    return Pricer.on(cluster(), ProfileCostModel(profile([*collective_samples(), *samples])))


def test_a_collective_carries_what_was_measured_of_it() -> None:
    losses = pricer(OVERLAPPED).time(GATHER, LAYOUT).losses
    assert losses is not None
    assert np.allclose([losses.compute, losses.comm], [[0.25], [0.0]])


def test_without_samples_and_in_blocks_of_its_own_it_carries_nothing() -> None:
    assert pricer([]).time(GATHER, LAYOUT).losses is None
    assert pricer(OVERLAPPED).time(replace(GATHER, thread_blocks=20), LAYOUT).losses is None


def test_another_network_was_not_measured() -> None:
    held: ProfileDatabase = profile([*collective_samples(), *OVERLAPPED])
    cost_model = OtherNetwork(held, missing="error", network=None)  # type: ignore[arg-type]
    assert Pricer.on(cluster(), cost_model).overlap is None


def test_copies_to_the_host_take_what_was_measured_else_what_the_sheet_says() -> None:
    def copied(role: Role, samples: list[Sample], world: int = 8) -> TimedOp:
        op = HostTransfer(
            module=Module.STEP, role=role, phase=Phase.STEP, size_bytes=np.array([float(1 << 20)])
        )
        host = HostSpec(link_bandwidth=64e9, memory_bandwidth=500e9)
        return replace(pricer(samples), host=host).time(op, Layout.of(world))

    samples = [
        Sample(case=HostCopyCase(direction=way, size_bytes=1 << 20, devices=8), trials_s=(seconds,))
        for way, seconds in (("to_host", 1.0), ("to_device", 2.0))
    ]
    there, back = Role.GRADIENTS_TO_HOST, Role.PARAMETERS_FROM_HOST
    assert [copied(role, samples).seconds.tolist() for role in (there, back)] == [[1.0], [2.0]]
    assert copied(there, samples).origin.tolist() == [int(Origin.MEASURED)]
    # alone on its node, and nobody measured that
    assert copied(there, samples, world=1).origin.tolist() == [int(Origin.MODELLED)]
    assert copied(there, []).origin.tolist() == [int(Origin.MODELLED)]


def test_a_cast_takes_what_its_own_kernels_do_where_both_were_measured() -> None:
    """A read to search, then one kernel for both copies: 1 s for its rows and the copy's time for the read."""
    one = np.ones(1)
    calls = (
        KernelCalls(kernel="quantize_transpose", rows=ints(1024), times=2.0 * one),
        KernelCalls(kernel="copy", rows=ints(512), times=one),
    )
    op = MemoryBound(
        module=Module.MLP,
        role=Role.CAST,
        phase=Phase.INPUT_GRAD,
        kernel="copy",
        rows=ints(1536),
        width=ints(4096),
        stands_for=calls,
    )

    def of(kernel: str, seconds: float) -> list[Sample]:
        cases = (
            MemoryBoundCase(kernel=kernel, direction="forward", rows=rows, width=4096)
            for rows in (512, 1024, 2048)
        )
        return [Sample(case=case, trials_s=(seconds * case.rows / 1024,)) for case in cases]

    copied, both = of("copy", 0.25), [*of("quantize", 0.5), *of("quantize_transpose", 1.0)]
    found = pricer([*copied, *both]).time(op, LAYOUT)
    assert found.seconds[0] == pytest.approx(2.0 * 1.0 + 0.125, rel=1e-3)
    assert found.origin[0] == int(Origin.MEASURED)
    alone = pricer(copied).time(op, LAYOUT).seconds[0]
    assert alone == pytest.approx(0.25 * 1.5, rel=0.05)
    modelled = [replace(sample, origin=Origin.MODELLED) for sample in both]
    for more in (both[:3], both[3:], modelled):
        assert pricer([*copied, *more]).time(op, LAYOUT).seconds[0] == alone
