"""Recomputation of every second product, and of some layers of a stage."""

from ops.layout import Layout
from ops.op import BatchedGemm, Op, Phase, Piece
from spec.presets.registry import PRESETS
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

SEQ, HIDDEN, HEADS, KV_HEADS, FFN = 2048, 512, 8, 4, 2048
WIDTH = HIDDEN // HEADS


def repeated(piece: Piece) -> dict[str, Op]:
    return {op.name: op for op in piece.backward if op.phase is Phase.RECOMPUTE}


def saved_bytes(piece: Piece) -> float:
    return float(sum(op.saved_bytes[0] for op in piece.forward))


def test_every_second_product_of_a_llama_layer() -> None:
    """torchtitan's policy by hand: products in order q k v o gate up down; the first, third, ... stay."""
    preset = PRESETS["megatron"].changed({"recomputation.selective": "every_second_product"})
    predicted = written(
        small_model(), job(seq_len=SEQ, preset=preset), "mtp", Layout.of(8), "selective"
    ).blocks[0]
    products = {name: op for name, op in repeated(predicted).items() if isinstance(op, BatchedGemm)}
    assert {name: int(op.n[0]) for name, op in products.items()} == {
        "attention.qkv": KV_HEADS * WIDTH,
        "attention.out": HIDDEN,
        "mlp.up": FFN,
    }
    assert "attention.core" not in repeated(predicted)
    assert {"attention.norm", "mlp.norm", "mlp.activation", "attention.rotary"} <= set(repeated(predicted))
    # input, q, v, the attention's output, gate and down, and 4 bytes of statistics a head
    channels = HIDDEN + HIDDEN + KV_HEADS * WIDTH + HIDDEN + FFN + HIDDEN
    assert saved_bytes(predicted) == 2 * SEQ * channels + 4 * SEQ * HEADS


def test_the_hops_of_a_kept_ring_do_not_run_again() -> None:
    preset = PRESETS["fsdp"].changed({"recomputation.selective": "every_second_product"})
    layout = Layout.of(8, cp=2)
    predicted = written(small_model(), job(seq_len=SEQ, preset=preset), "mtp", layout, "selective").blocks[0]
    assert any(op.name == "attention.ring_hop" for op in predicted.forward)
    assert not {"attention.ring", "attention.ring_hop", "attention.subtract_outputs"} & set(
        repeated(predicted)
    )


def test_some_layers_of_a_stage_are_whole_and_the_others_plain() -> None:
    predicted = written(small_model(), job(seq_len=SEQ), "mtp", Layout.of(8), "block").blocks
    assert len(predicted) == 2
    full, plain = predicted
    assert saved_bytes(full) == 2 * SEQ * HIDDEN
    assert repeated(full)
    assert not repeated(plain)
