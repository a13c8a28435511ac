"""What a layer of nanotron copies, adds up and issues beyond others (models/llama.py)."""

from dataclasses import replace

import pytest

from ops.context import LayerContext
from ops.cpu_overhead import CALLS, NCCL_CALLS, TRITON_2_CALLS, cpu_overhead
from ops.data_parallel.step import optimizer_passes, update_passes
from ops.layout import Layout
from ops.memory_bound import bytes_moved, bytes_moved_per_element
from ops.op import Axis, Comm, MemoryBound, Op, Pass
from ops.roles import Module, Role
from spec.arrays import ints
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import JobSpec, precision_of
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

HIDDEN, FFN, TOKENS = 512, 2048, 256
COLLECTIVES = 10  # a layer's with tp: 2 gathers and 2 scatters forward, 4 and 2 backward


def layer(asked: JobSpec, tp: int = 1, kv_heads: int = 8, layout: Layout | None = None) -> Pass:
    model = small_model(kv_heads=kv_heads)
    return written(model, asked, "fsp" if tp > 1 else "mtp", layout or Layout.of(8, tp=tp), "none").blocks[0]


def nanotron(**choices: object) -> JobSpec:
    return job(seq_len=TOKENS, preset=framework_preset("nanotron").changed(choices))


def copies(ops: tuple[Op, ...], module: Module, kernel: str = "copy") -> list[int]:
    """Elements that each copy of a module reads."""
    found = [op for op in ops if isinstance(op, MemoryBound) and op.kernel == kernel and op.module is module]
    return [int(op.rows[0] * op.width[0]) for op in found]


@pytest.mark.parametrize(
    ("kv_heads", "strided", "plain"),
    [(8, (5 * HIDDEN, 3 * HIDDEN), (2 * HIDDEN, 5 * HIDDEN)), (2, (512 + 4 * 128, 0), (2 * 128, 512 + 4 * 128))],
)
def test_heads_are_copied_out_of_their_product_and_keys_and_values_twice_more(
    kv_heads: int, strided: tuple[int, int], plain: tuple[int, int]
) -> None:
    """permute(...).contiguous() of all and contiguous() of keys and values once joined, by the kernel for
    strides; the cat that joins them. Backward cat of keys and values, stack of all three, and one copy into
    the product's order, which several query heads to a key need not (split's cat has written it)."""
    piece = layer(nanotron(), kv_heads=kv_heads)
    for ops, permuted, joined in zip((piece.forward, piece.backward), strided, plain, strict=True):
        assert copies(ops, Module.ATTENTION, "strided_copy") == [TOKENS * permuted]
        assert copies(ops, Module.ATTENTION) == [TOKENS * joined]
    whole = layer(nanotron(**{"layers.copies_heads": False}))
    assert not copies(whole.forward, Module.ATTENTION) + copies(whole.forward, Module.ATTENTION, "strided_copy")


@pytest.mark.parametrize(("beside", "backward"), [(True, 2), (False, 1)])
def test_several_sequences_are_transposed_behind_the_kernel(beside: bool, backward: int) -> None:
    """F.linear reads a copy of its transposed input, whose gradient is transposed back; beside collectives
    that input is made contiguous again for the weight's gradient."""
    asked = nanotron(**{"tensor_parallel.overlap_backward": beside})
    one, two = (layer(asked, layout=Layout.of(8, micro_batch=batch)) for batch in (1, 2))

    def beyond(way: str) -> float:
        counted = [sum(copies(getattr(piece, way), Module.ATTENTION, "strided_copy")) for piece in (one, two)]
        return (counted[1] - 2 * counted[0]) / (2 * TOKENS * HIDDEN)

    assert (beyond("forward"), beyond("backward")) == (1, backward)


@pytest.mark.parametrize(
    ("choices", "kernel"),
    [
        ({}, "swiglu_halves_unfused"),
        ({"layers.joined_gate": False}, "swiglu_unfused"),
        ({"layers.fused_activation": True}, "swiglu"),
    ],
)
def test_an_activation_reads_halves_of_one_product(choices: dict[str, object], kernel: str) -> None:
    piece = layer(nanotron(**choices))
    for ops in (piece.forward, piece.backward):
        assert [op.kernel for op in ops if op.role is Role.ACTIVATION and isinstance(op, MemoryBound)] == [kernel]


def test_keys_and_values_stay_twice_where_queries_are_turned_within_one_copy_of_all() -> None:
    """flash_attn/layers/rotary.py turns queries in place: a view of the copy of queries, keys and values. Of several
    sequences a plain product keeps a copy of the heads' output, too."""

    def kept(asked: JobSpec, layout: Layout, kv_heads: int = 8) -> float:
        copied = [op for op in layer(asked, kv_heads=kv_heads, layout=layout).forward if op.role is Role.COPY]
        return sum(float(op.saved_bytes[0]) for op in copied)

    one, two = Layout.of(8), Layout.of(8, micro_batch=2)
    assert kept(nanotron(), one) == 2 * TOKENS * 2 * HIDDEN
    assert kept(nanotron(), one, kv_heads=2) == 0
    assert kept(nanotron(), two) == 2 * kept(nanotron(), one)
    plain = nanotron(**{"tensor_parallel.overlap_backward": False})
    assert kept(plain, one) == kept(nanotron(), one)
    assert kept(plain, two) - kept(nanotron(), two) == 2 * (2 * TOKENS) * HIDDEN


def test_gradients_of_gate_and_up_are_joined_where_one_product_made_both() -> None:
    piece = layer(nanotron())
    assert copies(piece.backward, Module.MLP) == [TOKENS * 2 * FFN]
    assert not copies(piece.forward, Module.MLP)
    assert not copies(layer(nanotron(**{"layers.joined_gate": False})).backward, Module.MLP)


def test_a_gradient_is_read_in_16_bits_and_added_to_an_fp32_sum() -> None:
    assert bytes_moved_per_element("accumulate_wide", backward=True, dtype="bf16") == 2 + 4 + 4
    kernels = {
        op.kernel for op in layer(nanotron()).backward if isinstance(op, MemoryBound) and op.role is Role.ACCUMULATE
    }
    assert kernels == {"accumulate_wide"}


def test_a_layer_takes_as_many_calls_as_were_traced() -> None:
    """124 on one rank, and four for each of ten collectives with tp, beside eight launches of Triton's and
    two calls a collective of what the trace's process group, which moved nothing, left out."""

    def calls(tp: int) -> float:
        piece = layer(nanotron(), tp)
        ops = [op for op in (*piece.forward, *piece.backward) if tp > 1 or not isinstance(op, Comm)]
        return sum(float(cpu_overhead(op, nanotron()).calls[0]) for op in ops)

    assert calls(1) - 8 * 62.0 / 13.48 == pytest.approx(124, abs=2)
    assert calls(8) - calls(1) == pytest.approx((4 + 2) * COLLECTIVES)


def test_other_frameworks_issue_collectives_in_two_calls() -> None:
    gather = next(op for op in layer(nanotron(), 8).forward if isinstance(op, Comm))
    assert cpu_overhead(gather, nanotron()).calls[0] == 3 * cpu_overhead(gather, job()).calls[0]
    assert cpu_overhead(replace(gather, repeat=3), nanotron()).calls[0] == 18


# What a layer, the head and the update of Picotron run (huggingface/picotron 59714b1).


CHANNELS, SEQUENCE, VOCAB, TP = 512, 256, 4096, 2


def picotron(**choices: object) -> JobSpec:
    preset = framework_preset("picotron").changed(choices)
    pure = replace(precision_of(preset, "bf16"), master="", moments="bf16")
    return replace(job(seq_len=SEQUENCE, preset=preset), precision=pure)


def over_tp(ops: tuple[Op, ...], collective: Collective) -> list[int]:
    return [
        int(op.size_bytes[0])
        for op in ops
        if isinstance(op, Comm) and op.axis is Axis.TP and op.collective is collective
        for _ in range(int(op.repeat))
    ]


def test_every_column_parallel_linear_waits_for_an_all_reduce_of_its_own() -> None:
    """Two forward, of attention's and the MLP's outputs; five backward, of q, k, v, gate and up."""
    layer = written(small_model(), picotron(), "mtp", Layout.of(TP, tp=TP), "none").blocks[0]
    whole = SEQUENCE * CHANNELS * 2
    assert over_tp(layer.forward, Collective.ALL_REDUCE) == 2 * [whole]
    assert over_tp(layer.backward, Collective.ALL_REDUCE) == 5 * [whole]


def test_the_loss_reads_whole_gathered_logits_in_their_own_16_bits() -> None:
    """Forward three reads and a write, backward two writes and three reads; the logits and the log-softmax stay."""
    head = written(small_model(), picotron(), "mtp", Layout.of(TP, tp=TP), "none").head
    assert over_tp(head.forward, Collective.ALL_GATHER) == [SEQUENCE * VOCAB * 2]
    for ops, told in ((head.forward, 4), (head.backward, 5)):
        (moved,) = [op for op in ops if isinstance(op, MemoryBound) and op.module is Module.LOSS]
        assert float(bytes_moved(moved)[0]) == told * 2 * SEQUENCE * VOCAB
    (kept,) = [op for op in head.forward if op.role is Role.CROSS_ENTROPY]
    assert float(kept.saved_bytes[0]) == (2 + 2) * SEQUENCE * VOCAB


def test_gradients_are_divided_zeroed_and_brought_to_16_bits_without_a_norm() -> None:
    """fp32: divided 4 + 4, zeroed 4, cast 4 + 2. Nothing is clipped, and no master brings parameters back."""
    elements = 1_000_000
    context = LayerContext(model=small_model(), job=picotron(), layout=Layout.of(8))
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
    a_pass = 7 * code.linear + 2 * norms + rotary + code.attention + of[Role.ACTIVATION] + 2 * of[Role.RESIDUAL]
    assert 2 * a_pass == pytest.approx(40.5 + 55 + 7 * 0.5, rel=0.01)
    assert code.collective == pytest.approx(0.7 + NCCL_CALLS)
