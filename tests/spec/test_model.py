"""Models with wide ends: which layers, and that nothing else changes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.model import BlockRun, ModelSpec
from spec.parameters import num_parameters
from tests.solver.questions import small_model

PLAIN = small_model(layers=6)


def of_runs(*counts: int) -> ModelSpec:
    """Layers of as many kinds as counts, told apart by where their residual goes."""
    block = PLAIN.blocks[0].block
    kinds = (block, replace(block, parallel_residual=True))
    runs = tuple(BlockRun(block=kinds[at % 2], count=count) for at, count in enumerate(counts))
    return replace(PLAIN, blocks=runs)


def layers(model: ModelSpec) -> list[tuple[bool, bool]]:
    """Of every layer its kind and whether it is wide."""
    return [
        (run.block.parallel_residual, run.block.high_precision) for run in model.main_blocks for _ in range(run.count)
    ]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_the_first_and_the_last_layers_are_wide_and_all_keep_their_kind(counts: list[int], data: st.DataObject) -> None:
    model = of_runs(*counts)
    total = model.num_layers
    first = data.draw(st.integers(0, total))
    last = data.draw(st.integers(0, total - first))
    ends = model.with_high_precision_ends(first, last)
    wide = [True] * first + [False] * (total - first - last) + [True] * last
    assert layers(ends) == [(kind, is_wide) for (kind, _), is_wide in zip(layers(model), wide, strict=True)]
    assert num_parameters(ends) == num_parameters(model)


def test_prediction_blocks_are_no_last_layer() -> None:
    extra = BlockRun(block=replace(PLAIN.blocks[0].block, mtp=True), count=1)
    ends = replace(PLAIN, blocks=(*PLAIN.blocks, extra)).with_high_precision_ends(0, 2)
    assert [(run.count, run.block.high_precision, run.block.mtp) for run in ends.blocks] == [
        (4, False, False),
        (2, True, False),
        (1, False, True),
    ]


@pytest.mark.parametrize("ends", [(4, 3), (7, 0), (-1, 0)])
def test_more_than_there_are_is_refused(ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="of 6 layers"):
        PLAIN.with_high_precision_ends(*ends)
