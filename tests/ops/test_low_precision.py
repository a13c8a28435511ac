"""Casts around 8-bit products: bytes per element of each recipe, and what they leave alone."""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved, bytes_moved_per_element
from ops.op import Attention, BatchedGemm, Comm, Lane, MemoryBound, Pass, Phase
from ops.roles import Module, Role
from spec.arrays import ints
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import JobSpec, Precision
from spec.readers.read_config import read_config
from spec.settings.job import LOW_PRECISION, recipe_precision
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import ROOT, experts_model, small_model

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
    sizes = {"input": gemm.m[0] * gemm.k[0], "gradient": gemm.m[0] * gemm.n[0], "weight": gemm.k[0] * gemm.n[0]}
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
    narrow = replace(plain, precision=recipe_precision("mxfp8", plain.preset))
    piece = layer(narrow)
    assert per_element(piece, "mlp.down") == pytest.approx({"input": 6, "gradient": 6, "weight": 6}, rel=1e-2)
    kept = [
        [float(op.saved_bytes[0]) for op in layer(question).forward if isinstance(op, BatchedGemm)]
        for question in (plain, narrow)
    ]
    assert kept[0] == kept[1]
    assert not any(op.cached_bytes.any() for op in piece.forward)


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
    saved = [saved_bytes(piece) for piece in (narrow, once)]
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
    parts = written(small_model(), question, "msp", Layout.of(4, tp=ints([1, 4]))).blocks[0]
    experts = written(experts_model(), question, "mtp", Layout.of(4)).blocks[0]
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


# Casts around attention in 8 bits: bytes by hand, and what the kernel keeps.


SEQ = 512
MODEL = small_model()
MIXER = MODEL.blocks[0].block.mixer
READ = SEQ * (MIXER.num_heads * MIXER.qk_dim + MIXER.num_kv_heads * (MIXER.qk_dim + MIXER.v_dim))
MADE = SEQ * MIXER.num_heads * MIXER.v_dim


def attention_casts_and_bytes(**precision: str) -> tuple[list[MemoryBound], float]:
    """Casts that serve the kernel, and the bytes that it keeps."""
    asked = job(seq_len=SEQ, world_size=1)
    said: Precision = replace(asked.precision, **precision)  # type: ignore[arg-type]
    block = written(MODEL, replace(asked, precision=said), "mtp", Layout.of(1)).blocks[0]
    ops = (*block.forward, *block.backward)
    casts = [op for op in ops if isinstance(op, MemoryBound) and op.served.role is Role.CORE and op.role is Role.CAST]
    (core,) = (op for op in block.forward if isinstance(op, Attention))
    return casts, float(core.saved_bytes[0])


def moved(casts: list[MemoryBound], phase: Phase) -> float:
    return sum(float(bytes_moved(op)[0]) for op in casts if op.phase is phase)


def test_a_known_scale_is_cast_to_once_and_what_the_kernel_makes_is_brought_back() -> None:
    """2 + 1 bytes of q, k and v in, 1 + 2 of the output out; backward the gradient of the output in, of q, k
    and v out.
    """
    casts, _ = attention_casts_and_bytes(attention="fp8", linear="fp8", scaling="delayed")
    assert moved(casts, Phase.FORWARD) == pytest.approx(3 * READ + 3 * MADE, rel=1e-3)
    assert moved(casts, Phase.INPUT_GRAD) == pytest.approx(3 * MADE + 3 * READ, rel=1e-3)


def test_a_scale_found_in_the_tensor_is_read_for_first_and_the_kernel_writes_16_bits() -> None:
    casts, _ = attention_casts_and_bytes(attention="fp8", linear="fp8", scaling="current")
    assert moved(casts, Phase.FORWARD) == pytest.approx(5 * READ, rel=1e-3)
    assert moved(casts, Phase.INPUT_GRAD) == pytest.approx(5 * MADE, rel=1e-3)


def test_the_kernel_keeps_what_it_read_and_its_output_in_8_bits() -> None:
    statistics = 4 * SEQ * MIXER.num_heads
    assert attention_casts_and_bytes()[1] == 2 * READ + statistics
    narrow = attention_casts_and_bytes(attention="fp8", linear="fp8", scaling="delayed")[1]
    assert narrow == READ + MADE + statistics


# Layers that narrow nothing beside ones that do.


FP8_INSIDE = Precision(
    linear="fp8",
    attention="fp8",
    scale_recipe="tensor",
    scaling="current",
    low_precision_parameters=True,
    parameter_gather="fp8",
)


def block_pieces(precision: Precision, first: int, last: int) -> list[tuple[int, Pass]]:
    model = small_model(layers=4).with_high_precision_ends(first, last)
    asked = replace(job(seq_len=SEQ, world_size=1), precision=precision)
    pieces = written(model, asked, "mtp", Layout.of(1)).blocks
    return [(run.count, piece) for run, piece in zip(model.blocks, pieces, strict=True)]


def formats(piece: Pass) -> set[str]:
    return {op.dtype for op in (*piece.forward, *piece.backward) if isinstance(op, BatchedGemm | Attention)}


def test_a_wide_layer_is_the_layer_of_a_job_that_narrows_nothing() -> None:
    """Products, attention, casts, what is kept: all as in bf16; layers between are as without."""
    (_, bf16), (_, fp8) = (block_pieces(one, 0, 0)[0] for one in (Precision(), FP8_INSIDE))
    ends = block_pieces(FP8_INSIDE, 1, 2)
    assert [count for count, _ in ends] == [1, 1, 2]
    assert [formats(piece) for _, piece in ends] == [{"bf16"}, {"fp8"}, {"bf16"}]
    for told, plain in ((ends[0][1], bf16), (ends[1][1], fp8), (ends[2][1], bf16)):
        for passed, known in ((told.forward, plain.forward), (told.backward, plain.backward)):
            assert [op.name for op in passed] == [op.name for op in known]
            assert [float(op.saved_bytes[0]) for op in passed] == [float(op.saved_bytes[0]) for op in known]


def test_formats_of_wide_layers_are_those_of_activations() -> None:
    wide = FP8_INSIDE.in_high_precision
    assert (wide.linear, wide.attention, wide.parameter_gather) == ("bf16", "bf16", "bf16")
    assert (wide.low_precision_linear, wide.casts_every_forward, wide.low_precision_parameters) == (False, False, False)
    assert replace(FP8_INSIDE, activation="fp16", attention="fp32").in_high_precision.attention == "fp32"


# What travels over tp where products run in few bits: bytes by recipe, scales included, as Transformer
# Engine gathers.


TP, GATHERED_TOKENS = 4, 1024


def gathering_job(recipe: str, **preset: object) -> JobSpec:
    plain = job(world_size=TP, seq_len=GATHERED_TOKENS, preset=framework_preset("megatron").changed(preset))
    return replace(plain, precision=replace(plain.precision, **LOW_PRECISION.get(recipe, {})))


def gathering_layer(question: JobSpec, strategy: str = "fsp") -> Pass:
    return written(small_model(), question, strategy, Layout.of(TP, tp=TP)).blocks[0]


def gathered(piece: Pass) -> dict[str, float]:
    """Bytes an element of what is gathered of mlp.up's input, of it again, and of mlp.down's output gradient."""
    hidden = GATHERED_TOKENS * small_model().hidden
    names = {
        ("mlp.up.enter", Phase.FORWARD): "input",
        ("mlp.up.regather", Phase.WEIGHT_GRAD): "again",
        ("mlp.down.leave", Phase.INPUT_GRAD): "gradient",
        ("mlp.down.leave_columns", Phase.INPUT_GRAD): "gradient_columns",
    }
    return {
        names[op.name, op.phase]: float(op.size_bytes[0]) / hidden
        for op in (*piece.forward, *piece.backward)
        if isinstance(op, Comm) and op.collective is Collective.ALL_GATHER and (op.name, op.phase) in names
    }


BLOCK, MX, NVFP4 = 1 + 4 / 128, 1 + 1 / 32, 0.5 + 1 / 16


@pytest.mark.parametrize(
    ("recipe", "each", "both_orders"),
    [
        ("bf16", 2.0, False),
        ("fp8-current", 1.0, False),
        ("fp8-blockwise", BLOCK, True),
        ("mxfp8", MX, True),
        ("nvfp4", NVFP4, True),
        ("fp8-tensor", 1.0, False),  # torchao's Float8RowwiseParallel and PrepareFloat8ModuleInput
        ("fp8-rowwise", 2.0, False),  # "currently assumes tensorwise scaling"
    ],
)
def test_bytes_gathered(recipe: str, each: float, both_orders: bool) -> None:
    expected = {"input": each, "again": each, "gradient": each} | ({"gradient_columns": each} if both_orders else {})
    assert gathered(gathering_layer(gathering_job(recipe))) == pytest.approx(expected)


def test_what_is_reduced_and_the_head_travel_in_16_bits() -> None:
    wide, narrow = (
        written(small_model(), gathering_job(recipe), "fsp", Layout.of(TP, tp=TP)) for recipe in ("bf16", "mxfp8")
    )

    def sizes(piece: Pass, kind: Collective) -> list[float]:
        ops = (*piece.forward, *piece.backward)
        return [float(op.size_bytes[0]) for op in ops if isinstance(op, Comm) and op.collective is kind]

    scattered = sizes(wide.blocks[0], Collective.REDUCE_SCATTER)
    assert sizes(narrow.blocks[0], Collective.REDUCE_SCATTER) == scattered
    assert sizes(narrow.head, Collective.ALL_GATHER) == sizes(wide.head, Collective.ALL_GATHER)


@pytest.mark.parametrize(
    ("recipe", "size"), [("fp8-current", 4), ("fp8-tensor", 4), ("nvfp4", 8), ("mxfp8", 0), ("bf16", 0)]
)
def test_ranks_agree_on_a_scale_before_they_cast(recipe: str, size: int) -> None:
    """Of both gathered inputs and both gathered output gradients of a gathering_layer; of NVFP4 for either order."""
    piece = gathering_layer(gathering_job(recipe))
    found = [op for op in (*piece.forward, *piece.backward) if isinstance(op, Comm) and op.role is Role.REDUCE]
    expected = [Phase.FORWARD] * 2 + [Phase.INPUT_GRAD] * 2 if size else []
    assert [op.phase for op in found] == expected
    assert all(op.size_bytes[0] == size and op.lane is Lane.MAIN for op in found)
    delayed = gathering_job("fp8-current")
    delayed = replace(delayed, precision=replace(delayed.precision, scaling="delayed"))
    ops = (*gathering_layer(delayed).forward, *gathering_layer(delayed).backward)
    assert not [op for op in ops if isinstance(op, Comm) and op.role is Role.REDUCE]


@pytest.mark.parametrize(
    ("recipe", "transposed", "part", "whole"),
    [
        # read twice, written along rows by each rank for its part; then turned: a narrow read and write of all
        ("fp8-current", True, 5.0, 2.0),
        ("fp8-current", False, 5.0, 0.0),
        # read once, written in both orders; parts of columns put side by side
        ("fp8-blockwise", True, 4.0, 2.0),
        ("mxfp8", False, 4.0, 0.0),
        ("nvfp4", False, 7.0, 1.0),
    ],
)
def test_each_rank_casts_its_part_and_turns_the_whole(recipe: str, transposed: bool, part: float, whole: float) -> None:
    question = gathering_job(recipe)
    question = replace(question, precision=replace(question.precision, transposed_copies=transposed))
    for name, what in (("mlp.up", "input"), ("mlp.down", "gradient")):
        assert per_element(gathering_layer(question), name)[what] == pytest.approx(part / TP + whole, rel=1e-2)
    # an input that no gather waits for is cast by itself, in both orders where products want both
    alone = per_element(gathering_layer(question), "mlp.down")["input"]
    assert alone == pytest.approx({"fp8-current": 6.0 if transposed else 5.0}.get(recipe, part), rel=1e-2)


def test_nothing_changes_where_no_tokens_are_cut() -> None:
    for strategy in ("mtp", "fsp"):
        whole = Layout.of(TP, tp=np.array([1]))
        piece = written(small_model(), gathering_job("fp8-current"), strategy, whole).blocks[0]
        assert per_element(piece, "mlp.up")["input"] == pytest.approx(6.0, rel=1e-2)
        assert not any("turned" in op.name and op.rows[0] for op in piece.backward if isinstance(op, MemoryBound))


def test_columns_of_a_gradient_travel_beside_the_product_of_the_rows() -> None:
    """User buffers hand rows on in pieces, and columns by copy engines on the streams of that product."""
    piece = gathering_layer(gathering_job("mxfp8", **{"tensor_parallel.overlap": True}))
    ops = [op for op in piece.backward if isinstance(op, Comm) and op.name.startswith("mlp.down.leave")]
    assert [op.lane for op in ops] == [Lane.PIECES, Lane.OVERLAP]
    assert ops[1].pieces is not None
    assert (ops[1].pieces.thread_blocks, ops[1].overlap_phase) == (0, Phase.INPUT_GRAD)


@pytest.mark.parametrize(("beside", "width"), [(False, 1), (True, 2)])
def test_shared_experts_that_hide_the_exchange_are_gathered_in_16_bits(beside: bool, width: int) -> None:
    """Transformer Engine gathers what it has cast; shared_experts.py gathers by itself, before (pre_forward_comm)."""
    question = replace(gathering_job("fp8-current"), overlap_shared_experts=beside)
    model = experts_model(shared_ffn_hidden=128)
    piece = written(model, question, "fsp", Layout.of(TP, tp=TP, ep=TP)).blocks[0]
    (gather,) = (op for op in piece.forward if op.name == "shared.up.enter")
    assert isinstance(gather, Comm)
    assert gather.size_bytes[0] == width * GATHERED_TOKENS * model.hidden


# Inputs of gated activations that wait for the backward in fp8.


MICRO_BATCH_TOKENS, FFN, EXPERT, EXPERTS_OF_A_TOKEN = 256, 18432, 2048, 8


def blocks(where: str, *modules: str) -> tuple[Pass, ...]:
    model = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    asked = job(seq_len=MICRO_BATCH_TOKENS, fp8_activation_inputs=where)
    return written(model, asked, "mtp", Layout.of(8, ep=8), "none", modules).blocks


@pytest.mark.parametrize(("where", "dense", "experts"), [("experts", 0, 1), ("all", 1, 1)])
def test_gate_and_up_are_kept_in_a_byte_each(where: str, dense: int, experts: int) -> None:
    """Two of 18,432 channels a token of a dense layer, two of 2,048 for each of 8 routed experts and the shared one."""
    plain, narrow = blocks(""), blocks(where)
    routed = MICRO_BATCH_TOKENS * 2 * EXPERT * (EXPERTS_OF_A_TOKEN + 1)
    assert saved_bytes(plain[0]) - saved_bytes(narrow[0]) == dense * MICRO_BATCH_TOKENS * 2 * FFN
    assert saved_bytes(plain[1]) - saved_bytes(narrow[1]) == experts * routed


def test_a_pass_writes_them_and_one_reads_them_back() -> None:
    """Three bytes an element each: two of bf16 and one of fp8; a copy moves four."""
    piece = blocks("all")[0]
    for ops, phase in ((piece.forward, Phase.FORWARD), (piece.backward, Phase.INPUT_GRAD)):
        (one,) = [op for op in ops if op.role is Role.CAST and op.serves is Role.ACTIVATION]
        assert isinstance(one, MemoryBound)
        assert (one.phase, one.kernel) == (phase, "copy")
        assert 4 * int(one.rows[0]) * int(one.width[0]) == 3 * MICRO_BATCH_TOKENS * 2 * FFN
