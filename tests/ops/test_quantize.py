"""Casts around 8-bit products: bytes per element of each recipe, and what they leave alone."""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.low_precision import CAST_AGAIN, cast_calls
from ops.memory_bound import bytes_moved, bytes_moved_per_element
from ops.op import BatchedGemm, MemoryBound, Pass, Phase
from ops.roles import Module
from spec.arrays import ints
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.model import MoeSpec
from spec.settings.job import named_precision
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

TOKENS = 1024


def asked(preset: str = "megatron", **precision: object) -> JobSpec:
    plain = job(world_size=4, seq_len=TOKENS, preset=framework_preset(preset))
    narrow = {"linear": "fp8", "scale_recipe": "tensor", **precision}
    return replace(plain, precision=replace(plain.precision, **narrow))


def layer(question: JobSpec) -> Pass:
    return written(small_model(), question, "mtp", Layout.of(4)).blocks[0]


def per_element(piece: Pass, name: str) -> dict[str, float]:
    """Bytes of the casts around one product, over the elements of input, gradient and weight."""
    gemm = next(op for op in piece.forward if isinstance(op, BatchedGemm) and op.name == name)
    sizes = {
        "input": gemm.m[0] * gemm.k[0],
        "gradient": gemm.m[0] * gemm.n[0],
        "weight": gemm.k[0] * gemm.n[0],
    }
    found: dict[str, float] = {}
    for op in (*piece.forward, *piece.backward):
        if isinstance(op, MemoryBound) and op.name.startswith(f"{name}.cast_"):
            what = op.name.rsplit("_", 1)[-1]
            found[what] = found.get(what, 0.0) + float(bytes_moved(op)[0]) / float(sizes[what])
    return found


@pytest.mark.parametrize(
    ("scaling", "after_norm", "expected"),
    [
        # one 16-bit read and two 8-bit writes; a norm that writes 8 bits leaves one more of them
        ("delayed", False, {"input": 4, "gradient": 4, "weight": 4}),
        ("delayed", True, {"input": 1, "gradient": 4, "weight": 4}),
        ("current", True, {"input": 6, "gradient": 6, "weight": 6}),
        ("block", False, {"input": 4, "gradient": 4, "weight": 4}),
        # input and weight twice, in both passes: two reads and a write each time
        ("dynamic", False, {"input": 10, "gradient": 6, "weight": 10}),
        ("row", True, {"input": 10, "gradient": 10, "weight": 10}),
    ],
)
def test_bytes_that_each_recipe_moves(scaling: str, after_norm: bool, expected: dict[str, float]) -> None:
    piece = layer(asked(scaling=scaling, casts_every_forward=True))
    found = per_element(piece, "attention.qkv" if after_norm else "attention.out")
    assert found == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("preset", ["fsdp-compiled", "torchtitan"])
def test_mxfp8_of_torchao_casts_each_order_when_it_is_read(preset: str) -> None:
    """Along rows forward, along columns backward, each a read of 2 bytes and a write of 1; nothing narrow is kept."""
    plain = asked(preset, linear="bf16", scale_recipe="")
    narrow = replace(plain, precision=named_precision("mxfp8", plain.preset))
    piece = layer(narrow)
    assert per_element(piece, "mlp.down") == pytest.approx({"input": 6, "gradient": 6, "weight": 6}, rel=1e-2)
    kept = [
        [float(op.saved_bytes[0]) for op in layer(question).forward if isinstance(op, BatchedGemm)]
        for question in (plain, narrow)
    ]
    assert kept[0] == kept[1]
    assert not any(op.cached_bytes.any() for op in piece.forward)


def test_two_kernels_cast_two_orders_apart() -> None:
    precision = replace(asked().precision, scale_recipe="mx", scaling="dynamic")
    passes = CAST_AGAIN.gradient
    (cast,) = cast_calls(passes, np.array([8]), np.array([1.0]), precision)
    assert (cast.kernel, float(cast.times[0])) == ("quantize", 2.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # XLA: one copy in passing, the other turned (1 + 1) when the backward reads it
        ("attention.qkv", {"input": 2, "gradient": 2}),
        ("mlp.down", {"input": 2, "gradient": 3}),
        # attention's kernel makes what the output product reads: read and written (2 + 1) by a pass
        ("attention.out", {"input": 5, "gradient": 3}),
    ],
)
def test_casts_inside_the_kernels_that_make_what_they_read(name: str, expected: dict[str, float]) -> None:
    known = asked("maxtext", scaling="delayed", casts_every_forward=True)
    found = per_element(layer(known), name)
    assert {what: found[what] for what in expected} == pytest.approx(expected, rel=1e-2)


def test_scales_of_the_tensor_at_hand_are_looked_for_before_any_kernel_casts() -> None:
    current = [layer(asked(one, scaling="current", casts_every_forward=True)) for one in ("maxtext", "fsdp")]
    assert per_element(current[0], "mlp.down") == per_element(current[1], "mlp.down")


def test_nvfp4_looks_for_a_maximum_and_turns_columns_in_a_kernel_of_their_own() -> None:
    """Three 16-bit reads and two half bytes of inputs and gradients; a weight's two orders are one kernel's.
    On B300 that is 2.69 ms (Transformer Engine, gemm_profiling.rst: 6.453 less 3.764) at 5.7 of 7.7 TB/s:
    1.495e9 and 0.987e9 elements."""
    piece = layer(asked(linear="fp4", scale_recipe="block", scaling="block", casts_every_forward=True))
    found = per_element(piece, "attention.out")
    assert found == pytest.approx({"input": 7, "gradient": 7, "weight": 5}, rel=1e-2)
    moved = 1.495e9 * found["input"] + 0.987e9 * found["weight"]
    assert 0.65 * 7.7e12 < moved / 2.69e-3 < 0.84 * 7.7e12


def test_weights_are_cast_once_a_step() -> None:
    """Four micro-batches of one sequence on each of four ranks: a quarter of the cast in each."""
    question = replace(asked(scaling="block"), global_batch_tokens=16 * TOKENS)
    assert per_element(layer(question), "mlp.down")["weight"] == pytest.approx(1.0, rel=1e-2)


def test_products_that_read_either_order_need_one_copy() -> None:
    found = per_element(layer(asked(scaling="current", transposed_copies=False)), "mlp.down")
    assert found["input"] == pytest.approx(5.0, rel=1e-2)
    assert found["gradient"] == pytest.approx(5.0, rel=1e-2)
    for scales in ("block", "mx"):  # each order has scales of its own (Transformer Engine, MXFP8BlockScaling)
        blocks = per_element(layer(asked(scale_recipe=scales, transposed_copies=False)), "mlp.down")
        assert blocks["input"] == pytest.approx(4.0, rel=1e-2)


@pytest.mark.parametrize(("scaling", "share"), [("delayed", 0.5), ("dynamic", 1.0)])
def test_transformer_engine_keeps_narrow_inputs(scaling: str, share: float) -> None:
    def kept(question: JobSpec) -> float:
        ops = layer(question).forward
        return sum(float(op.saved_bytes[0]) for op in ops if isinstance(op, BatchedGemm))

    assert kept(asked(scaling=scaling)) == pytest.approx(share * kept(asked(linear="bf16", scale_recipe="")))


def test_sixteen_bit_products_and_the_head_are_left_alone() -> None:
    plain = layer(asked(linear="bf16", scale_recipe=""))
    assert not [op for op in (*plain.forward, *plain.backward) if ".cast_" in op.name]
    head = written(small_model(), asked(), "mtp", Layout.of(4)).head
    logits = [op for op in (*head.forward, *head.backward) if op.name.startswith("head.logits")]
    assert {op.dtype for op in logits if isinstance(op, BatchedGemm)} == {"bf16"}
    assert not [op for op in logits if ".cast_" in op.name and op.phase is Phase.FORWARD]


def copies(preset: str = "megatron", **precision: object) -> tuple[float, float]:
    """Cached bytes of all weights of a layer, and bytes that last from forward to backward beyond those of 16-bit
    products, both over their elements."""
    narrow = layer(asked(preset, **precision))
    weights = sum(float(op.parameters[0]) for op in narrow.forward if isinstance(op, BatchedGemm))
    cached = sum(float(op.cached_bytes[0]) for op in narrow.forward)
    once = layer(asked(preset, **{**precision, "casts_every_forward": False}))
    saved = [sum(float(op.saved_bytes[0]) for op in piece.forward) for piece in (narrow, once)]
    return cached / weights, (saved[0] - saved[1]) / weights


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        # Transformer Engine: along rows and along columns, once where products read either order (Blackwell).
        ({"scaling": "current"}, (2.0, 0.0)),
        ({"scaling": "current", "transposed_copies": False}, (1.0, 0.0)),
        ({"scale_recipe": "block", "transposed_copies": False}, (2.0, 0.0)),
        # Nobody says which micro-batch it is: each forward's copies wait for its backward.
        ({"scaling": "delayed", "casts_every_forward": True}, (0.0, 2.0)),
        # Stored narrow, only the second order is a copy.
        ({"scaling": "current", "parameter": "fp8"}, (1.0, 0.0)),
        # torchao casts again in the backward.
        ({"scaling": "dynamic"}, (0.0, 0.0)),
        ({"linear": "bf16", "scale_recipe": ""}, (0.0, 0.0)),
    ],
)
def test_narrow_copies_of_weights(precision: dict[str, object], expected: tuple[float, float]) -> None:
    assert copies(**precision) == pytest.approx(expected)


def test_an_input_that_two_products_share_is_cast_once() -> None:
    """Gate and up as two linears read one norm: the second casts its weight and gradient alone."""
    question = asked(scaling="block")
    question = replace(question, preset=question.preset.changed({"layers.joined_gate": False}))
    predicted = layer(question)
    assert {"input", "gradient", "weight"} == set(per_element(predicted, "mlp.up"))
    assert not {"input"} & set(per_element(predicted, "mlp.gate"))


@pytest.mark.parametrize(
    ("name", "scaled"), [("attention.out", {"input": 4.0, "weight": 4.0}), ("mlp.down", {"weight": 4.0})]
)
def test_products_of_the_backward_are_scaled_after_them_by_rows(name: str, scaled: dict[str, float]) -> None:
    """torchao pull request 1325: without fast accumulation cuBLAS's product of whole-tensor scales, then one
    pass over its 16-bit result, read and written; mlp.down's input gradient is scaled where the activation's
    backward reads it."""

    def found(scaling: str) -> dict[str, float]:
        piece = layer(asked(scaling=scaling))
        gemm = next(op for op in piece.forward if isinstance(op, BatchedGemm) and op.name == name)
        sizes = {"input": gemm.m[0] * gemm.k[0], "weight": gemm.k[0] * gemm.n[0]}
        return {
            what: float(bytes_moved(op)[0]) / float(size)
            for op in piece.backward
            for what, size in sizes.items()
            if isinstance(op, MemoryBound) and op.name == f"{name}.scale_{what}_gradient"
        }

    assert found("row") == pytest.approx(scaled, rel=1e-2)
    assert found("dynamic") == {}


@pytest.mark.parametrize("scaling", ["delayed", "current", "block", "dynamic", "row"])
def test_the_kernels_that_a_copy_stands_for_move_its_bytes(scaling: str) -> None:
    """Of a rank alone, of experts, and of a part that is gathered afterwards; what only turns or scales casts
    nothing.
    """
    question = asked(scaling=scaling, casts_every_forward=True)
    dense = small_model()
    run = dense.blocks[0]
    moe = MoeSpec(num_experts=8, topk=2, expert_ffn_hidden=512)
    routed = replace(dense, blocks=(replace(run, block=replace(run.block, mlp=None, moe=moe)),))
    parts = written(dense, question, "msp", Layout.of(4, tp=ints([1, 4]))).blocks[0]
    experts = written(routed, question, "mtp", Layout.of(4)).blocks[0]
    copies = [op for piece in (layer(question), parts, experts) for op in (*piece.forward, *piece.backward)]
    cast = [op for op in copies if isinstance(op, MemoryBound) and op.stands_for]
    assert {Module.MOE, Module.MLP, Module.ATTENTION} == {op.module for op in cast}
    for op in cast:
        moved = sum(
            bytes_moved_per_element(call.kernel, backward=False, dtype="bf16")
            * call.rows
            * op.width
            * call.times
            * op.repeat
            for call in op.stands_for
        )
        assert moved == pytest.approx(bytes_moved(op), rel=1e-2)
    wide = layer(asked(scaling=scaling, linear="fp4"))
    assert not any(op.stands_for for op in wide.forward if isinstance(op, MemoryBound))


def test_one_kernel_writes_both_copies_unless_each_is_searched_for_its_own_scales() -> None:
    def kernels(scaling: str, what: str) -> list[tuple[str, float]]:
        piece = layer(asked(scaling=scaling, casts_every_forward=True))
        op = next(
            op
            for op in (*piece.forward, *piece.backward)
            if isinstance(op, MemoryBound) and op.name == f"mlp.down.cast_{what}"
        )
        return [(call.kernel, float(call.times[0])) for call in op.stands_for if call.times.any()]

    assert kernels("delayed", "gradient") == [("quantize_transpose", 1.0)]
    assert kernels("current", "gradient") == [("quantize_transpose", 1.0), ("copy", 1.0)]
    assert kernels("dynamic", "input") == [("quantize", 1.0), ("copy", 1.0)]
    assert kernels("row", "gradient") == [("quantize", 2.0), ("copy", 1.0)]
