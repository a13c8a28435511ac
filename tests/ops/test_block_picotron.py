"""What a layer, the head and the update of Picotron run (huggingface/picotron 59714b1)."""

from dataclasses import replace

import pytest

from ops.context import LayerContext
from ops.cpu_overhead import CALLS, NCCL_CALLS, TRITON_2_CALLS
from ops.data_parallel.step import optimizer_passes, update_passes
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, Comm, MemoryBound, Op
from ops.roles import Module, Role
from spec.arrays import ints
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import JobSpec, precision_of
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec
from tests.ops.layouts import job, written

HIDDEN, TOKENS, VOCAB, TP = 512, 256, 1024, 2


def picotron(**choices: object) -> JobSpec:
    preset = framework_preset("picotron").changed(choices)
    pure = replace(precision_of(preset, "bf16"), master="", moments="bf16")
    return replace(job(seq_len=TOKENS, preset=preset), precision=pure)


def model() -> ModelSpec:
    attention = AttentionSpec(kind=AttentionKind.GQA, num_heads=8, num_kv_heads=4, qk_dim=64, v_dim=64)
    block = BlockSpec(mixer=attention, mlp=MlpSpec(ffn_hidden=1024, gated=True))
    return ModelSpec(
        name="m", hidden=HIDDEN, vocab=VOCAB, blocks=(BlockRun(block=block, count=1),), source=""
    )


def over_tp(ops: tuple[Op, ...], collective: Collective) -> list[int]:
    return [
        int(op.size_bytes[0])
        for op in ops
        if isinstance(op, Comm) and op.axis is Axis.TP and op.collective is collective
        for _ in range(int(op.repeat))
    ]


def test_every_column_parallel_linear_waits_for_an_all_reduce_of_its_own() -> None:
    """Two forward, of attention's and the MLP's outputs; five backward, of q, k, v, gate and up."""
    layer = written(model(), picotron(), "mtp", Layout.of(TP, tp=TP), "none").blocks[0]
    whole = TOKENS * HIDDEN * 2
    assert over_tp(layer.forward, Collective.ALL_REDUCE) == 2 * [whole]
    assert over_tp(layer.backward, Collective.ALL_REDUCE) == 5 * [whole]


def test_the_loss_reads_whole_gathered_logits_in_their_own_16_bits() -> None:
    """Forward three reads and a write, backward two writes and three reads; the logits and the log-softmax stay."""
    head = written(model(), picotron(), "mtp", Layout.of(TP, tp=TP), "none").head
    assert over_tp(head.forward, Collective.ALL_GATHER) == [TOKENS * VOCAB * 2]
    for ops, told in ((head.forward, 4), (head.backward, 5)):
        (moved,) = [op for op in ops if isinstance(op, MemoryBound) and op.module is Module.LOSS]
        assert float(bytes_moved(moved)[0]) == told * 2 * TOKENS * VOCAB
    (kept,) = [op for op in head.forward if op.role is Role.CROSS_ENTROPY]
    assert float(kept.saved_bytes[0]) == (2 + 2) * TOKENS * VOCAB


def test_gradients_are_divided_zeroed_and_brought_to_16_bits_without_a_norm() -> None:
    """fp32: divided 4 + 4, zeroed 4, cast 4 + 2. Nothing is clipped, and no master brings parameters back."""
    elements = 1_000_000
    context = LayerContext(model=model(), job=picotron(), layout=Layout.of(8))
    before, after = optimizer_passes(context, ints(elements), ints(elements))
    names = {op.name.removeprefix("step."): float(bytes_moved(op)[0]) / elements for op in before}
    assert names == {"divide_gradients": 8.0, "zero_gradients": 4.0, "parameter_gradients": 6.0}
    assert after == ()
    clipped = replace(context, job=picotron(**{"data_parallel.clips_gradients": True}))
    added = optimizer_passes(clipped, ints(elements), ints(elements))[0]
    assert sum(float(bytes_moved(op)[0]) for op in added) / elements == 18.0 + 4.0 + 8.0
    assert update_passes(context, ints(elements))


def test_its_modules_add_up_to_the_96_calls_of_its_layer() -> None:
    """40.5 forward and 55 backward, with half a call for each of seven parameters' hooks; its Triton kernels, which no
    CPU ran, are not in it."""
    code = CALLS["picotron"]
    of = code.by_role
    norms, rotary = of[Role.NORM] - TRITON_2_CALLS, of[Role.ROTARY] - 2 * TRITON_2_CALLS
    a_pass = (
        7 * code.linear + 2 * norms + rotary + code.attention + of[Role.ACTIVATION] + 2 * of[Role.RESIDUAL]
    )
    assert 2 * a_pass == pytest.approx(40.5 + 55 + 7 * 0.5, rel=0.01)
    assert code.collective == pytest.approx(0.7 + NCCL_CALLS)
