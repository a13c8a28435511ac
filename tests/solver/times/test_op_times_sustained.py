"""Compute-bound operations take what the profile measured of settled clocks, in their own format; else the
sheet's share.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import BatchedGemm, MemoryBound, Phase
from ops.roles import Module, Role
from profdb.cases import Case, GemmCase, SustainedCase
from profdb.cost_model import ProfileCostModel
from profdb.modelled.strided_passes import longer_under_load
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.sustained import SustainedRates
from solver.times.op_times import Pricer
from spec.arrays import floats, ints
from spec.cluster.reader import read_cluster
from tests.solver.flat_cost_model import FlatCostModel
from tests.solver.questions import cluster

ROOT = Path(__file__).resolve().parents[3]
SIDE, ALONE_S = 8192, 1.4e-3


def product(dtype: str) -> BatchedGemm:
    return BatchedGemm(
        module=Module.MLP,
        role=Role.UP,
        phase=Phase.FORWARD,
        batch=ints(1),
        m=ints(SIDE),
        k=ints(SIDE),
        n=ints(SIDE),
        layout="NT",
        dtype=dtype,
        saved_bytes=floats(0.0),
        parameters=ints(0),
    )


def book_of(*measured: tuple[Case, tuple[float, ...]]) -> ProfileCostModel:
    samples = [Sample(case=case, trials_s=trials_s) for case, trials_s in measured]
    return ProfileCostModel(ProfileDatabase(machine=MachineFacts(gpu=cluster().gpu.name), samples=samples))


def seconds(pricer: Pricer, dtype: str = "bf16") -> float:
    return float(pricer.time(product(dtype), Layout.of(1)).seconds[0])


def test_a_product_takes_what_it_took_on_settled_clocks() -> None:
    alone = (GemmCase(m=SIDE, k=SIDE, n=SIDE), (ALONE_S,))
    held = (SustainedCase(seconds=30, m=SIDE, k=SIDE, n=SIDE), (1.45e-3, 1.6e-3))
    warm = replace(cluster(), gpu=replace(cluster().gpu, training_rate_ratio=0.9))
    by_sheet, measured = (
        replace(Pricer.on(warm, cost_model), gpu=None)
        for cost_model in (book_of(alone), book_of(alone, held))
    )
    assert seconds(by_sheet) == pytest.approx(ALONE_S / 0.9)
    assert seconds(measured) == pytest.approx(1.6e-3)


def test_a_format_that_was_not_measured_keeps_the_sheets_share() -> None:
    cost_model = book_of(
        (GemmCase(m=SIDE, k=SIDE, n=SIDE), (ALONE_S,)),
        (GemmCase(m=SIDE, k=SIDE, n=SIDE, dtype_in="fp8"), (1e-3,)),
    )
    pricer = Pricer(
        cost_model=cost_model,
        domain_ranks=8,
        training_rate_ratio=0.9,
        sustained=SustainedRates(ratios={"bf16": 0.5}),
    )
    assert seconds(pricer) == pytest.approx(ALONE_S / 0.5)
    assert seconds(pricer, "fp8") == pytest.approx(1e-3 / 0.9)


def test_strided_passes_take_longer_at_the_clock_of_a_step_in_both_directions() -> None:
    """What longer_under_load says is added to a kernel's own time, by its direction and repeats."""
    h100 = read_cluster("h100-sxm", root=ROOT)
    gpu = replace(h100.gpu, training_clock_ratio=0.8)
    cold_gpu = replace(h100.gpu, training_clock_ratio=1.0)
    pricer, cold = (Pricer.on(replace(h100, gpu=one), FlatCostModel()) for one in (gpu, cold_gpu))
    for phase, direction in ((Phase.FORWARD, "forward"), (Phase.INPUT_GRAD, "backward")):
        op = MemoryBound(
            module=Module.ATTENTION,
            role=Role.COPY,
            phase=phase,
            kernel="strided_copy",
            rows=ints(1 << 20),
            width=ints(512),
            dtype="bf16",
            repeat=3.0,
        )
        told, plain = (float(one.time(op, Layout.of(1)).seconds[0]) for one in (pricer, cold))
        longer = longer_under_load(gpu, "strided_copy", direction, floats([3.0 * (1 << 20) * 512]), "bf16")
        assert told - plain == pytest.approx(float(np.max(longer)))
        assert told > plain
