"""Messages that hold up both their stages."""

import numpy as np
import pytest

from solver.analysis.timeline import timeline_of
from solver.pipeline.pass_times import PassTimes
from solver.pipeline.spans import Hops, stage_spans_s
from solver.pipeline.stages import stage_table
from solver.plans.plan_table import Plan, PlanTable
from solver.schedules.registry import Schedule
from solver.search import price_plan
from spec.arrays import floats
from spec.presets.registry import PRESETS
from tests.solver.questions import question, small_model

FORWARD_S, BACKWARD_S = 1.0, 2.0


@pytest.mark.parametrize(("pp", "num_micro"), [(2, 4), (4, 8), (4, 16)])
def test_a_split_backward_leaves_a_third_of_the_bubble(pp: int, num_micro: int) -> None:
    """ZB-H1 of equal forwards, input and weight gradients (arXiv 2401.10241, table 2): (p - 1) (f + b - w)
    beside the work, where 1F1B waits (p - 1) (f + b + w); a stage works what its passes say, whatever is
    split."""
    told = {}
    for schedule in (Schedule.ONE_F_ONE_B, Schedule.ZB_H1):
        plans = PlanTable.of(
            Plan(strategy="mtp", preset="zero-bubble", pp=pp, num_micro=num_micro, schedule=schedule)
        )
        stages = stage_table(small_model(layers=pp), plans)
        rows = np.ones(len(stages.chunks.stage))
        passes = PassTimes(forward_s=rows, backward_s=2.0 * rows, weight_s=rows)
        hops = Hops(seconds=floats(0.0), updates_apart=True)
        told[schedule] = stage_spans_s(plans, stages, passes, hops).max()
    work = 3.0 * num_micro
    assert told == {
        Schedule.ONE_F_ONE_B: pytest.approx(work + (pp - 1) * 3.0),
        Schedule.ZB_H1: pytest.approx(work + (pp - 1) * 1.0),
    }


@pytest.mark.parametrize(("preset", "begins_apart"), [("zero-bubble", True), ("internevo", False)])
def test_stages_wait_for_the_last_where_the_norm_is_all_of_theirs(preset: str, *, begins_apart: bool) -> None:
    """InternEvo reduces the norm over all stages before it updates (solver/optimizer/utils.py,
    ParallelMode.PIPELINE).
    """
    asked = question(model=small_model(layers=4), world_size=4, sequences=16, preset=PRESETS[preset])
    plan = Plan(strategy="mtp", preset=preset, pp=4, num_micro=16, schedule=Schedule.ZB_H1)
    played = timeline_of(asked, plan)
    first_s, last_s = played.starts_s.min(), played.ends_s.max()
    own = [
        played.ends_s[on].max() - played.starts_s[on].min()
        for on in (np.array([one.stage == stage for one in played.instructions]) for stage in range(4))
    ]
    priced = price_plan(asked, PlanTable.of(plan))[0]
    passes_s = priced.step_s - priced.parts_s["optimizer"] - priced.parts_s["dp_comm"]
    assert passes_s == pytest.approx(max(own) if begins_apart else last_s - first_s, rel=1e-6)


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(
    ("schedule", "own", "of_all"),
    [(Schedule.ZB_H1, 1, 1), (Schedule.ZB_H2, 0, 1), (Schedule.ZB_INTERLEAVED, 1, 1), (Schedule.ZB_V, 0, 1)],
)
def test_waiting_for_all_stages_costs_the_fill_that_nothing_hides(
    schedule: Schedule, own: int, of_all: int, pp: int
) -> None:
    """(p - 1) forwards where a stage's own work has no bubble; H1's bubble on the first stage is as long
    (arXiv 2401.10241 sec. 4, figure 4)."""
    vpp = schedule.habits.chunks[0]
    plan = Plan(strategy="mtp", preset="zero-bubble", pp=pp, vpp=vpp, num_micro=4 * pp, schedule=schedule)
    plans = PlanTable.of(plan)
    stages = stage_table(small_model(layers=2 * pp), plans)
    rows = np.ones(len(stages.chunks.stage))
    passes = PassTimes(forward_s=rows, backward_s=2.0 * rows, weight_s=rows)
    for apart, bubbles in ((True, own), (False, of_all)):
        hops = Hops(seconds=floats(0.0), updates_apart=apart)
        waited = stage_spans_s(plans, stages, passes, hops).max() - 3.0 * vpp * plan.num_micro
        assert waited == pytest.approx(bubbles * (pp - 1))
