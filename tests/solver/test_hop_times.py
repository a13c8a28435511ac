"""What travels between stages, and what puts slices of it together again, in bytes counted by hand."""

import pytest

from ops.memory_bound import bytes_moved
from ops.op import Comm, MemoryBound
from solver.plans.plan_table import Plan, PlanTable
from solver.times.stage_times import gathered_slices, hop_seconds
from spec.arrays import ints
from spec.frameworks import framework_preset
from tests.solver.flat_cost_model import INTRA_BANDWIDTH, MEMORY_BANDWIDTH
from tests.solver.questions import question, small_model

SEQ, HIDDEN = 1024, 512
WHOLE = 2 * SEQ * HIDDEN


def seconds(name: str, tp: int, choices: dict[str, bool]) -> float:
    """One message of a micro-batch of one sequence between two stages."""
    preset = framework_preset(name).changed(choices)
    asked = question(model=small_model(hidden=HIDDEN), seq_len=SEQ, preset=preset)
    plan = Plan(strategy="mtp", preset=name, tp=tp, pp=2, dp=8 // tp, num_micro=64 * tp // 8)
    return float(hop_seconds(asked.model, asked.job, PlanTable.of(plan), asked.pricer)[0])


@pytest.mark.parametrize(("name", "written", "copied"), [("megatron-2021", 0, 2), ("deepspeed", 1, 4)])
def test_a_list_of_slices_is_copied_out_of_a_buffer(name: str, written: int, copied: int) -> None:
    """Read and written once; by DeepSpeed into zeros, and once more into a tensor of its own."""
    ops = gathered_slices(ints(WHOLE), question(preset=framework_preset(name)).job)
    assert [op.size_bytes.tolist() for op in ops if isinstance(op, Comm)] == [[WHOLE]]
    moved = sum(float(bytes_moved(op)[0]) for op in ops if isinstance(op, MemoryBound))
    assert moved == (written + copied) * WHOLE


@pytest.mark.parametrize("tp", [2, 4])
def test_deepspeed_gathers_its_own_outputs_again_for_each_gradient_that_comes(tp: int) -> None:
    """One gather for an activation and two for a gradient, each with five passes over what is whole."""
    gather = (tp - 1) / tp * WHOLE / INTRA_BANDWIDTH
    plain = seconds("deepspeed", tp, {"pipeline.partitioned_tensors": False})
    partitioned = seconds("deepspeed", tp, {})
    told = 1.5 * (gather + 5 * WHOLE / MEMORY_BANDWIDTH) - (gather + 2 * WHOLE / MEMORY_BANDWIDTH)
    assert partitioned - plain == pytest.approx(told)


def test_without_tensor_parallelism_nothing_is_gathered() -> None:
    cut = seconds("deepspeed", 1, {})
    assert cut == pytest.approx(seconds("deepspeed", 1, {"pipeline.scattered_hops": False}))


def test_one_stage_sends_and_gathers_nothing() -> None:
    asked = question(model=small_model(hidden=HIDDEN), seq_len=SEQ, preset=framework_preset("deepspeed"))
    plan = Plan(strategy="mtp", preset="deepspeed", tp=4, dp=2, num_micro=4)
    assert hop_seconds(asked.model, asked.job, PlanTable.of(plan), asked.pricer).tolist() == [0.0]
