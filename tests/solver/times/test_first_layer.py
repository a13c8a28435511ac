"""What nothing runs beside: the first gather of a pass and its last reduction."""

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import Comm, Lane, Phase
from ops.roles import Role
from solver.pipeline.stages import ChunkTable
from solver.plans.layers import as_first
from solver.plans.plan_table import Plan
from solver.times.stage_times import piece_weights
from spec.arrays import bools, ints
from spec.frameworks import framework_preset
from spec.parameters import num_parameters
from tests.ops.layouts import job, written
from tests.solver.flat_cost_model import INTRA_BANDWIDTH
from tests.solver.questions import small_model
from tests.solver.test_price import answer

DP, MICRO = 4, 2
SEQ = 65536  # so long that compute outlasts every message


def _dp_comm_s(framework: str, layers: int, **choices: object) -> float:
    plan = Plan(strategy="mtp", preset=framework, dp=DP, zero_stage=3, zero_size=DP, num_micro=MICRO)
    preset = framework_preset(framework).changed(
        {f"data_parallel.{name}": value for name, value in choices.items()}
    )
    return answer(plan, model=small_model(layers=layers), preset=preset, seq_len=SEQ).parts_s["dp_comm"]


def _moved_s(elements: float) -> float:
    """Gathered in 16 bits, or reduced in 16 bits."""
    return 2.0 * elements * (DP - 1) / DP / INTRA_BANDWIDTH


def test_fsdp_waits_for_its_outermost_unit_and_one_layer_a_micro_batch() -> None:
    """Forward a gather and backward a reduction of both; each further layer comes for nothing."""
    two, three = (num_parameters(small_model(layers=layers)).total for layers in (2, 3))
    outermost = two - 2 * (three - two)
    expected = MICRO * 2 * _moved_s(outermost + (three - two))
    assert _dp_comm_s("fsdp", 2) == pytest.approx(expected, rel=1e-6)
    assert _dp_comm_s("fsdp", 3) == pytest.approx(expected, rel=1e-6)


def test_where_ends_are_units_of_their_own_the_embedding_alone_is_waited_for() -> None:
    """torchtitan distributed/fsdp.py: the head is gathered beside the last layer and reduced beside its backward."""
    model = small_model(layers=2)
    two, three = (num_parameters(small_model(layers=layers)).total for layers in (2, 3))
    embedding = model.hidden * model.vocab
    expected = MICRO * 2 * _moved_s(embedding + (three - two))
    told = _dp_comm_s("fsdp", 2, separate_ends=True)
    assert told == pytest.approx(expected, rel=1e-6)


def test_others_gather_the_head_ahead_of_it() -> None:
    """DeepSpeed's units are modules: the head's come and go beside its own product."""
    assert 0.0 < _dp_comm_s("deepspeed", 2) < _dp_comm_s("fsdp", 2)


def test_the_outermost_unit_is_gathered_once() -> None:
    asked = job(world_size=DP, preset=framework_preset("fsdp"))
    ops = written(small_model(), asked, "mtp", Layout.of(DP, dp=DP, zero_stage=3, zero_size=DP))
    for piece, again in ((ops.head, 0), (ops.embedding, 0), (ops.blocks[0], 1)):
        sizes = [
            op.size_bytes[0]
            for op in piece.backward
            if isinstance(op, Comm) and op.role is Role.PARAMETER_GATHER and op.phase is Phase.INPUT_GRAD
        ]
        assert sum(size > 0 for size in sizes) == again


def test_of_weights_that_travel_one_by_one_the_first_is_waited_for() -> None:
    asked = job(world_size=4, preset=framework_preset("internevo"))
    layer = written(small_model(), asked, "isp", Layout.of(4, tp=2, dp=2, wp=4)).blocks[0]
    first = as_first(layer)
    waits = [
        (op.serves, op.phase)
        for op, was in zip((*first.forward, *first.backward), (*layer.forward, *layer.backward), strict=True)
        if op.lane is Lane.MAIN and was.lane is Lane.PREFETCH
    ]
    assert waits == [(Role.QKV, Phase.FORWARD), (Role.QKV, Phase.WEIGHT_GRAD)]
    whole = written(small_model(), asked, "mtp", Layout.of(4, tp=2, dp=2)).blocks[0]
    assert as_first(whole) is whole


def test_every_row_has_one_first_layer_where_it_has_any() -> None:
    none = bools([False, False, False])
    layers = (ints([3, 0, 0]), ints([4, 2, 0]))
    chunks = ChunkTable(stage=ints([0, 1, 2]), embedding=none, head=none, layers=layers)
    other_dense, other_experts, dense, experts, *ends = piece_weights(chunks)
    assert dense.tolist() == [1, 0, 0]
    assert experts.tolist() == [0, 1, 0]
    assert [other_dense.tolist(), other_experts.tolist()] == [[2, 0, 0], [4, 1, 0]]
    assert not np.any(ends)
