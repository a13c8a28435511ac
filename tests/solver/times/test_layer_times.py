"""What a layer waits for: its exchanges alone, and what no longer hides where weight gradients are put off."""

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import Comm, Lane, Op, Phase
from ops.roles import Role
from profdb.lookup.priced import TimeEstimate
from solver.times.layer_times import layer_times, timed_passes
from spec.arrays import floats
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.flat_cost_model import FlatCostModel
from tests.solver.plans.test_rules import EXPERTS
from tests.solver.questions import question, small_model


class Calls(FlatCostModel):
    """A call takes the host a microsecond, a launch as long."""

    def cpu_s(self, kind: str) -> TimeEstimate:
        return TimeEstimate(
            seconds=floats(1e-6), relative_std=floats(0.1), origin=np.zeros(1, dtype=np.int64)
        )


def test_exchanges_are_what_is_waited_for_on_the_way_to_experts_and_back() -> None:
    """And not the collectives of tensor parallelism beside them; the gradients' way is as long as the tokens'."""
    asked, layout = job(), Layout.of(8, tp=2, ep=4)
    piece = written(EXPERTS, asked, "mtp", layout).blocks[0]
    pricer = question().pricer
    assert layer_times(pricer, asked, piece, layout).exchange is None
    told = layer_times(pricer, asked, piece, layout, split=True)
    assert told.exchange is not None
    forward_s, backward_s = (one.seconds[0] for one in (told.exchange.forward, told.exchange.backward))

    def waited_s(ops: tuple[Op, ...]) -> float:
        ways = [op for op in ops if isinstance(op, Comm) and op.role in (Role.DISPATCH, Role.COMBINE)]
        return sum(float(pricer.time(op, layout).seconds[0]) for op in ways)

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
    pricer = question().pricer

    def beside(split: bool) -> list[Phase]:
        passes = timed_passes(pricer, asked, piece, layout, split=split)
        lanes = [(one.op.lane, one.op.beside_phase) for timed, _ in passes[1:] for one in timed]
        return [phase for lane, phase in lanes if lane is Lane.BESIDE]

    assert beside(split=False).count(Phase.WEIGHT_GRAD) == 2
    assert beside(split=True) == [Phase.INPUT_GRAD] * 2
