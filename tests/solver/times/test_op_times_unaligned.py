"""The head of an odd vocabulary: its framework says how far that is padded, and what stays odd on a rank is
slow on a GPU.
"""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.op import BatchedGemm
from ops.recompute import Recompute
from ops.roles import Role
from profdb.lookup.unaligned_products import RELATIVE_STD
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.result import Answer
from solver.search import price_plan
from solver.times.op_times import Pricer, slowest_of
from spec.cluster.cluster import GpuSpec
from spec.cluster.reader import read_cluster
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.flat_cost_model import FLOPS, FlatCostModel
from tests.solver.questions import ROOT, question, small_model

H100 = read_cluster("h100-sxm", root=ROOT)


@pytest.mark.parametrize(("preset", "words", "slow"), [("nanotron", 25129, True), ("megatron", 25216, False)])
def test_a_vocabulary_padded_to_tp_alone_makes_the_head_slow(preset: str, words: int, slow: bool) -> None:
    layout = Layout.of(2, tp=2)
    ops = written(
        replace(small_model(), vocab=50257), job(preset=framework_preset(preset)), "fsp", layout
    ).head
    products = [
        op for op in (*ops.forward, *ops.backward) if isinstance(op, BatchedGemm) and op.role is Role.LOGITS
    ]
    assert [words in (int(op.m[0]), int(op.k[0]), int(op.n[0])) for op in products] == [True] * 3
    pricer = Pricer.on(H100, FlatCostModel())
    anywhere = replace(H100.gpu, architecture=replace(H100.gpu.architecture, unaligned=None))
    for op in products:
        told = pricer.time(op, layout).seconds[0] / replace(pricer, gpu=anywhere).time(op, layout).seconds[0]
        # 100 TFLOP/s of the flat cost model against 358 FLOPs a clock and multiprocessor
        slowed = FLOPS / (358 * H100.gpu.num_sms * H100.gpu.boost_clock_hz)
        assert told == pytest.approx(slowed if slow else 1.0, rel=1e-3)


def test_a_step_errs_by_the_carried_rate_as_far_as_its_slowest_stage_rests_on_it() -> None:
    """The stage with the head sets the pace of four: 25 % of what its three slow products take, and of what
    waits for them.
    """
    plan = Plan(strategy="mtp", preset="nanotron", recompute=Recompute.NONE, pp=4, num_micro=64)
    asked = question(
        model=replace(small_model(), vocab=50257),
        world_size=plan.world_size,
        sequences=plan.num_micro,
        preset=framework_preset("nanotron"),
    )

    def answered(gpu: GpuSpec) -> Answer:
        pricer = replace(asked.pricer, gpu=replace(gpu, training_rate_ratio=1.0))
        return price_plan(replace(asked, pricer=pricer), PlanTable.of(plan))[0]

    slow = answered(H100.gpu)
    assert slow.slowest.head
    head_flops = 3 * 2 * 1024 * 512 * 50257
    rate = 358 * H100.gpu.num_sms * H100.gpu.boost_clock_hz
    carried = RELATIVE_STD * head_flops / rate * plan.num_micro * slowest_of(plan.world_size)
    waiting = slow.parts_s["bubble"] + slow.parts_s["pp_comm"]
    assert slow.errors_s["carried"] == pytest.approx(
        carried * slow.step_s / (slow.step_s - waiting), rel=1e-3
    )
    anywhere = answered(replace(H100.gpu, architecture=replace(H100.gpu.architecture, unaligned=None)))
    assert "carried" not in anywhere.errors_s
