"""What is written can be typed again, and is the same plan."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.requested_plan import parse_plan, plan_of
from solver.report.files import answer_record, write_csv, write_json
from spec.cluster.cluster import HostSpec
from spec.frameworks import framework_preset
from spec.settings.plan import plan_option_settings
from spec.settings.setting import setting_text
from tests.solver.questions import question, small_model

BASE = Plan(strategy="fsp", preset="megatron", dp=8, micro_batch=2, num_micro=4)
PLANS = [
    BASE,
    replace(BASE, strategy="mtp", tp=2, pp=2, dp=2, zero_stage=1, zero_size=2, schedule=Schedule.ZB_H1),
    replace(BASE, recompute=Recompute.BLOCK, num_recompute_layers=3, recompute_modules=("layernorm", "mlp")),
    replace(BASE, pp=2, dp=4, vpp=2, recompute=Recompute.FULL, stage_layout="Et*2|t*2|t*2|t*2L"),
    replace(BASE, zero_stage=1, zero_size=4, optimizer_offload=0.25, offloaded_layers=3),
]
HOST = HostSpec(link_bandwidth=50e9, memory_bandwidth=400e9, links=4)


def asked(plan: Plan) -> Problem:
    sequences = plan.dp * plan.micro_batch * plan.num_micro
    made = question(
        world_size=plan.world_size, sequences=sequences, preset=framework_preset("megatron"), model=small_model()
    )
    op_timer = replace(made.op_timer, host=HOST, gpus_per_node=8)
    return replace(made, cluster=replace(made.cluster, host=HOST), op_timer=op_timer)


def read_again(cells: dict[str, str], question: Problem) -> Plan:
    words = ",".join(f"{key}={cells[key]}" for key in plan_option_settings() if cells[key])
    return plan_of(parse_plan(words), question, "--plan")


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label())
def test_a_written_plan_can_be_typed(plan: Plan, tmp_path: Path) -> None:
    answers = price_plan(asked(plan), PlanTable.of(plan))
    write_csv(tmp_path / "plans.csv", answers)
    with (tmp_path / "plans.csv").open(newline="") as handle:
        (row,) = csv.DictReader(handle)
    assert read_again(row, asked(plan)) == plan
    assert (row["dp"], row["preset"], row["num_micro"]) == (str(plan.dp), "megatron", str(plan.num_micro))
    write_json(tmp_path / "plan.json", answer_record(answers[0]))
    record = json.loads((tmp_path / "plan.json").read_text())["plan"]
    cells = {key: setting_text(tuple(value) if isinstance(value, list) else value) for key, value in record.items()}
    assert read_again(cells, asked(plan)) == plan
