"""The trace of a step is the solver's replay: as long as the step, nothing before what it waits for."""

import json
from itertools import pairwise
from typing import Any

import pytest

from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from spec.errors import ExportError
from tests.workload.settings import problems
from workload.settings.step_trace import trace_events, trace_text

FSP = "fsp"
Event = dict[str, Any]


def asked(plan: Plan, *, overlap_p2p: bool = True) -> Problem:
    return problems.asked(plan, preset={"pipeline.overlap_p2p": overlap_p2p})


@pytest.mark.parametrize(
    "plan",
    [
        Plan(strategy=FSP, preset="megatron", tp=2, pp=4, vpp=2, dp=2, zero_stage=1, zero_size=2, num_micro=8),
        Plan(strategy=FSP, preset="megatron", pp=3, dp=2, num_micro=7),
        Plan(strategy=FSP, preset="internevo", tp=2, dp=4, zero_stage=1, zero_size=4, num_micro=3),
        Plan(strategy=FSP, preset="internevo", pp=4, dp=2, num_micro=8, schedule=Schedule.ZB_H1),
    ],
    ids=lambda plan: plan.label(),
)
def test_the_trace_lasts_as_long_as_the_step(plan: Plan) -> None:
    case = asked(plan)
    events = json.loads(trace_text(case, plan).text)["traceEvents"]
    passes = [event for event in events if event.get("cat") in ("F", "B", "W")]
    assert len(passes) == plan.pp * plan.vpp * plan.num_micro * (3 if plan.schedule.traits.splits_backward else 2)
    rows = {event["tid"] for event in passes}
    spans = []
    for row in rows:
        own = sorted(
            (event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X" and event["tid"] == row
        )
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(own))
        first = own[0][0] if plan.preset == "zero-bubble" else 0.0
        spans.append(own[-1][1] - first)
    step_s = price_plan(case, PlanTable.of(plan))[0].step_s
    assert max(spans) * 1e-6 == pytest.approx(step_s, rel=1e-9)


def hops(events: list[Event]) -> list[tuple[Event, float]]:
    """Every message with the time at which it ends (us)."""
    begun = {event["id"]: event for event in events if event["ph"] == "b"}
    ended = {event["id"]: event for event in events if event["ph"] == "e"}
    assert begun.keys() == ended.keys()
    assert len(begun) * 2 == sum(event.get("cat") == "hop" for event in events)
    for number, event in begun.items():
        same = ("name", "cat", "pid", "tid")
        assert [event[key] for key in same] == [ended[number][key] for key in same]
    return [(event, ended[number]["ts"]) for number, event in begun.items()]


def test_hops_in_the_trace_arrive_before_what_waits_for_them() -> None:
    plan = Plan(strategy=FSP, preset="megatron", pp=4, dp=2, num_micro=4)
    events = list(trace_events(asked(plan), plan))
    starts = {(event["name"], event["tid"]): event["ts"] for event in events if event.get("cat") in ("F", "B")}
    assert len(hops(events)) == 2 * 3 * 4
    for hop, end in hops(events):
        waits = starts[(hop["args"]["of"], hop["tid"])]
        assert hop["ts"] < end <= waits + 1e-3
        assert hop["name"] == f"to stage {hop['tid']}"


def test_only_events_that_nest_are_complete_events() -> None:
    """Two messages to one stage may be on their way at once; a viewer drops such complete events."""
    plan = Plan(strategy=FSP, preset="megatron", pp=4, vpp=4, dp=2, num_micro=8)
    events = list(trace_events(asked(plan), plan))
    for row in {event["tid"] for event in events}:
        spans = sorted(
            (event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X" and event["tid"] == row
        )
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(spans))
    messages = sorted((hop["ts"], end) for hop, end in hops(events) if hop["tid"] == 1)
    assert any(before[1] > after[0] for before, after in pairwise(messages))


def test_the_trace_names_its_process_and_its_rows() -> None:
    plan = Plan(strategy=FSP, preset="megatron", pp=2, num_micro=2)
    events = trace_events(asked(plan), plan)
    named = [(event["name"], event["tid"], event["args"]["name"]) for event in events if event["ph"] == "M"]
    assert named == [
        ("process_name", 0, f"small: {plan.label()}"),
        ("thread_name", 0, "stage 0"),
        ("thread_name", 1, "stage 1"),
    ]


def test_stages_that_wait_for_their_messages_wait_in_the_trace() -> None:
    plan = Plan(strategy=FSP, preset="megatron", pp=4, vpp=2, dp=2, num_micro=8)

    def last_us(overlap: bool) -> float:
        events = trace_events(asked(plan, overlap_p2p=overlap), plan)
        return max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")

    waiting = asked(plan, overlap_p2p=False)
    assert last_us(False) * 1e-6 == pytest.approx(price_plan(waiting, PlanTable.of(plan))[0].step_s, rel=1e-9)
    assert last_us(False) > last_us(True)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_message_leaves_where_its_stage_exchanges(overlap: bool) -> None:
    """A stage that waits for messages sends that of a forward in the steady phase after the next backward."""
    plan = Plan(strategy=FSP, preset="megatron", pp=4, vpp=2, dp=2, num_micro=8)
    events = list(trace_events(asked(plan, overlap_p2p=overlap), plan))
    ends = {
        (event["tid"], round(event["ts"] + event["dur"], 3)): event["cat"]
        for event in events
        if event.get("cat") in ("F", "B")
    }
    senders = {
        ends[(hop["tid"] - 1) % plan.pp, round(hop["ts"], 3)]
        for hop, _ in hops(events)
        if hop["args"]["of"].startswith("forward")
    }
    assert senders == ({"F"} if overlap else {"F", "B"})


def test_more_passes_than_a_viewer_shows_are_refused() -> None:
    plan = Plan(strategy=FSP, preset="megatron", pp=8, num_micro=100_000)
    with pytest.raises(ExportError, match="trace viewer"):
        trace_text(asked(plan), plan)
