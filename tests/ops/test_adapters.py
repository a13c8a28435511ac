"""Adapters beside frozen weights: what is trained, kept, moved and run, against closed forms."""

from dataclasses import replace

import pytest

from ops.block import ModelOps
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import BatchedGemm, Comm, Lane, MemoryBound, Op, Pass, Phase
from ops.roles import Module, Role
from spec.dtypes import dtype_bytes
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.parameters import num_parameters
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

HIDDEN, LAYERS, KV, HEADS, RANK = 512, 8, 4, 8, 16
FFN = 4 * HIDDEN
QKV = HIDDEN + 2 * HIDDEN * KV // HEADS
MODEL = small_model(layers=LAYERS, kv_heads=KV, hidden=HIDDEN, heads=HEADS)
ALONE = Layout.of(1)


def lora(*names: str, **changes: object) -> JobSpec:
    return job(world_size=1, adapter_rank=RANK, adapted=frozenset(names), **changes)


def ops_of(asked: JobSpec, strategy: str = "mtp", layout: Layout = ALONE, recompute: str = "none") -> ModelOps:
    return written(MODEL, asked, strategy, layout, recompute)


def held(ops: ModelOps, of: str) -> int:
    """Elements over the whole model."""
    (block,) = ops.blocks
    pieces = [(block, LAYERS), (ops.embedding, 1), (ops.head, 1)]
    return sum(int(getattr(op, of).sum()) * times for piece, times in pieces for op in piece.forward)


def saved(piece: Pass, module: Module) -> float:
    return sum(float(op.saved_bytes[0]) for op in piece.forward if op.module is module and isinstance(op, BatchedGemm))


@pytest.mark.published
def test_llama_7b_has_16_777_216_trained_elements_at_rank_16() -> None:
    """peft's print_trainable_parameters for q, k, v and o of Llama-2-7B: 32 layers of 4 (4096 + 4096) 16."""
    model = small_model(layers=32, kv_heads=32, hidden=4096, heads=32)
    ops = written(model, lora("q_k_v", "out"), "mtp", ALONE)
    (block,) = ops.blocks
    assert 32 * sum(int(op.parameters.sum()) for op in block.forward) == 16_777_216


@pytest.mark.parametrize(
    ("names", "a_layer"),
    [
        (("qkv",), HIDDEN + QKV),
        (("q_k_v",), 3 * HIDDEN + QKV),
        (("out",), 2 * HIDDEN),
        (("up", "down"), HIDDEN + 2 * FFN + FFN + HIDDEN),
    ],
)
def test_only_adapters_are_trained_and_all_else_is_held(names: tuple[str, ...], a_layer: int) -> None:
    ops = ops_of(lora(*names))
    assert held(ops, "parameters") == pytest.approx(LAYERS * RANK * a_layer, abs=3 * LAYERS * RANK)
    assert held(ops, "frozen") == num_parameters(MODEL).total


def test_frozen_products_have_one_gradient_and_adapters_both() -> None:
    whole, (block,) = ops_of(job(world_size=1)).blocks[0], ops_of(lora("qkv", "out")).blocks
    rank_products = [op for op in block.backward if op.role in (Role.ADAPTER_DOWN, Role.ADAPTER_UP)]
    forward = sum(
        float(op.flops[0])
        for op in block.forward
        if isinstance(op, BatchedGemm) and op.role in (Role.ADAPTER_DOWN, Role.ADAPTER_UP)
    )
    assert sum(float(op.flops[0]) for op in rank_products if isinstance(op, BatchedGemm)) == 2 * forward
    assert forward == 2.0 * 2048 * RANK * (HIDDEN + QKV + 2 * HIDDEN)
    base = [op for op in block.backward if isinstance(op, BatchedGemm) and op not in rank_products]
    full = [op for op in whole.backward if isinstance(op, BatchedGemm)]
    assert {op.phase for op in base} == {Phase.INPUT_GRAD}
    assert 2 * sum(float(op.flops[0]) for op in base) == sum(float(op.flops[0]) for op in full)


def test_a_frozen_product_keeps_its_input_only_for_an_adapter() -> None:
    rows = 2048.0
    (block,) = ops_of(lora("qkv")).blocks
    assert saved(block, Module.MLP) == 0.0
    # beside it the flash kernel's result, which that kernel's backward reads
    assert saved(block, Module.ATTENTION) == 2 * rows * (HIDDEN + RANK + HIDDEN)
    (block,) = ops_of(lora("down")).blocks
    assert saved(block, Module.MLP) == 2 * rows * (FFN + RANK)
    assert saved(block, Module.ATTENTION) == 2 * rows * HIDDEN
    (block,) = ops_of(lora("down", flash_attention=False)).blocks
    assert saved(block, Module.ATTENTION) == 0.0


@pytest.mark.parametrize(("dtype", "each"), [("", 2 + 1), ("fp32", 4 + 1)])
def test_adapters_that_drop_inputs_keep_one_each_and_its_mask(dtype: str, each: int) -> None:
    """peft's lora_A(dropout(x)): q, k and v keep three results of one x, and three masks of a byte."""
    rows = 2048.0
    (block,) = ops_of(lora("q_k_v", adapter_dropout=True, adapter_dtype=dtype)).blocks
    flash = 2 * rows * HIDDEN
    assert saved(block, Module.ATTENTION) == 3 * rows * (each * HIDDEN + 2 * RANK) + flash


# Bytes an element of x, forward and backward, and of B's result, forward and backward, by hand from the
# operations that torch's dispatcher counts of peft 0.13's Linear (fp32 weights; with and without FSDP1 and
# autocast), its Linear4bit and Unsloth's LoRA_W.
KERNELS_OF_ONE_ADAPTER = [
    # scaled, added; x's gradient added to that of the frozen product
    ({}, "", (0, 6, 4 + 6, 4)),
    # dropout: 2 read, 2 written and a mask; the same backward
    ({"adapter_dropout": True}, "", (5, 5 + 6, 4 + 6, 4)),
    # to fp32, dropped; scaled in fp32, a sum of 2 and 4 bytes in 4, back to 2
    ({"adapter_dropout": True, "adapter_dtype": "fp32"}, "", (6 + 9, 9 + 6 + 6, 8 + 10 + 6, 6 + 6 + 8)),
    # to fp32, dropped, back to 16 bits for the product
    (
        {"adapter_dropout": True, "adapter_dtype": "fp32", "adapter_code": "autocast"},
        "",
        (6 + 9 + 6, 6 + 9 + 6 + 6, 4 + 6, 4),
    ),
    # the frozen product's result is cloned
    ({"adapter_dropout": True, "adapter_code": "autocast"}, "nf4", (5, 5 + 6, 4 + 4 + 6, 4)),
    # compared with 0, multiplied by a byte, added
    ({"adapter_dropout": True, "adapter_code": "fused"}, "int4", (5, 3 + 5 + 6, 6, 0)),
]


@pytest.mark.parametrize(("changes", "frozen", "element_bytes"), KERNELS_OF_ONE_ADAPTER)
def test_what_an_adapter_moves_between_its_products(
    changes: dict[str, object], frozen: str, element_bytes: tuple[float, ...]
) -> None:
    asked = lora("out", **changes)
    asked = replace(asked, precision=replace(asked.precision, frozen=frozen))
    (block,) = ops_of(asked).blocks

    def moved(piece: tuple[Op, ...]) -> float:
        return sum(
            float(bytes_moved(op)[0]) * op.repeat
            for op in piece
            if isinstance(op, MemoryBound) and op.serves is Role.OUT and not op.name.endswith("widen")
        )

    elements = 2048.0 * HIDDEN
    into, back, added, scaled = element_bytes
    assert moved(block.forward) == pytest.approx(elements * (into + added))
    assert moved(block.backward) == pytest.approx(elements * (back + scaled))


@pytest.mark.parametrize(("code", "dtype"), [("", "fp32"), ("autocast", "bf16")])
def test_adapters_multiply_in_their_own_format_but_under_autocast(code: str, dtype: str) -> None:
    (block,) = ops_of(lora("qkv", adapter_dtype="fp32", adapter_code=code)).blocks
    products = [op for op in (*block.forward, *block.backward) if op.role in (Role.ADAPTER_DOWN, Role.ADAPTER_UP)]
    assert {op.dtype for op in products if isinstance(op, BatchedGemm)} == {dtype}


@pytest.mark.parametrize(("code", "again"), [("", 0), ("fused", 1)])
def test_fused_adapters_multiply_by_a_once_more_in_the_backward(code: str, again: int) -> None:
    """The gradients of A and of its input and, fused, A times its input again (Unsloth, LoRA_QKV.backward: QA.t() @
    QX.t())."""
    (block,) = ops_of(lora("out", adapter_code=code)).blocks
    found = [
        (int(op.m[0]), int(op.k[0]), int(op.n[0]))
        for op in block.backward
        if isinstance(op, BatchedGemm) and op.role is Role.ADAPTER_DOWN
    ]
    tokens = int(next(op.m[0] for op in block.forward if isinstance(op, BatchedGemm)))
    wanted = [(tokens, RANK, HIDDEN), (RANK, tokens, HIDDEN)] + [(tokens, HIDDEN, RANK)] * again
    assert found == wanted


def test_norms_with_frozen_weights_keep_no_scaled_input() -> None:
    unfused = frozenset({"norm"})
    (block,) = ops_of(lora("qkv", unfused=unfused)).blocks
    (whole,) = ops_of(job(world_size=1, unfused=unfused)).blocks
    kept = [
        [op.saved_bytes[0] / (2048 * HIDDEN) for op in piece.forward if op.role is Role.NORM]
        for piece in (block, whole)
    ]
    assert kept == [[4, 4], [6, 6]]


def test_nothing_flows_back_into_the_embedding_and_the_head_keeps_no_input() -> None:
    ops = ops_of(lora("qkv"))
    assert ops.embedding.backward == ()
    (logits,) = [op for op in ops.head.forward if op.role is Role.LOGITS]
    assert not logits.saved_bytes.any()
    assert [op.phase for op in ops.head.backward if op.role is Role.LOGITS] == [Phase.INPUT_GRAD]


@pytest.mark.parametrize("narrow", ["nf4", "int4"])
def test_weights_of_few_bits_are_held_as_such_and_widened_for_every_product(narrow: str) -> None:
    asked = lora("qkv")
    asked = replace(asked, precision=replace(asked.precision, frozen=narrow))
    ops = ops_of(asked)
    (block,) = ops.blocks
    products = HIDDEN * (QKV + HIDDEN + 3 * FFN)
    bits = dtype_bytes(narrow)
    held_bytes = 2.0 * sum(float(op.frozen.sum()) for op in block.forward)
    assert held_bytes == pytest.approx(products * bits + 2 * 2 * HIDDEN, abs=20)
    for ops_of_pass in (block.forward, block.backward):
        moved = sum(
            float(bytes_moved(op)[0])
            for op in ops_of_pass
            if isinstance(op, MemoryBound) and op.role is Role.CAST and op.name.endswith("widen")
        )
        assert moved == pytest.approx(products * (bits + 2.0), rel=1e-3)
    assert all(op.role is not Role.CAST for op in ops.head.forward)


def test_what_ran_beside_a_dropped_gradient_is_waited_for() -> None:
    layout = Layout.of(4, tp=4)
    (block,) = ops_of(lora("qkv"), "fsp", layout).blocks
    scatters = [op for op in block.backward if isinstance(op, Comm) and op.role is Role.ENTER]
    assert len(scatters) == 2
    assert {op.lane for op in scatters} == {Lane.MAIN}
    regathered = [op.serves for op in block.backward if op.role is Role.REGATHER]
    assert regathered == [Role.QKV]


def test_what_ran_beside_anything_else_stays_there() -> None:
    """The hops of a ring beside the attention core, which is no weight's."""
    (block,) = ops_of(lora("qkv"), "mtp", Layout.of(2, cp=2)).blocks
    hops = [op for op in block.backward if op.role is Role.RING_P2P]
    assert hops
    assert {op.lane for op in hops} == {Lane.OVERLAP}


def test_the_result_of_a_cut_is_summed_over_tp() -> None:
    layout = Layout.of(4, tp=4)
    (block,) = ops_of(lora("qkv", "out"), "mtp", layout).blocks
    (summed,) = [op for op in block.forward if isinstance(op, Comm) and op.role is Role.REDUCE]
    assert (summed.serves, summed.size_bytes.tolist()) == (Role.OUT, [2 * 2048 * RANK])


def test_sharded_weights_are_all_gathered_and_only_adapters_reduced() -> None:
    asked = replace(lora("q_k_v", "out", preset=framework_preset("fsdp")), world_size=4)
    layout = Layout.of(4, zero_stage=3, zero_size=4)
    (block,) = ops_of(asked, "mtp", layout).blocks
    trained = sum(int(op.parameters.sum()) for op in block.forward)
    frozen = sum(int(op.frozen.sum()) for op in block.forward)
    moved = {
        (op.role, op.phase): int(op.size_bytes[0])
        for op in (*block.forward, *block.backward)
        if isinstance(op, Comm) and op.module is Module.LAYER and op.size_bytes.any()
    }
    assert moved == {
        (Role.PARAMETER_GATHER, Phase.FORWARD): pytest.approx(2 * (trained + frozen), abs=16),
        (Role.PARAMETER_GATHER, Phase.INPUT_GRAD): pytest.approx(2 * (trained + frozen), abs=16),
        (Role.GRADIENT_REDUCTION, Phase.WEIGHT_GRAD): pytest.approx(2 * trained, abs=16),
    }
