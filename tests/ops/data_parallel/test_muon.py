"""Muon by hand: a layer of hidden 512 with 8 query and 4 key heads of 64 and a gated feed-forward network of 1024."""

from dataclasses import replace

import numpy as np
import pytest

from ops.block import model_ops
from ops.context import LayerContext
from ops.data_parallel.muon import MatrixCount, matrices_of_stage, working_bytes
from ops.data_parallel.step import (
    RankParameters,
    muon_elements,
    owned_by_muon,
    owned_elements,
    shard_elements,
    step_ops,
)
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, MemoryBound, Op, Owner, Update
from ops.recompute import Recompute
from spec.arrays import bools, ints
from spec.model import MlpSpec, ModelSpec, MoeSpec
from tests.ops.layouts import job
from tests.solver.questions import small_model, with_block, with_part

HIDDEN, WIDTH, LAYERS, VOCAB = 512, 1024, 6, 4096
# small and large side: q and out, k and v, up with gate, down
LAYER = {(512, 512): 2, (256, 512): 2, (512, 2048): 1, (512, 1024): 1}
MATRIX_ELEMENTS = sum(small * large * count for (small, large), count in LAYER.items())


def model(**changes: object) -> ModelSpec:
    return with_block(small_model(layers=LAYERS), **{"mlp": MlpSpec(ffn_hidden=WIDTH, gated=True)} | changes)


def sides(held: tuple[MatrixCount, ...], owner: Owner = Owner.DENSE) -> dict[tuple[int, int], int]:
    return {(h.matrix.small, h.matrix.large): int(h.count[0]) for h in held if h.matrix.owner is owner}


def step(layout: Layout, optimizer: str = "muon", of: ModelSpec | None = None) -> tuple[Op, ...]:
    """Of a rank with all layers and the embedding."""
    context, on_rank = held(layout, optimizer, of)
    return step_ops(context, on_rank, bools(False))


def held(layout: Layout, optimizer: str = "muon", of: ModelSpec | None = None) -> tuple[LayerContext, RankParameters]:
    one = of or model()
    asked = job(world_size=layout.world_size, optimizer=optimizer)
    ops = model_ops(one, asked, layout, "mtp", Recompute.NONE)

    def owned(owner: Owner) -> int:
        layers = sum(int(op.parameters[0]) for op in ops.blocks[0].forward if op.owner is owner)
        ends = sum(int(op.parameters[0]) for op in ops.embedding.forward if op.owner is owner)
        return LAYERS * layers + ends

    on_rank = RankParameters(
        dense=ints(owned(Owner.DENSE)),
        weight=ints(0),
        expert=ints(owned(Owner.EXPERT)),
        matrices=matrices_of_stage(one, asked, layout, (ints(LAYERS),)) if optimizer == "muon" else (),
    )
    return LayerContext(model=one, job=asked, layout=layout), on_rank


def products(ops: tuple[Op, ...]) -> float:
    return float(sum(op.flops[0] for op in ops if isinstance(op, BatchedGemm)))


def newton_schulz(small: int, large: int) -> int:
    """Five times X X^T, A A and B X."""
    return 5 * 2 * (2 * small * small * large + small**3)


def test_matrices_of_a_layer() -> None:
    """Queries, keys and values apart, gate and up as the one weight they are."""
    asked = job(world_size=1)
    layers = (ints(LAYERS),)
    assert sides(matrices_of_stage(model(), asked, Layout.of(1), layers)) == {
        size: LAYERS * count for size, count in LAYER.items()
    }
    gated = with_part(model(mlp=None), "mixer", output_gate=True)
    assert sides(matrices_of_stage(gated, asked, Layout.of(1), layers)) == {
        (512, 512): 3 * LAYERS,
        (256, 512): 2 * LAYERS,
    }


def test_every_expert_is_matrices_of_its_own() -> None:
    """8 of 64 experts on a rank; their router is a matrix too, of every rank."""
    moe = MoeSpec(num_experts=64, topk=2, expert_ffn_hidden=128)
    found = matrices_of_stage(model(mlp=None, moe=moe), job(), Layout.of(8, ep=8), (ints(LAYERS),))
    assert sides(found, Owner.EXPERT) == {(256, 512): 8 * LAYERS, (128, 512): 8 * LAYERS}
    assert sides(found)[64, 512] == LAYERS


@pytest.mark.parametrize("shards", [1, 4])
def test_products_are_those_of_five_steps(shards: int) -> None:
    """arXiv 2502.16982 sec. 2.1, shared out over the ranks."""
    whole = LAYERS * sum(count * newton_schulz(*size) for size, count in LAYER.items())
    assert products(step(Layout.of(shards, zero_size=shards, zero_stage=1))) == pytest.approx(whole / shards)
    assert products(step(Layout.of(shards, zero_size=shards, zero_stage=1), "adamw")) == 0


def test_no_rank_has_less_than_one_matrix_where_there_are_more_ranks() -> None:
    """64 ranks, 36 matrices: the busiest has the largest one."""
    assert products(step(Layout.of(64, zero_size=64, zero_stage=1))) == pytest.approx(newton_schulz(512, 2048))


def test_tensor_parallel_ranks_all_work_on_the_whole() -> None:
    """muon_utils.py, newton_schulz_tp, duplicated: fp32 slices gathered over tp."""
    one, two = step(Layout.of(1)), step(Layout.of(2, tp=2))
    assert products(one) == products(two)
    gathers = {
        op.axis: int(op.size_bytes[0]) for op in two if isinstance(op, Comm) and "muon" in op.name and op.size_bytes[0]
    }
    assert gathers == {Axis.TP: 4 * LAYERS * MATRIX_ELEMENTS}
    assert not any(op.size_bytes[0] for op in one if isinstance(op, Comm) and "muon" in op.name)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_tensor_parallel_rank_updates_its_slice_of_each_matrix(tp: int) -> None:
    """And AdamW all else that it holds: half of the table with tp 2, and whole norms."""
    context, on_rank = held(Layout.of(tp, tp=tp))
    assert muon_elements(context, on_rank, Owner.DENSE).tolist() == [LAYERS * MATRIX_ELEMENTS // tp]
    rest = VOCAB * HIDDEN // tp + LAYERS * 2 * HIDDEN
    assert shard_elements(context, on_rank, Owner.DENSE)[0] == LAYERS * MATRIX_ELEMENTS // tp + rest


def test_experts_are_cut_over_their_own_tensor_parallelism() -> None:
    """64 experts with up and gate of 256 and down of 128 rows of 512, on two ranks of etp, whatever tp cuts."""
    moe = MoeSpec(num_experts=64, topk=2, expert_ffn_hidden=128)
    elements = LAYERS * 64 * (256 + 128) * 512
    for tp, etp in ((2, 2), (2, 1), (4, 2)):
        context, on_rank = held(Layout.of(4, tp=tp, etp=etp), of=model(mlp=None, moe=moe))
        assert muon_elements(context, on_rank, Owner.EXPERT).tolist() == [elements // etp]
        assert shard_elements(context, on_rank, Owner.EXPERT).tolist() == [elements // etp]


def test_passes_around_the_products() -> None:
    """orthogonalized_optimizer.py, step, and newton_schulz, fp32 bytes an element: decay 8, momentum 12, norm 4, normed
    8, to 16 bits and back 6 each, scale 8, update 12."""
    moved = sum(
        float(bytes_moved(op)[0]) for op in step(Layout.of(1)) if isinstance(op, MemoryBound) and "muon" in op.name
    )
    assert moved == LAYERS * MATRIX_ELEMENTS * (8 + 12 + 4 + 8 + 6 + 6 + 8 + 12)


def test_adam_updates_the_rest_and_nothing_is_lost() -> None:
    """Embedding and norms, in equal parts; whole matrices beside."""
    layout = Layout.of(4, zero_size=4, zero_stage=1)
    context, on_rank = held(layout)
    rest = VOCAB * HIDDEN + LAYERS * 2 * HIDDEN
    (update,) = (op for op in step(layout) if isinstance(op, Update))
    assert int(update.elements[0]) == rest // 4
    assert int(owned_by_muon(context, on_rank)[0]) == LAYERS * MATRIX_ELEMENTS // 4
    assert int(owned_elements(context, on_rank)[0]) * 4 == int(on_rank.total[0])


def test_gradients_and_parameters_travel_in_the_largest_shard() -> None:
    """64 ranks: every shard is padded to the one with the largest matrix (layer_wise_optimizer.py)."""
    layout = Layout.of(64, zero_size=64, zero_stage=1)
    (scatter,) = (
        op for op in step(layout) if isinstance(op, Comm) and "dense_gradient" in op.name and op.size_bytes[0]
    )
    rest = -(-(VOCAB * HIDDEN + LAYERS * 2 * HIDDEN) // 64)
    assert int(scatter.size_bytes[0]) == 4 * 64 * (rest + 512 * 2048)


def test_what_one_matrix_takes_while_it_is_worked_on() -> None:
    """fp32 copy, two of bf16, two squares; under tensor parallelism the slices and their whole too."""
    largest = 512 * 2048
    for tp, gathered in ((1, 0), (2, 8)):
        context, on_rank = held(Layout.of(tp, tp=tp))
        expected = largest * (gathered + 4 + 4) + 4 * 512 * 512
        assert np.array_equal(working_bytes(context, on_rank.matrices), [expected])


def test_a_stage_without_matrices_works_in_nothing() -> None:
    context, on_rank = held(Layout.of(2, tp=2))
    none = tuple(replace(one, count=0 * one.count) for one in on_rank.matrices)
    assert working_bytes(context, none).tolist() == [0.0]
