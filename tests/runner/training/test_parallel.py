"""torch's order of work is the schedule's that the solver prices, and its stages lie where that has them."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from runner.training.data_parallel import BETAS, LEARNING_RATE, WEIGHT_DECAY, LocalOptimizer
from runner.training.pipeline import TORCH_SCHEDULES, PipelineExecutor, pipeline_executor, slices_of, virtual_stages
from runner.training.trainer import sequences_of, step_tokens
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule

LETTERS = {"FORWARD": "F", "BACKWARD_INPUT": "B", "FULL_BACKWARD": "B", "BACKWARD_WEIGHT": "W"}
"""Of torch's actions, ours."""
CHUNKS = {Schedule.LOOPED_BFS: (2, 3), Schedule.ZB_INTERLEAVED: (2, 3), Schedule.ZB_V: (2,)}
"""Of schedules of several chunks."""
OF_ORDERS = [
    (schedule, vpp)
    for schedule in TORCH_SCHEDULES
    if schedule is not Schedule.GPIPE
    for vpp in CHUNKS.get(schedule, (1,) if schedule.traits.splits_backward else (2, 4))
]


def plan_of(schedule: Schedule, vpp: int, pp: int, num_micro: int) -> Plan:
    return Plan(strategy="mtp", preset="fsdp", pp=pp, vpp=vpp, num_micro=num_micro, schedule=schedule)


Maker = Callable[[Plan], PipelineExecutor]


@pytest.fixture
def made() -> Iterator[Maker]:
    """What makes the schedule of a plan's first stage, in a world that moves nothing."""

    def make(plan: Plan) -> PipelineExecutor:
        dist.init_process_group("fake", rank=0, world_size=plan.pp, store=FakeStore())
        group = dist.group.WORLD
        assert group is not None
        modules = [nn.Linear(1, 1) for _ in range(plan.vpp)]
        return pipeline_executor(modules, plan, 0, group, lambda logits, targets: logits.sum())

    yield make
    dist.destroy_process_group()


@pytest.mark.parametrize(("schedule", "vpp"), OF_ORDERS)
@pytest.mark.parametrize(("pp", "num_micro"), [(2, 2), (2, 6), (4, 4), (4, 12)])
def test_torch_works_in_the_order_that_is_priced(
    schedule: Schedule, vpp: int, pp: int, num_micro: int, made: Maker
) -> None:
    plan = plan_of(schedule, vpp, pp, num_micro)
    result = made(plan).schedule.pipeline_order
    for stage, ours in enumerate(schedule.orders((pp, vpp, num_micro))):
        places = virtual_stages(plan, stage)
        torchs = [
            (LETTERS[one.computation_type.name], one.stage_index, one.microbatch_index)
            for one in result[stage]
            if one is not None
        ]
        assert torchs == [(work.kind.value, places[work.chunk], work.micro) for work in ours]


def test_a_single_chunk_goes_by_torchs_plain_schedules(made: Maker) -> None:
    assert type(made(plan_of(Schedule.ONE_F_ONE_B, 1, 2, 4)).schedule).__name__ == "Schedule1F1B"


def test_a_v_begins_and_ends_on_the_first_stage(made: Maker) -> None:
    """A micro-batch passes stages 0 1 2 3 3 2 1 0, and the loss is where it began."""
    plan = plan_of(Schedule.ZB_V, 2, 4, 8)
    assert [virtual_stages(plan, stage) for stage in range(4)] == [[0, 7], [1, 6], [2, 5], [3, 4]]
    layers = (3, 1, 1, 1, 1, 1, 1, 2)
    first, last = slices_of(plan, 0, layers)
    assert (list(first.blocks), first.embedding, first.head) == ([0, 1, 2], True, False)
    assert (list(last.blocks), last.embedding, last.head) == ([9, 10], False, True)
    pipeline = made(plan)
    assert (pipeline.first, pipeline.last) == (True, True)


def test_round_and_round_the_loss_is_on_the_last_stage(made: Maker) -> None:
    plan = plan_of(Schedule.LOOPED_BFS, 2, 4, 8)
    assert [virtual_stages(plan, stage) for stage in range(4)] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    pipeline = made(plan)
    assert (pipeline.first, pipeline.last) == (True, False)


# Updates of narrow parameters.

STEPS = 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_too_small_for_the_parameters_format_are_not_lost(dtype: torch.dtype) -> None:
    """Each update is some 3e-4 of a weight of one; bfloat16 has no number between 1 and 1 - 2^-8 = 1 - 3.9e-3. Under a
    constant gradient AdamW moves by lr (1 + decay w) a step (arXiv 1711.05101, algorithm 2)."""
    weight = nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer = LocalOptimizer([weight], None)
    expected = 1.0
    for _ in range(STEPS):
        weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
        assert weight.grad is None
        expected -= LEARNING_RATE * (1 + WEIGHT_DECAY * expected)
    assert weight.dtype is dtype
    assert float(weight.detach()[0]) == pytest.approx(expected, abs=2**-9 if dtype is torch.bfloat16 else 1e-6)
    assert expected < 1 - 2**-8
    assert BETAS == (0.9, 0.95)


def test_one_kernel_updates_each_format() -> None:
    """The update that is priced: of fp32 parameters and gradients one fused call, nothing per tensor but the copies."""
    weights = [nn.Parameter(torch.ones(4, dtype=dtype)) for dtype in [torch.float32, torch.bfloat16] * 3]
    optimizer = LocalOptimizer(weights, None)
    for weight in weights:
        weight.grad = torch.full_like(weight, 0.5)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        optimizer.step()
    ran = [event.name for event in profiler.events() or []]
    assert ran.count("aten::_fused_adamw_") == 1
    assert "aten::addcdiv_" not in ran


# Synthetic tokens.


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
