"""DualPipe and DualPipe-V against the table of their sources and the steps of their code."""

from dataclasses import replace

import numpy as np
import pytest

from profdb.overlap_losses import Losses, OverlapLosses, SizeCurve
from solver.estimate import estimate_memory
from solver.pipeline.simulation import ChunkTimes, task_graph
from solver.pipeline.stages import PassTimes, stage_table
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule, Task, TaskKind
from solver.plans.space import full_space
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.requested_plan import broken_rules, parse_plan, plan_of
from solver.search import search
from solver.times.contention import Contention
from solver.times.expert_overlap import hidden_per_micro_s
from spec.arrays import floats, ints
from spec.collectives import Collective
from spec.errors import ExportError
from spec.frameworks import framework_preset
from tests.solver.pipeline.plain_replay import run
from tests.solver.questions import experts_model, question, small_model
from workload.settings.megatron import megatron_flags
from workload.settings.step_trace import trace_events
from workload.stage_work import stage_works

DUAL, VEE = Schedule.DUALPIPE, Schedule.DUALPIPE_V
# Schedule, stages, virtual stages: as many virtual stages each.
SHAPES = [(DUAL, 4, 4), (DUAL, 8, 8), (DUAL, 16, 16), (VEE, 2, 4), (VEE, 4, 8), (VEE, 8, 16)]
HAI = framework_preset("hai-llm")
PLAN = Plan(strategy="mtp", preset="hai-llm", pp=8, num_micro=32, schedule=DUAL)


def shape_of(pp: int, stages: int, num_micro: int) -> tuple[int, int, int]:
    return pp, stages // pp, num_micro


def ended(schedule: Schedule, shape: tuple[int, int, int], times: tuple[float, float, float, float]) -> float:
    forward, backward, weight, pair = (np.full((shape[0], 2, 1), seconds) for seconds in times)
    work = ChunkTimes(forward_s=forward, backward_s=backward, weight_s=weight, p2p_s=floats(0.0), pair_s=pair)
    return float(run(task_graph(schedule, shape), work)[1].max())


@pytest.mark.published
@pytest.mark.parametrize(("schedule", "pp", "stages"), SHAPES)
@pytest.mark.parametrize("unit", [1.0, 2.5])
def test_the_bubble_is_the_paper_s(schedule: Schedule, pp: int, stages: int, unit: float) -> None:
    """arXiv 2412.19437 table 2: (P/2 - 1)(F&B + B - 3W), B the whole backward; F, input gradient and W equally long."""
    for num_micro in (2 * stages, 3 * stages):
        end = ended(schedule, shape_of(pp, stages, num_micro), (unit, unit, unit, 3 * unit))
        passes = num_micro * (2 if schedule is VEE else 1)
        assert end - 3 * unit * passes == pytest.approx((stages / 2 - 1) * (3 + 2 - 3) * unit)


@pytest.mark.parametrize(("schedule", "pp", "stages"), SHAPES)
def test_every_chunk_does_each_micro_batch_once(schedule: Schedule, pp: int, stages: int) -> None:
    num_micro = 2 * stages + 4
    entered = num_micro // schedule.placement.directions
    for order in schedule.orders(shape_of(pp, stages, num_micro)):
        done: list[Task] = [one for work in order for one in work.passes]
        weights = [work._replace(kind=TaskKind.WEIGHT) for work in order if work.kind is TaskKind.WHOLE_BACKWARD]
        weights += [w.beside._replace(kind=TaskKind.WEIGHT) for w in order if w.beside is not None]
        kinds = (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.WEIGHT)
        wanted = {Task(kind, chunk, m) for kind in kinds for chunk in (0, 1) for m in range(entered)}
        assert len(done) + len(weights) == len(wanted)
        assert {*done, *weights} == wanted


@pytest.mark.published
@pytest.mark.parametrize(("schedule", "pp", "stages"), SHAPES)
def test_a_stage_holds_one_more_than_there_are_virtual_stages(schedule: Schedule, pp: int, stages: int) -> None:
    """arXiv 2412.19437 table 2: PP + 1; a chunk with v stages before it holds PP - v of them."""
    num_micro = 3 * stages
    place = {one: at for chain in schedule.placement.chains(pp, stages // pp) for at, one in enumerate(chain)}
    for stage, order in enumerate(schedule.orders(shape_of(pp, stages, num_micro))):
        held, peak, both = [0, 0], [0, 0], 0
        for work in order:
            if work.kind in (TaskKind.FORWARD, TaskKind.PAIR):
                held[work.chunk] += 1
            peak = [max(now, most) for now, most in zip(held, peak, strict=True)]
            both = max(both, sum(held))
            for one in work.passes:
                held[one.chunk] -= one.kind is TaskKind.BACKWARD
        assert peak == [stages - place[stage, chunk] for chunk in (0, 1)]
        assert both == stages + 1
    assert schedule.in_flight(ints(0), ints(pp), ints(stages // pp), ints(num_micro))[0] == (stages + 1) / 2


@pytest.mark.parametrize(("schedule", "pp", "stages"), SHAPES)
def test_what_pairs_hide_is_that_of_every_pair_of_the_order(schedule: Schedule, pp: int, stages: int) -> None:
    """A pair of a forward of 3 s and a backward of 5 s takes 6.5 s: 1.5 s a pair, over the micro-batches of a step."""
    num_micro = 3 * stages
    plan = replace(PLAN, schedule=schedule, pp=pp, vpp=stages // pp, num_micro=num_micro)
    table = PlanTable.of(plan)
    held = stage_table(small_model(layers=16), table)
    whole = np.ones(len(held.chunks.stage))
    passes = PassTimes(forward_s=3.0 * whole, backward_s=5.0 * whole, weight_s=whole, pair_s=6.5 * whole)
    found = hidden_per_micro_s(table, held, passes)
    for stage, order in enumerate(schedule.orders(shape_of(pp, stages, num_micro))):
        told = 1.5 * sum(work.kind is TaskKind.PAIR for work in order) / num_micro
        assert found[held.position == stage] == pytest.approx(told)


def test_the_first_of_four_stages_runs_the_steps_of_the_source() -> None:
    """dualpipe.py, ``step``, by hand for rank 0 of 4 and 8 chunks: 2 F0, F0 F1, B1 W1 F1, F0&B1 F1&B0, B1 F1&B0, B1 B0,
    W0 B0, W0; the last stage mirrors it."""
    steps = "F0 F0 F0 F1 B1 W1 F1 F0&B1 F1&B0 BW1 F1&B0 BW1 B0 W0 B0 W0"
    orders = DUAL.orders((4, 1, 8))

    def word(work: Task, flipped: int) -> str:
        beside = f"B{work.beside.chunk ^ flipped}" if work.beside else ""
        return f"{'F' if beside else work.kind.value}{work.chunk ^ flipped}{'&' * bool(beside)}{beside}"

    assert " ".join(word(work, 0) for work in orders[0]) == steps
    assert " ".join(word(work, 1) for work in orders[3]) == steps


def test_a_stage_holds_two_copies_and_the_activations_of_both() -> None:
    """Stage 1 of 8 (no ends): twice the parameters of 1F1B; (P + 1) micro-batches of one layer, where 1F1B has P - 1."""
    asked = question(model=small_model(layers=8), world_size=8, sequences=32, preset=HAI)
    costs = []
    for schedule in (Schedule.ONE_F_ONE_B, DUAL):
        table = estimate_memory(asked.model, asked.job, PlanTable.of(replace(PLAN, schedule=schedule)), asked.cluster)
        costs.append((table.bytes.cost.take(ints(1)), table))
    plain, dual = (cost for cost, _ in costs)
    for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"):
        assert getattr(dual, name)[0] == 2 * getattr(plain, name)[0]
    assert dual.activations_bytes[0] / plain.activations_bytes[0] == pytest.approx(9 / 7)
    stages = costs[1][1].stages
    assert stages.embedding.tolist() == stages.head.tolist() == [True, *[False] * 6, True]
    assert (stages.layers[0] * stages.count).sum() == 16


def test_the_two_ends_lie_on_one_stage_of_dualpipe_v() -> None:
    """8 layers on 4 stages there and back: stage s holds layers s and 7 - s, every parameter once."""
    table = stage_table(small_model(layers=8), PlanTable.of(replace(PLAN, pp=4, vpp=2, schedule=VEE, num_micro=16)))
    assert table.chunks.embedding.tolist() == [True, *[False] * 7]
    assert table.chunks.head.tolist() == [False, True, *[False] * 6]
    assert table.layers[0].tolist() == [2, 2, 2, 2]


def test_all_to_alls_measured_beside_products_change_the_price_of_pairs() -> None:
    """Of NCCL's; kernels of DeepEP were not measured beside products."""
    bare, plans = moe_question(), PlanTable.of(replace(PLAN, dp=4, ep=4))
    asked = replace(bare, op_timer=replace(bare.op_timer, contention=Contention(sm_share=0.2)))
    sends_once = replace(asked, job=replace(asked.job, moe_dispatcher="deepep"))

    def step_s(lost: float, asked: Problem = asked) -> float:
        losses = Losses(compute=floats([lost]), comm=floats([lost]))
        curve = SizeCurve(intra=4, inter=1, log_size=floats([20.0]), losses=losses)
        op_timer = replace(asked.op_timer, overlap=OverlapLosses(curves={Collective.ALL_TO_ALL: (curve,)}))
        return price_plan(replace(asked, op_timer=op_timer), plans)[0].step_s

    assert step_s(0.0) < price_plan(asked, plans)[0].step_s < step_s(0.5)
    assert step_s(0.5, sends_once) == price_plan(sends_once, plans)[0].step_s


def moe_question():
    return question(model=experts_model(), world_size=32, sequences=128, preset=HAI)


@pytest.mark.parametrize("one", [PLAN, replace(PLAN, pp=4, vpp=2, schedule=VEE, num_micro=32)])
def test_what_pairs_hide_leaves_the_exchange_and_parts_still_add_up(one: Plan) -> None:
    asked = moe_question()
    plan = replace(one, dp=32 // one.pp, ep=4, num_micro=128 * one.pp // 32)
    dual = price_plan(asked, PlanTable.of(plan))[0]
    pieces = replace(plan, schedule=Schedule.ONE_F_ONE_B, vpp=1)
    plain = price_plan(asked, PlanTable.of(pieces))[0]
    assert sum(dual.parts_s.values()) == pytest.approx(dual.step_s)
    assert 0.0 < dual.parts_s["ep_comm"] < 0.7 * plain.parts_s["ep_comm"]
    assert dual.parts_s["grouped_gemm"] == pytest.approx(plain.parts_s["grouped_gemm"])
    assert dual.step_s < plain.step_s


def test_the_trace_ends_with_the_step() -> None:
    asked = moe_question()
    plan = replace(PLAN, dp=4, ep=4)
    events = [event for event in trace_events(asked, plan) if event["ph"] == "X"]
    last = max(float(str(event["ts"])) + float(str(event["dur"])) for event in events)
    assert last / 1e6 == pytest.approx(price_plan(asked, PlanTable.of(plan))[0].step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ("pp=8,schedule=dualpipe", True),
        ("pp=4,vpp=2,schedule=dualpipe-v", True),
        ("pp=8,vpp=2,schedule=dualpipe", False),
        ("pp=4,schedule=dualpipe-v", False),
        ("pp=1,schedule=dualpipe", False),
        ("pp=8,micro_batch=2,schedule=dualpipe", False),  # 8 micro-batches, 16 wanted
    ],
)
def test_what_its_code_asserts_is_a_rule(words: str, runs: bool) -> None:
    asked = question(model=small_model(layers=8), world_size=16, sequences=32, preset=HAI)
    typed = plan_of(parse_plan(words if "micro_batch" in words else f"{words},micro_batch=1"), asked, "--plan")
    assert any("DualPipe" in reason for reason in broken_rules(asked, typed)) is not runs
    megatron = replace(asked, job=replace(asked.job, preset=framework_preset("megatron")))
    assert "the framework does not support this schedule" in broken_rules(megatron, typed)


def test_it_is_searched_where_the_framework_has_it_and_said_by_nobody_else() -> None:
    asked = question(model=small_model(layers=8), world_size=4, sequences=32, preset=HAI)
    found = search(asked, full_space(asked.model, asked.job), top_k=10**6).best
    assert {answer.plan.schedule for answer in found} == {Schedule.ONE_F_ONE_B, DUAL, VEE}
    assert all(broken_rules(asked, answer.plan) == () for answer in found[:50])
    dual = replace(PLAN, pp=4, num_micro=32)
    with pytest.raises(ExportError, match="dualpipe"):
        stage_works(asked, dual)
    with pytest.raises(ExportError, match="schedule = dualpipe"):
        megatron_flags(asked, replace(dual, preset="megatron"))
