"""Bytes that a step moves around the optimizer's own pass, counted by hand from Megatron-LM's source."""

from dataclasses import replace

import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters, optimizer_passes, step_ops, update_passes
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import MemoryBound, Update
from spec.arrays import ints
from spec.frameworks import framework_preset
from spec.job import JobSpec, Precision, precision_of
from tests.ops.layouts import job
from tests.solver.questions import small_model

ELEMENTS = 1_000_000


def moved_per_element(asked: JobSpec, layout: Layout, owned: int = ELEMENTS) -> float:
    context = LayerContext(model=small_model(), job=asked, layout=layout)
    before, after = optimizer_passes(context, ints(ELEMENTS), ints(owned))
    kernels = [op for op in (*before, *after) if isinstance(op, MemoryBound)]
    return sum(float(bytes_moved(op)[0]) for op in kernels) / ELEMENTS


def with_precision(preset: str, gradient: str, compute: str) -> JobSpec:
    changed = framework_preset(preset).changed({"data_parallel.fp32_gradients": gradient == "fp32"})
    return replace(job(preset=changed), precision=precision_of(changed, compute))


def test_fp16_in_one_replica() -> None:
    """Checked 2, zeroed 2, to fp32 2 + 4, unscaled 4 + 4, norm 4, clipped 4 + 4, parameters back 4 + 2."""
    assert moved_per_element(with_precision("megatron", "fp16", "fp16"), Layout.of(1)) == 36.0


def test_bf16_with_fp32_gradients_in_several_replicas() -> None:
    """Checked 4, divided 4 + 4, zeroed 4, norm 4, clipped 4 + 4, parameters back 4 + 2; neither unscaled nor copied."""
    assert moved_per_element(with_precision("megatron", "fp32", "bf16"), Layout.of(8)) == 34.0


def test_internevo_copies_gradients_into_a_bucket_and_back_and_divides_nothing() -> None:
    """In 4 + 4, out 4 + 4 where Megatron checks (4), divides (4 + 4) and zeroes its buffer (4)."""
    asked = with_precision("internevo", "fp32", "bf16")
    assert moved_per_element(asked, Layout.of(8)) == 34.0 - 16.0 + 16.0
    assert moved_per_element(asked, Layout.of(1)) == 34.0 - 16.0


def test_the_first_internevo_divides_what_lies_in_the_bucket() -> None:
    """Read and written (4 + 4) once more."""
    asked = with_precision("internlm", "fp32", "bf16")
    assert moved_per_element(asked, Layout.of(8)) == 34.0 + 8.0
    assert moved_per_element(asked, Layout.of(1)) == 34.0 - 16.0


def test_sharded_state_makes_only_its_own_passes() -> None:
    """With an eighth owned, what works on the whole buffer stays (16 bytes), the rest (18) is an eighth."""
    asked = with_precision("megatron", "fp32", "bf16")
    sharded = moved_per_element(asked, Layout.of(8, zero_size=8, zero_stage=1), owned=ELEMENTS // 8)
    assert sharded == pytest.approx(16.0 + 18.0 / 8)


def test_without_a_master_copy_nothing_is_cast() -> None:
    asked = replace(job(), precision=Precision(master="", gradient="bf16"))
    context = LayerContext(model=small_model(), job=asked, layout=Layout.of(1))
    before, after = optimizer_passes(context, ints(ELEMENTS), ints(ELEMENTS))
    assert not after
    assert "cast" not in {op.kernel for op in before if isinstance(op, MemoryBound)}


def test_gradients_come_first_and_parameters_last() -> None:
    held = RankParameters(dense=ints(ELEMENTS), weight=ints(0), expert=ints(0))
    context = LayerContext(model=small_model(), job=job(), layout=Layout.of(8))
    names = [op.name for op in step_ops(context, held, ints(0)) if isinstance(op, MemoryBound | Update)]
    assert (
        names.index("step.clip_gradients") < names.index("step.update") < names.index("step.model_parameters")
    )


def test_stages_2_and_3_reduce_in_pieces_and_divide_and_check_nothing_at_the_end() -> None:
    """Read and written (4 + 4) once less than with whole gradients, and not read to be checked (4)."""
    asked = with_precision("megatron", "fp32", "bf16")
    first, second = (
        moved_per_element(asked, Layout.of(8, zero_size=8, zero_stage=stage)) for stage in (1, 2)
    )
    assert second == first - 8.0 - 4.0


def test_sharded_gradients_are_zeroed_as_shards() -> None:
    """4 bytes an element of the whole buffer at stage 1, of an eighth of it at stages 2 and 3."""
    held = RankParameters(dense=ints(ELEMENTS), weight=ints(0), expert=ints(0))
    zeroed = []
    for stage in (1, 2, 3):
        layout = Layout.of(8, zero_size=8, zero_stage=stage)
        asked = with_precision("megatron-fsdp", "fp32", "bf16")
        ops = step_ops(LayerContext(model=small_model(), job=asked, layout=layout), held, ints(0))
        fills = [op for op in ops if isinstance(op, MemoryBound) and op.name == "step.zero_gradients"]
        zeroed.append(sum(float(bytes_moved(op)[0]) for op in fills))
    assert zeroed == [4.0 * ELEMENTS, 0.5 * ELEMENTS, 0.5 * ELEMENTS]


def test_an_update_in_elementwise_operations_moves_its_tensors_again_and_again() -> None:
    """Counted in the operations of torch's AdamW as (read, written), less what one kernel for all of them moves."""
    operations = {
        "parameters.mul_": (1, 1),
        "first_moments.lerp_": (2, 1),
        "second_moments.mul_": (1, 1),
        "second_moments.addcmul_": (2, 1),
        "roots.sqrt": (1, 1),
        "roots.div_": (1, 1),
        "roots.add_": (1, 1),
        "parameters.addcdiv_": (3, 1),
    }
    further = sum(sum(one) for one in operations.values()) - (4 + 3)
    for name, width in (("internlm", 4), ("internevo", 0), ("megatron", 0), ("aleph-alpha", 4)):
        context = LayerContext(
            model=small_model(), job=job(preset=framework_preset(name)), layout=Layout.of(1)
        )
        apart = context.job.preset.data_parallel.update_copies
        passes = update_passes(context, ints(ELEMENTS)) if apart else ()
        moved = sum(float(bytes_moved(op)[0]) for op in passes if isinstance(op, MemoryBound))
        assert moved == further * width * ELEMENTS
        held = RankParameters(dense=ints(ELEMENTS), weight=ints(0), expert=ints(0))
        names = [op.name for op in step_ops(context, held, ints(0))]
        assert ("step.update_reads" in names) == ("step.update_copies" in names) == bool(width)
