"""Who shards what over whom: groups, bytes and rows that a wrong axis or factor would change."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters, broadcast_by_owners, optimizer_passes, shards, update_passes
from ops.layout import Layout, ranks_and_stride
from ops.memory_bound import bytes_moved, num_tensors
from ops.op import Axis, Comm, GroupedGemm, MemoryBound, Op, Owner, Phase, Update
from ops.roles import Role
from solver.estimate import estimate_memory, step_operations
from solver.plans.plan_table import Plan, PlanTable
from spec.arrays import ints
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import JobSpec, Precision, precision_of
from spec.readers.read_config import read_config
from tests.ops.layouts import job, step_on, written
from tests.solver.questions import ROOT, small_model


def test_optimizer_shards_lie_tp_ranks_apart() -> None:
    layout = Layout.of(32, tp=4, zero_size=4)
    assert ranks_and_stride(Axis.ZERO_SHARD, layout) == (ints(4), ints(4))
    assert ranks_and_stride(Axis.ZERO_REPLICATE, layout) == (ints(2), ints(16))


def test_hybrid_sharding_sums_a_shard_over_the_replicas() -> None:
    sizes = {
        op.axis: int(op.size_bytes[0])
        for op in step_on(job(), Layout.of(8, zero_size=2, zero_stage=1), 1000)
        if isinstance(op, Comm) and "gradient" in op.name and op.size_bytes[0]
    }
    # fp32 gradients: 4000 bytes over 2 shards, then half of them over 4 replicas.
    assert sizes == {Axis.ZERO_SHARD: 4000, Axis.ZERO_REPLICATE: 2000}


def test_two_stages_with_the_same_parameters_sum_their_shards() -> None:
    """DualPipe: fp32 gradients of 1000 elements over 2 shards, each summed with the other stage's."""
    layout = Layout.of(8, pp=4, zero_size=2, zero_stage=1)
    mirrored, alone = (step_on(job(), layout, 1000, mirrored=both) for both in (True, False))
    (more,) = [op for op in mirrored if op.name not in {one.name for one in alone}]
    assert isinstance(more, Comm)
    assert (more.axis, int(more.size_bytes[0])) == (Axis.EMBEDDING, 2000)


@pytest.mark.parametrize(("stage", "passes"), [(1, []), (2, []), (3, ["forward", "input_grad"])])
def test_only_stage_3_gathers_parameters_in_both_passes(stage: int, passes: list[str]) -> None:
    """arXiv 1910.02054 sec. 7.2.2, DeepSpeed's preset."""
    asked = job(world_size=4, seq_len=1024, preset=framework_preset("deepspeed"))
    layer = written(small_model(), asked, "mtp", Layout.of(4, zero_size=4, zero_stage=stage)).blocks[0]
    ops = (*layer.forward, *layer.backward)
    gathers = [op for op in ops if isinstance(op, Comm) and "_parameters" in op.name and op.size_bytes[0]]
    assert [op.phase.value for op in gathers] == passes


def test_expert_tensor_ranks_gather_each_others_rows() -> None:
    """arXiv 2504.14960 sec. 3: etp ranks hold slices of an expert, so each sees the rows of all of them."""
    model = read_config(ROOT / "configs" / "8x7B_mixtral.py").model

    def rows(etp: int) -> int:
        layer = written(model, job(world_size=8), "fsp", Layout.of(8, tp=2, etp=etp, ep=2)).blocks[0]
        up = next(op for op in layer.forward if isinstance(op, GroupedGemm) and op.phase is Phase.FORWARD)
        return int(up.m[0])

    assert rows(2) == 2 * rows(1)


@pytest.mark.parametrize(
    ("preset", "returned"), [("megatron", [True, True, True, False]), ("fsdp", [True, True, False, False])]
)
def test_parameters_return_after_the_update_unless_forwards_gather_them(preset: str, returned: list[bool]) -> None:
    """ZeRO 1 and 2 return them once a step (arXiv 1910.02054 sec. 5); FSDP that keeps parameters whole
    between the passes (stage 2) gathers them in each forward instead."""
    layout = Layout.of(8, zero_size=8, zero_stage=np.array([0, 1, 2, 3]))
    ops = step_on(job(preset=framework_preset(preset)), layout, 800)
    (back,) = [op for op in ops if isinstance(op, Comm) and op.name == "step.dense_parameters"]
    assert (back.size_bytes > 0).tolist() == returned
    assert back.size_bytes[1] == 2 * 800


def test_experts_shard_over_their_own_data_parallel_ranks() -> None:
    """ep 4 of 8 leaves two copies of an expert: of eight shards of dense parameters two of experts'; isp's
    weights, cut by wp 2, leave four of eight, and of two both."""

    def shards_of(owner: Owner, zero_size: int = 8, **degrees: int) -> list[int]:
        layout = Layout.of(8, zero_size=zero_size, zero_stage=1, **degrees)
        return shards(LayerContext(model=small_model(), job=job(), layout=layout), owner).tolist()

    assert [shards_of(owner, ep=4) for owner in (Owner.DENSE, Owner.EXPERT)] == [[8], [2]]
    assert shards_of(Owner.WEIGHT, wp=2) == [4]
    assert shards_of(Owner.WEIGHT, wp=2, zero_size=2) == [2]


def test_below_stage_2_a_layer_reduces_nothing() -> None:
    asked = job(world_size=4, seq_len=1024, preset=framework_preset("deepspeed"))
    layout = Layout.of(4, zero_size=4, zero_stage=np.array([0, 1, 2]))
    layer = written(small_model(), asked, "mtp", layout).blocks[0]
    sizes = sum(op.size_bytes for op in layer.backward if isinstance(op, Comm) and op.axis is Axis.ZERO_SHARD)
    elements = sum(int(op.parameters[0]) for op in layer.forward)
    assert sizes.tolist() == [0, 0, 2 * elements]


def test_what_narrow_products_read_is_counted_beside_all() -> None:
    count = {Owner.DENSE: 10, Owner.WEIGHT: 20, Owner.EXPERT: 40}
    plain = RankParameters.by_owner(lambda owner: ints(count[owner]))
    assert (plain.total.tolist(), plain.low_precision_total.tolist()) == ([70], [0])
    narrow = RankParameters.by_owner(lambda owner: ints(count[owner]), lambda owner: ints(count[owner] // 5))
    assert narrow.low_precision_total.tolist() == [14]
    assert [narrow.low_precision_of(owner).tolist() for owner in count] == [[2], [4], [8]]


def test_without_shards_gradients_are_summed_whole_and_nothing_returns() -> None:
    """Eight copies: one all-reduce of fp32 gradients."""
    layout = Layout.of(8, zero_size=np.array([1, 8]), zero_stage=np.array([0, 1]))
    sizes = {
        (op.name, op.collective): op.size_bytes.tolist()
        for op in step_on(job(), layout, 1000)
        if isinstance(op, Comm) and "dense" in op.name and "replicas" not in op.name
    }
    assert sizes == {
        ("step.dense_gradient", Collective.ALL_REDUCE): [4000, 0],
        ("step.dense_gradient", Collective.REDUCE_SCATTER): [0, 4000],
        ("step.dense_parameters", Collective.ALL_GATHER): [0, 2000],
    }


# Bytes that a step moves around the optimizer's own pass, counted by hand from Megatron-LM's source.


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
    names = [op.name for op in step_on(job(), Layout.of(8), ELEMENTS) if isinstance(op, MemoryBound | Update)]
    assert names.index("step.clip_gradients") < names.index("step.update") < names.index("step.model_parameters")


def test_stages_2_and_3_reduce_in_pieces_and_divide_and_check_nothing_at_the_end() -> None:
    """Read and written (4 + 4) once less than with whole gradients, and not read to be checked (4)."""
    asked = with_precision("megatron", "fp32", "bf16")
    first, second = (moved_per_element(asked, Layout.of(8, zero_size=8, zero_stage=stage)) for stage in (1, 2))
    assert second == first - 8.0 - 4.0


def test_sharded_gradients_are_zeroed_as_shards() -> None:
    """4 bytes an element of the whole buffer at stage 1, of an eighth of it at stages 2 and 3."""
    zeroed = []
    for stage in (1, 2, 3):
        asked = with_precision("megatron-fsdp", "fp32", "bf16")
        ops = step_on(asked, Layout.of(8, zero_size=8, zero_stage=stage), ELEMENTS)
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
        context = LayerContext(model=small_model(), job=job(preset=framework_preset(name)), layout=Layout.of(1))
        apart = context.job.preset.data_parallel.update_copies
        passes = update_passes(context, ints(ELEMENTS)) if apart else ()
        moved = sum(float(bytes_moved(op)[0]) for op in passes if isinstance(op, MemoryBound))
        assert moved == further * width * ELEMENTS
        names = [op.name for op in step_on(context.job, Layout.of(1), ELEMENTS)]
        assert ("step.update_reads" in names) == ("step.update_copies" in names) == bool(width)


# InternEvo sends updated parameters by their owners: no more broadcasts than there are parameters, and all
# their bytes.


def broadcasts(ops: tuple[Op, ...]) -> dict[Owner, tuple[int, int]]:
    """How many of how many bytes, by owner."""
    sent = [op for op in ops if isinstance(op, Comm) and op.role is Role.PARAMETER_GATHER and op.size_bytes[0]]
    assert {op.collective for op in sent} == {Collective.BROADCAST}
    return {op.owner: (int(op.repeat[0]), int(op.size_bytes[0])) for op in sent}  # type: ignore[index]


@pytest.mark.parametrize(("tensors", "expected"), [(3, (3, 5334)), (8, (8, 2000)), (50, (8, 2000)), (0, (1, 16000))])
def test_a_rank_without_parameters_sends_nothing(tensors: int, expected: tuple[int, int]) -> None:
    """16,000 bytes of 8,000 parameters over 8 shards."""
    asked = job(preset=framework_preset("internevo"))
    ops = step_on(asked, Layout.of(8, zero_size=8, zero_stage=1), 8000, expert=4000)
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
    count, size = broadcasts(step_operations(model, asked, estimate_memory(model, asked, PlanTable.of(plan))))[
        Owner.DENSE
    ]
    assert count == whole < 256
    held = int(estimate_memory(model, asked, PlanTable.of(plan)).bytes.on_rank.total[0])
    assert 2 * held <= count * size <= 2 * held + 2 * 256 + 256
