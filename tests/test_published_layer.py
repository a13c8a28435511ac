"""One layer of a 22B model on 8 A100 against its published times (arXiv 2205.05198, table 4).

Priced from the A100 sheet alone. The forward of this table also gave the sheet its ``training_rate_ratio``; the
backward and what is recomputed did not.
"""

import pytest

from ops.block import model_ops
from ops.recompute import Recompute
from profdb.modelled.cost_model import ModelledCostModel
from solver.plans.plan_table import Plan, PlanTable
from solver.times.layer_times import layer_times
from solver.times.op_times import OpTimer
from spec.cluster.reader import read_cluster
from spec.frameworks import framework_preset
from spec.job import JobSpec, precision_of
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT

CLUSTER = read_cluster("a100-sxm-80g", root=ROOT)
MODEL = read_config(ROOT / "configs" / "22B_gpt.toml").model
JOB = JobSpec(
    world_size=8,
    seq_len=2048,
    global_batch_tokens=4 * 2048,
    preset=framework_preset("megatron-2021"),
    precision=precision_of(framework_preset("megatron-2021"), "fp16"),
    flash_attention=False,
    dropout=True,
)


@pytest.mark.published
@pytest.mark.parametrize(
    ("strategy", "recompute", "forward_ms", "backward_ms"),
    [
        ("mtp", "none", 7.7, 11.9),
        ("fsp", "none", 7.2, 11.8),
        ("mtp", "full", 7.7, 19.5),
        ("mtp", "selective", 7.7, 13.2),
    ],
)
def test_a_layer_takes_what_was_measured(strategy: str, recompute: str, forward_ms: float, backward_ms: float) -> None:
    plan = Plan(strategy=strategy, preset="megatron", tp=8, micro_batch=4, num_micro=1, recompute=Recompute(recompute))
    layout = PlanTable.of(plan).layout
    ops = model_ops(MODEL, JOB, layout, strategy, Recompute(recompute))
    op_timer = OpTimer.on(CLUSTER, ModelledCostModel(cluster=CLUSTER))
    times = layer_times(op_timer, JOB, ops.blocks[0], layout)
    assert 1e3 * times.forward.seconds[0] == pytest.approx(forward_ms, rel=0.04)
    assert 1e3 * times.backward.seconds[0] == pytest.approx(backward_ms, rel=0.04)
