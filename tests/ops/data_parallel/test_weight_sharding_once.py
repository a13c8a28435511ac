"""FSDP on pipeline stages gathers a stage's parameters once a step and reduces its gradients once; under no_sync the
gradients of all micro-batches are reduced once, and parameters gathered for each."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters, step_ops
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, Comm, MemoryBound, Op, Phase
from ops.roles import Role
from spec.arrays import ints
from spec.collectives import Collective
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

FSDP = framework_preset("fsdp")
ELEMENTS = 1000


def layout(pp: int, stage: int = 3, shards: int = 4) -> Layout:
    return Layout.of(8, pp=pp, zero_size=shards, zero_stage=stage)


def layer(pp: int, stage: int = 3, preset: str = "fsdp", reduce: str = "bf16") -> tuple[Op, ...]:
    plain = job(world_size=8, preset=framework_preset(preset))
    asked = replace(plain, precision=replace(plain.precision, reduce=reduce))
    block = written(small_model(), asked, "mtp", layout(pp, stage), "none").blocks[0]
    return (*block.forward, *block.backward)


def carried(ops: tuple[Op, ...]) -> float:
    """Bytes of collectives over the shards."""
    return sum(float(op.size_bytes[0]) for op in ops if isinstance(op, Comm) and op.axis is Axis.ZERO_SHARD)


def summed(ops: tuple[Op, ...]) -> float:
    """Bytes of adding up whole gradients."""
    own = [op for op in ops if isinstance(op, MemoryBound) and op.serves is Role.GRADIENT_REDUCTION]
    return sum(float(bytes_moved(op)[0]) for op in own if op.role is Role.ACCUMULATE)


def step(pp: int, stage: int, preset: str = "fsdp") -> dict[Collective, int]:
    held = RankParameters(dense=ints(ELEMENTS), weight=ints(0), expert=ints(0))
    context = LayerContext(
        model=small_model(), job=job(world_size=8, preset=framework_preset(preset)), layout=layout(pp, stage)
    )
    return {
        op.collective: int(op.size_bytes[0])
        for op in step_ops(context, held, ints(0))
        if isinstance(op, Comm) and op.size_bytes[0]
    }


@pytest.mark.parametrize("stage", [2, 3])
def test_a_micro_batch_moves_nothing_over_the_shards_and_adds_up_whole_gradients(stage: int) -> None:
    """16-bit gradients added to a 16-bit sum: two reads and a write (accumulate_unsharded_grad_if_needed)."""
    ops = layer(2, stage)
    elements = sum(int(op.parameters[0]) for op in ops if op.phase is Phase.FORWARD)
    assert carried(ops) == 0.0 < carried(layer(1, stage))
    assert summed(ops) == 3 * 2 * elements
    assert summed(layer(1, stage)) == 0.0
    copies = [op for op in ops if op.name.endswith(("_parameters_copy", "_gradient_copy"))]
    assert sum(float(bytes_moved(op)[0]) for op in copies if isinstance(op, MemoryBound)) == 0.0


def test_sums_in_fp32_are_read_and_written_wide() -> None:
    """torchtitan: reduce_dtype fp32, so 2 + 4 + 4 bytes an element."""
    ops = layer(2, reduce="fp32")
    elements = sum(int(op.parameters[0]) for op in ops if op.phase is Phase.FORWARD)
    assert summed(ops) == 10 * elements


@pytest.mark.parametrize("stage", [2, 3])
def test_the_step_moves_every_parameter_and_gradient_once(stage: int) -> None:
    width = 2
    assert step(2, stage) == {
        Collective.REDUCE_SCATTER: ELEMENTS * width,
        Collective.ALL_GATHER: ELEMENTS * width,
    }
    assert step(1, stage) == {}


def test_other_frameworks_gather_for_every_micro_batch() -> None:
    assert not FSDP.changed({"pipeline.keeps_gathered": False}).pipeline.keeps_gathered
    ops = layer(2, 3, preset="deepspeed")
    assert carried(ops) > 0.0
    assert summed(ops) == 0.0
    assert step(2, 3, preset="deepspeed") == {}


def test_rows_of_one_table_each_have_their_own() -> None:
    both = Layout.of(
        8, pp=np.array([1, 2]), dp=np.array([8, 4]), zero_size=np.array([4, 4]), zero_stage=np.array([3, 3])
    )
    block = written(small_model(), job(world_size=8, preset=FSDP), "mtp", both, "none").blocks[0]
    gathers = [op for op in block.forward if isinstance(op, Comm) and op.axis is Axis.ZERO_SHARD]
    assert all(op.size_bytes[0] > 0 == op.size_bytes[1] for op in gathers)


def accumulated(
    micro_batches: int, *, once: bool = True, stage: int = 3
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """The operations of a micro-batch's layer and of the step, under Hugging Face's Trainer on 8 ranks."""
    preset = framework_preset("hf-trainer").changed({"data_parallel.reduces_once": once})
    plain = job(world_size=8, preset=preset)
    asked = replace(plain, global_batch_tokens=plain.global_batch_tokens * micro_batches)
    shards = Layout.of(8, dp=8, zero_size=8, zero_stage=stage)
    block = written(small_model(), asked, "mtp", shards, "none").blocks[0]
    held = RankParameters(dense=ints(ELEMENTS), weight=ints(0), expert=ints(0))
    context = LayerContext(model=small_model(), job=asked, layout=shards)
    return (*block.forward, *block.backward), step_ops(context, held, ints(0))


def collectives(ops: tuple[Op, ...], kind: Collective) -> int:
    """Bytes over the shards."""
    of_kind = [
        op for op in ops if isinstance(op, Comm) and op.collective is kind and op.axis is Axis.ZERO_SHARD
    ]
    return sum(int(op.size_bytes[0]) for op in of_kind)


@pytest.mark.parametrize("stage", [2, 3])
def test_under_no_sync_gradients_travel_once_a_step_and_parameters_for_every_micro_batch(stage: int) -> None:
    """accelerate no_sync around all micro-batches but the last: joined (2 + 2 bytes), added to a 16-bit sum (3 x 2)."""
    layer_ops, step_of = accumulated(4, stage=stage)
    before, _ = accumulated(4, once=False, stage=stage)
    assert (
        collectives(layer_ops, Collective.REDUCE_SCATTER)
        == 0
        < collectives(before, Collective.REDUCE_SCATTER)
    )
    gathers = collectives(layer_ops, Collective.ALL_GATHER)
    assert gathers == collectives(before, Collective.ALL_GATHER) > 0
    assert collectives(step_of, Collective.REDUCE_SCATTER) == 2 * ELEMENTS
    assert collectives(step_of, Collective.ALL_GATHER) == 0
    elements = sum(int(op.parameters[0]) for op in layer_ops if op.phase is Phase.FORWARD)
    assert summed(layer_ops) == 3 * 2 * elements
    joins = [op for op in layer_ops if isinstance(op, MemoryBound) and op.name.endswith("_join")]
    assert sum(float(bytes_moved(op)[0]) for op in joins) == 2 * 2 * elements


def test_a_single_micro_batch_is_reduced_as_its_backward_makes_it() -> None:
    layer_ops, step_of = accumulated(1)
    before, plain = accumulated(1, once=False)
    assert [op.name for op in layer_ops] == [op.name for op in before]
    assert (
        collectives(layer_ops, Collective.REDUCE_SCATTER)
        == collectives(before, Collective.REDUCE_SCATTER)
        > 0
    )
    assert (
        collectives(step_of, Collective.REDUCE_SCATTER) == collectives(plain, Collective.REDUCE_SCATTER) == 0
    )
