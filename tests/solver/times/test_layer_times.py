"""What a layer waits for: its exchanges alone, and what no longer hides where weight gradients are put off."""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import Comm, Lane, Op, Phase
from ops.roles import Role
from profdb.cost_model import ProfileCostModel
from profdb.layer_sum import LayerSum
from profdb.queries import TimeEstimate
from solver.estimate import estimate_memory
from solver.pipeline.stages import ChunkTable
from solver.plans.layers import as_first_layer
from solver.plans.plan_table import Plan, PlanTable
from solver.times.layer_times import layer_times, timed_passes
from solver.times.op_times import OpTimer
from solver.times.stage_times import piece_weights
from spec.arrays import bools, floats, ints
from spec.frameworks import framework_preset
from spec.parameters import num_parameters
from tests.ops.layouts import job, written
from tests.profdb.profiles import profile
from tests.profdb.test_layer_sum import KERNEL_S, LAYER, PARTS, kernels_of, taken
from tests.solver.flat_cost_model import INTRA_BANDWIDTH, FlatCostModel
from tests.solver.plans.test_rules import EXPERTS
from tests.solver.questions import cluster, question, small_model
from tests.solver.test_price import answer


class Calls(FlatCostModel):
    """A call takes the host a microsecond, a launch as long."""

    def cpu_s(self, kind: str) -> TimeEstimate:
        return TimeEstimate(seconds=floats(1e-6), relative_std=floats(0.1), origin=np.zeros(1, dtype=np.int64))


def test_exchanges_are_what_is_waited_for_on_the_way_to_experts_and_back() -> None:
    """And not the collectives of tensor parallelism beside them; the gradients' way is as long as the tokens'."""
    asked, layout = job(), Layout.of(8, tp=2, ep=4)
    piece = written(EXPERTS, asked, "mtp", layout).blocks[0]
    op_timer = question().op_timer
    assert layer_times(op_timer, asked, piece, layout).exchange is None
    told = layer_times(op_timer, asked, piece, layout, split=True)
    assert told.exchange is not None
    forward_s, backward_s = (one.seconds[0] for one in (told.exchange.forward, told.exchange.backward))

    def waited_s(ops: tuple[Op, ...]) -> float:
        ways = [op for op in ops if isinstance(op, Comm) and op.role in (Role.DISPATCH, Role.COMBINE)]
        return sum(float(op_timer.time(op, layout).seconds[0]) for op in ways)

    assert forward_s == pytest.approx(waited_s(piece.forward))
    assert backward_s == pytest.approx(waited_s(piece.backward))
    assert backward_s == pytest.approx(forward_s)
    assert forward_s > 0
    assert told.forward.parts["tp_comm"][0] > 0


def test_what_hid_beside_a_weight_gradient_is_waited_for_where_that_is_put_off() -> None:
    """Megatron-LM's bulk overlap: the input gradient's reduction; the input gathered again stays beside the
    input gradient.
    """
    preset = framework_preset("megatron").changed({"tensor_parallel.overlap": True})
    asked, layout = job(world_size=4, preset=preset), Layout.of(4, tp=4)
    piece = written(small_model(), asked, "fsp", layout).blocks[0]
    op_timer = question().op_timer

    def beside(split: bool) -> list[Phase]:
        passes = timed_passes(op_timer, asked, piece, layout, split=split)
        lanes = [(one.op.lane, one.op.overlap_phase) for timed, _ in passes[1:] for one in timed]
        return [phase for lane, phase in lanes if lane is Lane.OVERLAP]

    assert beside(split=False).count(Phase.WEIGHT_GRAD) == 2
    assert beside(split=True) == [Phase.INPUT_GRAD] * 2


def test_a_profile_with_layers_reaches_the_op_timer() -> None:
    samples = [*(taken(case) for case in kernels_of(LAYER)), taken(LAYER, 1.2 * PARTS * KERNEL_S)]
    assert OpTimer.on(cluster(), ProfileCostModel(profile(samples))).layers is not None
    assert OpTimer.on(cluster(), ProfileCostModel(profile(samples[:-1]))).layers is None


def test_kernels_of_a_layer_take_so_much_longer_and_nothing_else_does() -> None:
    asked = question(world_size=8)
    plan = Plan(strategy="mtp", preset="internevo", tp=2, dp=4, num_micro=4)
    table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
    half_longer = LayerSum(log_sum_s=floats([0.0]), log_factor=np.log(floats([1.5])))
    block, *_, head = table.layers.pieces
    for piece, factor in ((block, 1.5), (head, 1.0)):
        before, after = (
            layer_times(op_timer, asked.job, piece, table.layers.layout)
            for op_timer in (asked.op_timer, replace(asked.op_timer, layers=half_longer))
        )
        for one, other in ((before.forward, after.forward), (before.backward, after.backward)):
            for part in ("gemm", "memory_bound"):
                assert other.parts[part] == pytest.approx(factor * one.parts[part])
            # what hides beside a product hides better beside a longer one
            assert (other.parts["tp_comm"] <= one.parts["tp_comm"]).all()


DP, MICRO = 4, 2
SEQ = 65536  # so long that compute outlasts every message


def _dp_comm_s(framework: str, layers: int, **choices: object) -> float:
    plan = Plan(strategy="mtp", preset=framework, dp=DP, zero_stage=3, zero_size=DP, num_micro=MICRO)
    preset = framework_preset(framework).changed({f"data_parallel.{name}": value for name, value in choices.items()})
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
    first = as_first_layer(layer)
    waits = [
        (op.serves, op.phase)
        for op, was in zip((*first.forward, *first.backward), (*layer.forward, *layer.backward), strict=True)
        if op.lane is Lane.MAIN and was.lane is Lane.PREFETCH
    ]
    assert waits == [(Role.QKV, Phase.FORWARD), (Role.QKV, Phase.WEIGHT_GRAD)]
    whole = written(small_model(), asked, "mtp", Layout.of(4, tp=2, dp=2)).blocks[0]
    assert as_first_layer(whole) is whole


def test_every_row_has_one_first_layer_where_it_has_any() -> None:
    none = bools([False, False, False])
    layers = (ints([3, 0, 0]), ints([4, 2, 0]))
    chunks = ChunkTable(stage=ints([0, 1, 2]), embedding=none, head=none, layers=layers)
    other_dense, other_experts, dense, experts, *ends = piece_weights(chunks)
    assert dense.tolist() == [1, 0, 0]
    assert experts.tolist() == [0, 1, 0]
    assert [other_dense.tolist(), other_experts.tolist()] == [[2, 0, 0], [4, 1, 0]]
    assert not np.any(ends)
