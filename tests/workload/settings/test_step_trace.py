"""The trace of a step is the solver's replay: as long as the step, nothing before what it waits for."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ops.strategies.sharding import StrategyName
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.question import Question
from solver.search import price_plan
from spec.errors import ExportError
from spec.presets.registry import PRESETS
from tests.solver.questions import question, small_model
from workload.settings.step_trace import export_trace, trace_events

FSP = StrategyName.FSP


def asked(plan: Plan, **changes: bool) -> Question:
    return question(
        model=small_model(layers=8),
        world_size=plan.world_size,
        sequences=plan.dp * plan.micro_batch * plan.num_micro,
        preset=replace(PRESETS[plan.preset], **changes),
    )


@pytest.mark.parametrize(
    "plan",
    [
        Plan(
            strategy=FSP, preset="megatron", tp=2, pp=4, vpp=2, dp=2, zero_stage=1, zero_size=2, num_micro=8
        ),
        Plan(strategy=FSP, preset="megatron", pp=3, dp=2, num_micro=7),
        Plan(strategy=FSP, preset="internevo", tp=2, dp=4, zero_stage=1, zero_size=4, num_micro=3),
        Plan(strategy=FSP, preset="internevo", pp=4, dp=2, num_micro=8, schedule=Schedule.ZB_H1),
    ],
    ids=lambda plan: plan.words(),
)
def test_the_trace_lasts_as_long_as_the_step(plan: Plan, tmp_path: Path) -> None:
    case = asked(plan)
    path = tmp_path / "trace.json"
    count = export_trace(case, plan, path)
    events = json.loads(path.read_text())["traceEvents"]
    assert len(events) == count
    passes = [event for event in events if event.get("cat") in ("F", "B", "W")]
    assert len(passes) == plan.pp * plan.vpp * plan.num_micro * (3 if plan.schedule.splits_backward else 2)
    rows = {event["tid"] for event in passes}
    spans = []
    for row in rows:
        own = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in events
            if event["ph"] == "X" and event["tid"] == row
        )
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(own))
        first = own[0][0] if plan.schedule.splits_backward else 0.0
        spans.append(own[-1][1] - first)
    step_s = price_plan(case, PlanTable.of(plan))[0].step_s
    assert max(spans) * 1e-6 == pytest.approx(step_s, rel=1e-9)


def test_hops_in_the_trace_arrive_before_what_waits_for_them() -> None:
    plan = Plan(strategy=FSP, preset="megatron", pp=4, dp=2, num_micro=4)
    events = list(trace_events(asked(plan), plan))
    starts = {
        (event["name"], event["tid"]): event["ts"] for event in events if event.get("cat") in ("F", "B")
    }
    hops = [event for event in events if event.get("cat") == "hop"]
    assert len(hops) == 2 * 3 * 4
    for hop in hops:
        waits = starts[(hop["name"].removeprefix("hop of "), hop["tid"] - 10_000)]
        assert hop["ts"] + hop["dur"] <= waits + 1e-3


def test_stages_that_wait_for_their_messages_wait_in_the_trace() -> None:
    plan = Plan(strategy=FSP, preset="megatron", pp=4, vpp=2, dp=2, num_micro=8)

    def last_us(overlap: bool) -> float:
        events = trace_events(asked(plan, overlap_hops=overlap), plan)
        return max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")

    waiting = asked(plan, overlap_hops=False)
    assert last_us(False) * 1e-6 == pytest.approx(price_plan(waiting, PlanTable.of(plan))[0].step_s, rel=1e-9)
    assert last_us(False) > last_us(True)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_message_leaves_where_its_stage_exchanges(overlap: bool) -> None:
    """A stage that waits for messages sends that of a forward in the steady phase after the next backward."""
    plan = Plan(strategy=FSP, preset="megatron", pp=4, vpp=2, dp=2, num_micro=8)
    events = list(trace_events(asked(plan, overlap_hops=overlap), plan))
    ends = {
        (event["tid"], round(event["ts"] + event["dur"], 3)): event["cat"]
        for event in events
        if event.get("cat") in ("F", "B")
    }
    senders = {
        ends[(hop["tid"] - 10_000 - 1) % plan.pp, round(hop["ts"], 3)]
        for hop in events
        if hop.get("cat") == "hop" and hop["name"].startswith("hop of forward")
    }
    assert senders == ({"F"} if overlap else {"F", "B"})


def test_more_passes_than_a_viewer_shows_are_refused(tmp_path: Path) -> None:
    plan = Plan(strategy=FSP, preset="megatron", pp=8, num_micro=100_000)
    with pytest.raises(ExportError, match="trace viewer"):
        export_trace(asked(plan), plan, tmp_path / "t.json")
