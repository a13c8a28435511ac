"""Which plans share a pipeline, and that each has the span of its own."""

from dataclasses import replace

import numpy as np
import pytest

from profdb.lookup import unique_shapes
from solver.pipeline import shared_pipelines
from solver.pipeline.pass_times import PassTimes
from solver.pipeline.shared_pipelines import first_alike
from solver.pipeline.spans import Hops, stage_spans_s
from solver.pipeline.stages import StageTable, stage_table
from solver.plans.plan_table import Plan, PlanTable
from spec.arrays import floats, ints
from tests.solver.questions import small_model

PLAN = Plan(strategy="mtp", preset="megatron", pp=4, vpp=2, num_micro=8, dp=4)
PLANS = PlanTable.of(
    PLAN,
    replace(PLAN, zero_stage=1, zero_size=4),
    replace(PLAN, num_micro=12),
    replace(PLAN, zero_stage=1, zero_size=2),
    replace(PLAN, micro_batch=2),
    PLAN,
)
HOP_S = floats([0.1, 0.1, 0.1, 0.1, 0.1, 0.2])


def tables() -> tuple[StageTable, PassTimes]:
    """Passes by micro-batch alone."""
    stages = stage_table(small_model(layers=8), PLANS)
    rows = PLANS.layout.micro_batch[stages.plan[stages.chunks.stage]] * (1.0 + stages.chunks.head)
    return stages, PassTimes(forward_s=rows, backward_s=2.0 * rows, weight_s=0.0 * rows)


def test_plans_that_differ_in_sharding_alone_share_one() -> None:
    stages, passes = tables()
    found = first_alike(PLANS, stages, passes, HOP_S, ints(np.arange(6)))
    assert found.tolist() == [0, 0, 2, 0, 4, 5]
    assert first_alike(PLANS, stages, passes, HOP_S, ints([1, 3, 4])).tolist() == [1, 1, 4]


def test_one_chunk_that_differs_makes_a_pipeline_of_its_own() -> None:
    stages, passes = tables()
    forward_s = passes.forward_s.copy()
    forward_s[stages.chunk_starts[stages.starts[3]] + 1] += 1e-9
    found = first_alike(PLANS, stages, replace(passes, forward_s=forward_s), HOP_S, ints(np.arange(6)))
    assert found.tolist() == [0, 0, 2, 3, 4, 5]


@pytest.mark.parametrize("alike", [True, False])
def test_spans_are_those_of_each_alone(alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where every pipeline has the same hash."""
    if not alike:
        monkeypatch.setattr(shared_pipelines, "row_hashes", lambda columns: 0 * columns[0])
    stages, passes = tables()
    together = stage_spans_s(PLANS, stages, passes, Hops(seconds=HOP_S))
    for plan in range(6):
        only = np.arange(6) == plan
        alone = stage_spans_s(PLANS, stages, passes, Hops(seconds=HOP_S), which=only)
        assert (together == alone)[stages.plan == plan].all()
        assert (alone[stages.plan == plan] > 0).all()


def test_hashes_tell_rows_apart_by_every_column_and_its_place() -> None:
    columns = [np.array(one, dtype=np.uint64) for one in ([1, 2, 1, 0], [2, 1, 1, 0])]
    assert len(set(unique_shapes.row_hashes(columns).tolist())) == 4
