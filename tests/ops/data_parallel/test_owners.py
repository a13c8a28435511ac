"""InternEvo sends updated parameters by their owners: no more broadcasts than there are parameters, and all
their bytes.
"""

from dataclasses import replace

import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters, broadcast_by_owners, step_ops
from ops.layout import Layout
from ops.memory_bound import num_tensors
from ops.op import Comm, Op, Owner
from ops.roles import Role
from solver.estimate import estimate_memory, step_operations
from solver.plans.plan_table import Plan, PlanTable
from spec.arrays import ints
from spec.collectives import Collective
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model


def broadcasts(ops: tuple[Op, ...]) -> dict[Owner, tuple[int, int]]:
    """How many of how many bytes, by owner."""
    sent = [
        op for op in ops if isinstance(op, Comm) and op.role is Role.PARAMETER_GATHER and op.size_bytes[0]
    ]
    assert {op.collective for op in sent} == {Collective.BROADCAST}
    return {op.owner: (int(op.repeat[0]), int(op.size_bytes[0])) for op in sent}  # type: ignore[index]


@pytest.mark.parametrize(
    ("tensors", "expected"), [(3, (3, 5334)), (8, (8, 2000)), (50, (8, 2000)), (0, (1, 16000))]
)
def test_a_rank_without_parameters_sends_nothing(tensors: int, expected: tuple[int, int]) -> None:
    """16,000 bytes of 8,000 parameters over 8 shards."""
    asked = job(world_size=8, preset=framework_preset("internevo"))
    held = RankParameters(dense=ints(8000), weight=ints(0), expert=ints(4000))
    context = LayerContext(model=small_model(), job=asked, layout=Layout.of(8, zero_size=8, zero_stage=1))
    ops = step_ops(context, held, ints(0))
    sent = broadcasts(broadcast_by_owners(ops, {Owner.DENSE: ints(tensors)}))
    assert sent[Owner.DENSE] == expected
    assert sent[Owner.EXPERT] == broadcasts(ops)[Owner.EXPERT]


def test_a_step_counts_the_parameters_of_its_layers_and_ends() -> None:
    """4 layers of qkv, out, gate and up joined or apart, down and two norms; embedding, last norm and head."""
    model = replace(small_model(layers=4), tied_embeddings=False)
    plan = Plan(strategy="mtp", preset="internevo", dp=256, zero_stage=1, zero_size=256, num_micro=1)
    asked = job(world_size=256, preset=framework_preset("internevo"))
    block = written(model, asked, "mtp", Layout.of(256, zero_size=256, zero_stage=1)).blocks[0]
    whole = 4 * num_tensors(block, Owner.DENSE) + 3
    assert num_tensors(block, Owner.DENSE) == sum(bool(op.parameters.any()) for op in block.forward)
    count, size = broadcasts(
        step_operations(model, asked, estimate_memory(model, asked, PlanTable.of(plan)))
    )[Owner.DENSE]
    assert count == whole < 256
    held = int(estimate_memory(model, asked, PlanTable.of(plan)).bytes.on_rank.total[0])
    assert 2 * held <= count * size <= 2 * held + 2 * 256 + 256
