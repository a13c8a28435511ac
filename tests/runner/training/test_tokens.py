"""Synthetic tokens."""

import torch

from runner.training.trainer import sequences_of, step_tokens
from solver.plans.plan_table import Plan


def test_data_ranks_share_out_the_batch() -> None:
    plan = Plan(strategy="mtp", preset="fsdp", dp=2, tp=2, micro_batch=2, num_micro=3)
    assert [*sequences_of(plan, 0), *sequences_of(plan, 1)] == list(range(12))


def test_a_sequence_is_the_same_for_whoever_trains_on_it_and_new_in_each_step() -> None:
    whole, part = step_tokens(3, range(4), 32, 100), step_tokens(3, range(2, 4), 32, 100)
    assert whole.shape == (4, 33)
    assert torch.equal(whole[2:], part)
    assert 0 <= int(whole.min()) < int(whole.max()) < 100
    rows = [*whole.unbind(0), *step_tokens(4, range(4), 32, 100).unbind(0)]
    assert len({tuple(row.tolist()) for row in rows}) == 8
