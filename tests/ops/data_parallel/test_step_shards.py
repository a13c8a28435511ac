"""Who shards what over whom: groups, bytes and rows that a wrong axis or factor would change."""

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters, shards, step_ops
from ops.layout import Layout, ranks_and_stride
from ops.op import Axis, Comm, GroupedGemm, Owner, Phase
from solver.problem.result import model_flops_per_sequence
from spec.arrays import ints
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.solver.questions import ROOT, small_model


def test_optimizer_shards_lie_tp_ranks_apart() -> None:
    layout = Layout.of(32, tp=4, zero_size=4)
    assert ranks_and_stride(Axis.ZERO_SHARD, layout) == (ints(4), ints(4))
    assert ranks_and_stride(Axis.ZERO_REPLICATE, layout) == (ints(2), ints(16))


def test_hybrid_sharding_sums_a_shard_over_the_replicas() -> None:
    layout = Layout.of(8, zero_size=2, zero_stage=1)
    held = RankParameters(dense=ints(1000), weight=ints(0), expert=ints(0))
    context = LayerContext(model=small_model(), job=job(world_size=8), layout=layout)
    sizes = {
        op.axis: int(op.size_bytes[0])
        for op in step_ops(context, held, ints(0))
        if isinstance(op, Comm) and "gradient" in op.name and op.size_bytes[0]
    }
    # fp32 gradients: 4000 bytes over 2 shards, then half of them over 4 replicas.
    assert sizes == {Axis.ZERO_SHARD: 4000, Axis.ZERO_REPLICATE: 2000}


def test_two_stages_with_the_same_parameters_sum_their_shards() -> None:
    """DualPipe: fp32 gradients of 1000 elements over 2 shards, each summed with the other stage's."""
    layout = Layout.of(8, pp=4, zero_size=2, zero_stage=1)
    held = RankParameters(dense=ints(1000), weight=ints(0), expert=ints(0))
    context = LayerContext(model=small_model(), job=job(world_size=8), layout=layout)
    mirrored, alone = (step_ops(context, held, ints(0), mirrored=both) for both in (True, False))
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


def test_model_flops_are_three_forwards() -> None:
    """PaLM (arXiv 2204.02311 App. B): 6 FLOPs a weight and token, 12 s h a layer and token."""
    model, s = small_model(layers=2, kv_heads=8), 1024
    h, f, vocab = 512, 2048, 4096
    weights = 2 * (4 * h * h + 3 * h * f) + h * vocab
    expected = s * (6 * weights + 2 * 12 * s * h)
    assert np.isclose(model_flops_per_sequence(model, job(seq_len=s, world_size=1)), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("preset", "returned"), [("megatron", [True, True, True, False]), ("fsdp", [True, True, False, False])]
)
def test_parameters_return_after_the_update_unless_forwards_gather_them(
    preset: str, returned: list[bool]
) -> None:
    """ZeRO 1 and 2 return them once a step (arXiv 1910.02054 sec. 5); FSDP that keeps parameters whole
    between the passes (stage 2) gathers them in each forward instead."""
    layout = Layout.of(8, zero_size=8, zero_stage=np.array([0, 1, 2, 3]))
    held = RankParameters(dense=ints([800] * 4), weight=ints([0] * 4), expert=ints([0] * 4))
    context = LayerContext(
        model=small_model(), job=job(world_size=8, preset=framework_preset(preset)), layout=layout
    )
    (back,) = [
        op
        for op in step_ops(context, held, ints([0] * 4))
        if isinstance(op, Comm) and op.name == "step.dense_parameters"
    ]
    assert (back.size_bytes > 0).tolist() == returned
    assert back.size_bytes[1] == 2 * 800


def test_experts_shard_over_their_own_data_parallel_ranks() -> None:
    """ep 4 of 8 leaves two copies of an expert: of eight shards of dense parameters two of experts'; isp's
    weights, cut by wp 2, leave four of eight."""
    layout = Layout.of(8, ep=4, zero_size=8, zero_stage=1)
    context = LayerContext(model=small_model(), job=job(world_size=8), layout=layout)
    assert [shards(context, owner).tolist() for owner in (Owner.DENSE, Owner.EXPERT)] == [[8], [2]]
    weights = LayerContext(
        model=small_model(), job=job(world_size=8), layout=Layout.of(8, wp=2, zero_size=8, zero_stage=1)
    )
    assert shards(weights, Owner.WEIGHT).tolist() == [4]


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
    held = RankParameters(dense=ints([1000] * 2), weight=ints([0] * 2), expert=ints([0] * 2))
    layout = Layout.of(8, zero_size=np.array([1, 8]), zero_stage=np.array([0, 1]))
    context = LayerContext(model=small_model(), job=job(world_size=8), layout=layout)
    sizes = {
        (op.name, op.collective): op.size_bytes.tolist()
        for op in step_ops(context, held, ints([0] * 2))
        if isinstance(op, Comm) and "dense" in op.name and "replicas" not in op.name
    }
    assert sizes == {
        ("step.dense_gradient", Collective.ALL_REDUCE): [4000, 0],
        ("step.dense_gradient", Collective.REDUCE_SCATTER): [0, 4000],
        ("step.dense_parameters", Collective.ALL_GATHER): [0, 2000],
    }
