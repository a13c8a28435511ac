"""Weights that are gathered for a moment, counted from elements by hand."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters
from ops.layout import Layout
from solver.layers import BYTES, LayerBytes
from solver.memory.gathered_weights import gathered_weights_bytes
from spec.arrays import ints
from spec.frameworks import framework_preset
from tests.ops.layouts import job
from tests.solver.questions import small_model

RANKS = 8


def held(dense: int, narrow: int = 0) -> RankParameters:
    none = ints(0)
    return RankParameters(
        dense=ints(dense),
        weight=none,
        expert=none,
        narrow=RankParameters(dense=ints(narrow), weight=none, expert=none),
    )


def piece(parameters: RankParameters, frozen: RankParameters) -> LayerBytes:
    return LayerBytes(parameters=parameters, frozen=frozen, **{name: np.zeros(1) for name in BYTES})


def gathered(
    zero_stage: int = 3, layers: int = 4, head: int = 500, live: int = 0, **precision: object
) -> float:
    """Layers of 1,000 trained elements, 800 of them read by narrow products, and 200 frozen, 100 of them; an
    embedding of 300.
    """
    asked = job(
        world_size=RANKS, preset=framework_preset("deepspeed").changed({"data_parallel.live_elements": live})
    )
    asked = replace(asked, precision=replace(asked.precision, **precision))
    layout = Layout.of(RANKS, zero_stage=zero_stage, zero_size=RANKS)
    context = LayerContext(model=small_model(), job=asked, layout=layout)
    kinds = [piece(held(1000, 800), held(200, 100)), *(piece(held(size), held(0)) for size in (300, head))]
    return float(gathered_weights_bytes(context, kinds, ints(0), (ints(layers), ints(1), ints(1)))[0])


def test_two_layers_are_gathered_or_the_head_where_that_is_more() -> None:
    """The one in use and the one that comes, two bytes an element."""
    assert gathered() == 2 * 2 * 1200
    assert gathered(head=5000) == 2 * 5000
    assert gathered(layers=0) == 2 * 500
    assert gathered(zero_stage=0) == gathered(zero_stage=2) == 0.0


def test_of_ends_that_are_units_of_their_own_one_is_gathered_beside_the_layers() -> None:
    """An embedding of 300 and a head of 500, beside two layers of 1,200; weights that both share stay in the
    outermost unit.
    """
    for separate, tied, ends in ((False, False, 800), (True, False, 500), (True, True, 800)):
        preset = framework_preset("fsdp").changed({"data_parallel.separate_ends": separate})
        model = replace(small_model(), tied_embeddings=tied)
        layout = Layout.of(RANKS, zero_stage=3, zero_size=RANKS)
        context = LayerContext(model=model, job=job(world_size=RANKS, preset=preset), layout=layout)
        kinds = [piece(held(size), held(0)) for size in (1200, 300, 500)]
        told = gathered_weights_bytes(context, kinds, ints(0), (ints(4), ints(1), ints(1)))
        assert told[0] == 2 * (2 * 1200 + ends)


def test_deepspeed_fetches_ahead_until_its_limit_of_live_parameters() -> None:
    """stage3_max_live_parameters; four layers of 1,200 elements, an embedding of 300 and a head of 500."""
    assert gathered(live=3000) == 2 * 3000
    assert gathered(live=10**9) == 2 * (4 * 1200 + 300 + 500)
    assert gathered(live=3000, head=5000) == 2 * 5000
    assert gathered(live=3000, zero_stage=2) == 0.0
    assert (
        framework_preset("deepspeed").data_parallel.live_elements
        == framework_preset("xtuner").data_parallel.live_elements
        == 10**9
    )


@pytest.mark.parametrize(("narrow_parameters", "layer"), [(False, 1200 - 900 / 2), (True, 1200)])
def test_what_narrow_products_read_is_gathered_in_a_byte(narrow_parameters: bool, layer: float) -> None:
    """900 of 1,200 elements; where they are held narrow both orders are gathered, two bytes together."""
    told = gathered(linear="fp8", parameter_gather="fp8", narrow_parameters=narrow_parameters)
    assert told == 2 * 2 * layer
