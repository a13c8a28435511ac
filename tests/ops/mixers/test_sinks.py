"""Attention sinks: a kernel and parameters beside a flash kernel, passes over the scores without one."""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.mixers.registry import MIXERS
from ops.op import Attention, MemoryBound, Pass, Phase
from ops.roles import Module, OpKey, Role
from spec.mixers.mixer import mixer_parameters
from spec.model import BlockRun
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

SEQ = 512
MODEL = small_model()
PLAIN = MODEL.blocks[0].block.mixer
SUNK = replace(PLAIN, sinks=True)


def layer(*, sinks: bool, tp: int = 1, flash: bool = True) -> Pass:
    mixer = SUNK if sinks else PLAIN
    run = BlockRun(block=replace(MODEL.blocks[0].block, mixer=mixer), count=4)
    asked = job(seq_len=SEQ, world_size=tp, flash_attention=flash)
    return written(replace(MODEL, blocks=(run,)), asked, "mtp", Layout.of(tp, tp=tp)).blocks[0]


def added(plain: Pass, sunk: Pass) -> list[MemoryBound]:
    """Kernels of ``sunk`` that ``plain`` has not, by name."""
    had = {op.name for op in (*plain.forward, *plain.backward)}
    ops = (*sunk.forward, *sunk.backward)
    return [op for op in ops if isinstance(op, MemoryBound) and op.name not in had]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_flash_kernel_leaves_the_sinks_gradient_to_one_more(tp: int) -> None:
    """cuDNN's dsink sums over two fp32 numbers of every row and head; the forward's kernels are the same."""
    plain, sunk = layer(sinks=False, tp=tp), layer(sinks=True, tp=tp)
    (gradient,) = added(plain, sunk)
    assert (gradient.phase, gradient.served) == (Phase.INPUT_GRAD, OpKey(Module.ATTENTION, Role.CORE))
    heads = PLAIN.num_heads // tp
    assert float(bytes_moved(gradient)[0]) == 2 * 4 * SEQ * heads
    assert len(sunk.forward) == len(plain.forward)
    owned = [sum(int(op.parameters[0]) for op in one.forward) for one in (plain, sunk)]
    assert owned[1] - owned[0] == heads
    assert sum(float(op.saved_bytes[0]) for op in sunk.forward) == sum(
        float(op.saved_bytes[0]) for op in plain.forward
    )


def test_operations_train_as_many_sinks_as_the_model_has() -> None:
    hidden = MODEL.hidden
    assert mixer_parameters(SUNK, hidden) - mixer_parameters(PLAIN, hidden) == PLAIN.num_heads


def test_without_a_flash_kernel_sinks_are_put_beside_the_scores() -> None:
    """Megatron-Core SoftmaxOne: scores copied beside a column, back again backward, and PyTorch's softmax, which keeps
    itself in fp32 beside what the product reads."""
    plain, sunk = (layer(sinks=sinks, flash=False) for sinks in (False, True))
    scores = SEQ * PLAIN.num_heads * SEQ
    copies = [op for op in added(plain, sunk) if op.role is Role.SOFTMAX and op.kernel == "copy"]
    assert [float(bytes_moved(op)[0]) for op in copies] == [2 * 2 * scores] * 2
    kernels = [{op.kernel for op in one.forward if op.role is Role.SOFTMAX} for one in (plain, sunk)]
    assert kernels == [{"masked_softmax"}, {"copy", "masked_softmax_unfused"}]
    kept = [
        float(np.sum([op.saved_bytes[0] for op in one.forward if isinstance(op, Attention)]))
        for one in (plain, sunk)
    ]
    assert kept[1] - kept[0] == 4 * scores


def test_all_to_all_alone_cuts_sequences_of_layers_with_sinks() -> None:
    """Transformer Engine get_attention_backend: under context parallelism sinks need cp_comm_type a2a."""
    row = MIXERS[type(PLAIN)]
    ways = ("ring", "all_gather", "all_to_all")
    assert [row.cuts_sequences(SUNK, way) for way in ways] == [False, False, True]
    assert [row.cuts_sequences(PLAIN, way) for way in ways] == [True, True, True]
