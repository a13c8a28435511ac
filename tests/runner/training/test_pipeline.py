"""torch's order of work is the schedule's that the solver prices."""

import pytest
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from runner.training.pipeline import pipelined
from solver.plans.plan_table import Plan
from solver.schedules.registry import Schedule

LETTERS = {"FORWARD": "F", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}
"""Of torch's actions, ours."""


@pytest.mark.parametrize(("pp", "num_micro"), [(2, 2), (2, 6), (4, 4), (4, 6), (4, 12)])
def test_the_zero_bubble_of_torch_is_zb_h1(pp: int, num_micro: int) -> None:
    plan = Plan(strategy="mtp", preset="megatron", pp=pp, num_micro=num_micro, schedule=Schedule.ZB_H1)
    dist.init_process_group("fake", rank=0, world_size=pp, store=FakeStore())
    try:
        group = dist.group.WORLD
        assert group is not None
        made = pipelined([nn.Linear(1, 1)], plan, 0, group, lambda logits, targets: logits.sum())
        orders = [
            [
                f"{LETTERS[one.computation_type.name]}{one.microbatch_index}"
                for one in order
                if one is not None
            ]
            for _, order in sorted(made.schedule.pipeline_order.items())
        ]
    finally:
        dist.destroy_process_group()
    for schedule in (Schedule.ZB_H1, Schedule.ZB_1P):
        ours = [
            [f"{work.kind.value}{work.micro}" for work in order]
            for order in schedule.orders((pp, 1, num_micro))
        ]
        assert orders == ours
