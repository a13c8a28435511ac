"""Buffers of the step's end, in bytes counted by hand."""

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters
from ops.layout import Layout
from solver.memory.step_buffers import returned_bytes, returned_segments, segment_bytes, step_buffers
from spec.arrays import floats, ints
from spec.frameworks import framework_preset
from tests.ops.layouts import job
from tests.solver.questions import small_model

ELEMENTS = 1000


def on_rank(rows: int = 1) -> RankParameters:
    return RankParameters(dense=ints([ELEMENTS] * rows), weight=ints([0] * rows), expert=ints([0] * rows))


def test_the_embeddings_gradient_is_whole_before_it_is_added() -> None:
    """16 bits an element."""
    context = LayerContext(model=small_model(), job=job(world_size=8), layout=Layout.of(8))
    assert step_buffers(context, on_rank(), ints([300]))[0].tolist() == [2 * 300]


def test_slices_return_through_a_copy_of_the_parameters_where_an_optimizer_is_sharded() -> None:
    """nanotron under ZeRO-1 alone; frameworks without lists of slices have none."""
    layout = Layout.of(8, zero_size=np.array([1, 2, 8]), zero_stage=np.array([1, 1, 0]))
    for name, width in (("nanotron", None), ("megatron", 0.0)):
        asked = job(world_size=8, preset=framework_preset(name))
        found = returned_bytes(LayerContext(model=small_model(), job=asked, layout=layout), on_rank(3))
        assert found[[0, 2]].tolist() == [0.0, 0.0]
        assert (found[1] > 0) is np.bool_(width is None)


def test_a_buffer_finds_room_where_a_tensor_as_large_was() -> None:
    largest = floats([10.0])
    assert segment_bytes((floats([10.0]), floats([11.0]), floats([12.0])), largest).tolist() == [23.0]


@pytest.mark.parametrize(
    ("returned", "widest", "expected"),
    [
        (10.0, 0.0, 0.0),  # whole where the largest tensor was, its four pieces too
        (12.0, 0.0, 12.0),  # the whole one alone is larger
        (48.0, 0.0, 96.0),  # its pieces of 12 as well
        (48.0, 12.0, 48.0),  # which activations left room for
    ],
)
def test_pieces_for_each_rank_find_room_where_the_whole_does_not(
    returned: float, widest: float, expected: float
) -> None:
    found = returned_segments(floats([returned]), ints([4]), floats([10.0]), floats([widest]))
    assert found.tolist() == [expected]
