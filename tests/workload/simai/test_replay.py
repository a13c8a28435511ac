"""Our replay of a SimAI file: parts known by hand, the closed form of the bubble, and the solver's own step."""

from dataclasses import replace

import pytest
from hypothesis import assume, given

from solver.plans.plan_table import Plan
from spec.frameworks import framework_preset
from tests.solver.flat_cost_model import INTRA_BANDWIDTH
from tests.solver.questions import question, small_model
from tests.workload.random_plans import Case, cases
from workload.diagnostics import WorkloadError
from workload.simai.format import SimaiGroup, SimaiHeader, SimaiRow, SimaiWorkload
from workload.simai.replay import compare, replay_simai

OP_TIMER = question().op_timer
ROW = SimaiRow(name="layer", forward_ns=1000, input_grad_ns=2000, weight_grad_ns=1000)


def workload(*rows: SimaiRow, **header: int) -> SimaiWorkload:
    return SimaiWorkload(header=SimaiHeader(**({"tp": 1, "all_gpus": 8} | header)), rows=rows)


def test_groups_are_priced_on_the_cluster() -> None:
    size = 8 * 10**6
    row = replace(ROW, forward_comm="ALLGATHER", forward_bytes=size)
    step = SimaiRow(name="grads", weight_grad_comm="REDUCESCATTER", weight_grad_bytes=size)
    report = replay_simai(workload(step, row, tp=4), OP_TIMER)
    # 3/4 of the array inside a node, and 1/2 of it between the two data-parallel ranks
    assert report.groups_s[SimaiGroup.TP] == pytest.approx(0.75 * size / INTRA_BANDWIDTH)
    assert report.groups_s[SimaiGroup.DP] == pytest.approx(0.5 * size / INTRA_BANDWIDTH)
    assert report.compute_s == pytest.approx(4e-6)
    assert report.step_s == pytest.approx(sum(report.parts.values()))
    half = replay_simai(workload(step, row, tp=4), OP_TIMER, hidden={SimaiGroup.TP: 0.5})
    assert half.groups_s[SimaiGroup.TP] == pytest.approx(report.groups_s[SimaiGroup.TP] / 2)


@pytest.mark.parametrize(("pp", "vpp", "ga"), [(2, 1, 4), (4, 1, 8), (4, 2, 8)])
def test_bubble_of_equal_stages_is_the_closed_form(pp: int, vpp: int, ga: int) -> None:
    report = replay_simai(workload(*[ROW] * ga, pp=pp, vpp=vpp, ga=ga), OP_TIMER)
    # (p - 1) / (m v) of the busy time (arXiv 2104.04473 sec. 2.2)
    assert report.bubble_s == pytest.approx(ga * 4e-6 * (pp - 1) / (ga * vpp))
    assert report.pp_s == 0
    assert replay_simai(workload(*[ROW] * ga, pp=pp, vpp=vpp, ga=ga, pp_comm_bytes=10**6), OP_TIMER).pp_s > 0


def test_recomputed_rows_run_again() -> None:
    plain = replay_simai(workload(ROW, ROW), OP_TIMER)
    header = SimaiHeader(tp=1, all_gpus=8, checkpoints=(0,), checkpoint_initiates=(1,))
    again = replay_simai(SimaiWorkload(header=header, rows=[ROW, ROW]), OP_TIMER)
    assert again.compute_s - plain.compute_s == pytest.approx(1e-6)


@pytest.mark.parametrize("header", [{"tp": 3}, {"pp": 16}, {"ep": 3}])
def test_degrees_that_do_not_divide(header: dict[str, int]) -> None:
    with pytest.raises(WorkloadError, match="divide"):
        replay_simai(workload(ROW, **header), OP_TIMER)


def test_a_share_outside_its_range() -> None:
    with pytest.raises(WorkloadError, match="0 to 1"):
        replay_simai(workload(ROW), OP_TIMER, hidden={SimaiGroup.TP: 1.5})


def test_replay_is_the_solvers_step_where_the_format_holds_everything() -> None:
    serial = framework_preset("megatron").changed(
        {
            "data_parallel.overlap_grad_reduce": False,
            "data_parallel.overlap_param_gather": False,
            "tensor_parallel.overlap_backward": False,
        }
    )
    plan = Plan(strategy="fsp", preset="megatron", tp=4, dp=4, zero_stage=1, zero_size=4, num_micro=8)
    asked = question(preset=serial, sequences=32, model=small_model())
    comparison = compare(asked, plan)
    assert comparison.replay.step_s == pytest.approx(comparison.solver_s, abs=1e-5, rel=1e-4)


@given(case=cases())
def test_differences_are_itemised(case: Case) -> None:
    assume((case.plan.dp * case.plan.cp) % case.plan.ep == 0)
    comparison = compare(case.problem, case.plan)
    between = comparison.solver_s - comparison.replay.step_s
    assert sum(comparison.differences.values()) == pytest.approx(between, abs=1e-9)
    # Only rounding to nanoseconds may be left of compute where every rank is in the same stage.
    if case.plan.pp == 1:
        assert abs(comparison.differences["compute of another stage"]) < 1e-4
        assert comparison.differences["stages that differ, and their waiting"] == pytest.approx(0, abs=1e-9)
        assert comparison.differences["hidden by overlap, or on another stage"] < 1e-9


def test_parameters_returned_as_lists_of_slices_are_copied_in_the_file_too() -> None:
    """nanotron, distributed.py, all_gather_coalesced: three passes over all parameters, once a step."""
    plan = Plan(strategy="mtp", preset="nanotron", dp=2, zero_stage=1, zero_size=2, num_micro=4)
    asked = question(preset=framework_preset("nanotron"), sequences=8, model=small_model(), world_size=2)
    comparison = compare(asked, plan)
    assert comparison.differences["compute of another stage"] == pytest.approx(0.0, abs=1e-6)
