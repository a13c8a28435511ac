"""Experts one after another: as much work as in groups, in as many pieces, and a wait for each."""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import BatchedGemm, GroupedGemm, Op, Owner, Pass, Phase
from ops.roles import Module, Role
from solver.times.cpu_time import host_shares
from solver.times.op_times import OpTimer, TimedOp
from solver.times.step_parts import Share
from spec.arrays import floats, ints
from spec.frameworks import FrameworkPreset, framework_preset
from tests.ops.experts.test_moe_block import COPIES, EXPERTS, HIDDEN, SEQ, TOPK, WIDTH, model, moved, named
from tests.ops.layouts import job, saved_bytes, written
from tests.ops.operations import memory_bound
from tests.solver.times.test_cpu_time import CALL_S, SlowHost

LOOPED = framework_preset("hf-trainer")
GROUPED = replace(LOOPED, layers=replace(LOOPED.layers, looped_experts=False))


def layer(preset: FrameworkPreset) -> Pass:
    return written(model(), job(seq_len=SEQ, preset=preset), "fsp", Layout.of(8)).blocks[0]


def products(piece: Pass, phase: Phase) -> list[Op]:
    """Those of the experts."""
    every = [op for op in (*piece.forward, *piece.backward) if op.module is Module.MOE and op.phase is phase]
    return [op for op in every if isinstance(op, BatchedGemm | GroupedGemm) and op.role is not Role.ROUTER]


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD])
def test_a_loop_has_the_flops_and_weights_of_the_groups(phase: Phase) -> None:
    """Three products (gate, up, down) of COPIES / EXPERTS rows, EXPERTS times each: 6 COPIES x HIDDEN x WIDTH."""
    one, all_at_once = (products(layer(preset), phase) for preset in (LOOPED, GROUPED))
    assert [op.repeat[0] for op in one] == [EXPERTS] * 3
    flops = sum(float(op.flops[0]) for op in one)
    assert flops == sum(float(op.flops[0]) for op in all_at_once) == 6 * COPIES * HIDDEN * WIDTH
    weights = 3 * EXPERTS * HIDDEN * WIDTH if phase is Phase.FORWARD else 0
    assert sum(int(op.parameters[0]) for op in one) == weights == sum(int(op.parameters[0]) for op in all_at_once)
    assert {op.owner for op in one} == {Owner.EXPERT}


def test_a_loop_reads_and_writes_what_its_kernels_do() -> None:
    """Rows taken there and back; in the backward four passes over the whole sequence for every expert, which sets its
    tokens' gradients into zeros and adds those to the sum; weighed in three passes and five."""
    found, row = layer(LOOPED), HIDDEN * 2
    assert moved(found, "moe.dispatch.copy") == 2 * 2 * COPIES * row
    sums = moved(found, "moe.dispatch.accumulate")
    assert sums == pytest.approx(EXPERTS * 4 * SEQ * row, rel=1e-3)
    assert moved(found, "moe.weigh") == (6 + 8) * COPIES * row
    # The mask of SEQ x TOPK 64-bit numbers is copied and read for every expert.
    assert moved(found, "moe.find") == EXPERTS * 3 * SEQ * TOPK * 8


def test_a_loop_saves_what_its_backward_reads() -> None:
    """Of each copy of a token: its index, the input, gate, up and silu(gate), their product, and the output, weighed."""
    found = layer(LOOPED)
    own = [op for op in found.forward if op.module is Module.MOE and op.name not in ("moe.router", "moe.topk")]
    assert saved_bytes(Pass(forward=tuple(own))) == COPIES * (8 + 2 * (HIDDEN + 4 * WIDTH + HIDDEN))


def test_the_host_waits_once_for_each_expert() -> None:
    waiting = [op for op in (*layer(LOOPED).forward, *layer(LOOPED).backward) if op.synchronises]
    assert [(op.name, op.repeat[0], op.phase) for op in waiting] == [("moe.find", EXPERTS, Phase.FORWARD)]
    assert not named(layer(GROUPED), "moe.find")


def test_a_turn_of_a_loop_is_a_round() -> None:
    """A turn takes the host 4 calls to look up and 1.5 for a norm, 40 and 15 us, and the device 5 and 100 us: the norm starts
    when it is issued, at 55, and ends at 155, for which the next look-up waits. Four turns are 620 us, 200 more than
    the device is busy."""
    asked, times = job(preset=LOOPED), floats([4.0])
    ops = [
        memory_bound(role=Role.GATHER, synchronises=True, repeat=ints(4)),
        memory_bound("rmsnorm_torch", repeat=ints(4)),
    ]
    rest = {"family": "memory_bound", "part": "memory_bound", "relative_std": floats(0.1), "origin": ints(0)}
    seconds = [times * 5e-6, times * 100e-6]
    timed = [TimedOp(op=op, seconds=value, **rest) for op, value in zip(ops, seconds, strict=True)]
    shares = [Share(seconds=value, **rest) for value in seconds]
    assert CALL_S == 10e-6
    (late,) = host_shares(OpTimer(cost_model=SlowHost(), domain_ranks=8), asked, Layout.of(1), [(timed, shares)])
    assert np.asarray(late.seconds) == pytest.approx(200e-6)
