"""Which sets of parts are worth running again."""

from dataclasses import replace
from itertools import chain, combinations

from ops.block import model_ops
from ops.layout import Layout
from ops.op import Piece
from ops.recompute.layers import Recompute
from ops.recompute.modules import modules_recomputed
from solver.refinements.module_sets import least_sets, module_sets
from spec.arrays import BoolArray, IntArray, bools
from spec.model import BlockRun, BlockSpec, ModelSpec
from spec.presets.registry import PRESETS
from tests.solver.questions import question, small_model
from tests.workload.random_plans import EXPERTS, LATENT

NAMES = PRESETS["megatron"].recomputation.modules


def latent_experts() -> ModelSpec:
    """A dense layer and two of experts, latent attention in all."""
    dense = replace(small_model().blocks[0].block, mixer=LATENT)
    experts = BlockSpec(mixer=LATENT, mlp=None, moe=EXPERTS)
    blocks = (BlockRun(block=dense, count=1), BlockRun(block=experts, count=2))
    return replace(small_model(), blocks=blocks)


def blocks_of(model: ModelSpec) -> tuple[Piece, ...]:
    """The layers of a rank."""
    asked = question(preset=PRESETS["megatron"])
    return model_ops(model, asked.job, Layout.of(1), "mtp", Recompute.NONE).blocks


def done(blocks: tuple[Piece, ...], names: tuple[str, ...]) -> tuple[object, ...]:
    """What runs in the backward and what is kept, of every block."""
    pieces = [modules_recomputed(block, names) for block in blocks]
    return tuple(
        (tuple(op.name for op in piece.backward), tuple(float(op.saved_bytes[0]) for op in piece.forward))
        for piece in pieces
    )


def test_every_effect_that_parts_can_have_is_there_once() -> None:
    blocks = blocks_of(latent_experts())
    sets = module_sets(blocks, NAMES)
    all_sets = chain.from_iterable(combinations(NAMES, size) for size in range(len(NAMES) + 1))
    effects = {done(blocks, names) for names in all_sets} - {done(blocks, ())}
    assert len(sets) == len(effects)
    assert {done(blocks, names) for names in sets} == effects


def test_a_dense_model_has_one_part_and_a_part_that_drops_nothing_is_none() -> None:
    blocks = blocks_of(small_model())
    assert module_sets(blocks, NAMES) == (("mlp",),)
    assert module_sets(blocks, PRESETS["internevo"].recomputation.modules) == ()


def test_no_part_of_a_least_set_can_be_left_out() -> None:
    sets = (("a",), ("b",), ("a", "b"), ("a", "c"))
    fitting = {("a",): {0}, ("b",): {0}, ("a", "b"): {0, 1}, ("a", "c"): {0, 1}}
    asked = []

    def fits(chosen: tuple[str, ...], rows: IntArray) -> BoolArray:
        asked.append((chosen, rows.tolist()))
        return bools([row in fitting[chosen] for row in rows])

    least = {chosen: rows.tolist() for chosen, rows in least_sets(sets, 3, fits)}
    assert least == {("a",): [0], ("b",): [0], ("a", "b"): [1], ("a", "c"): [1]}
    assert asked[-1] == (("a", "c"), [1, 2])
