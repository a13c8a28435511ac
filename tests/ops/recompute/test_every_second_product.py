"""Recomputation of every second product, and of some layers of a stage."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.op import BatchedGemm, Comm, Op, Pass, Phase
from spec.collectives import Collective
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

SEQ, HIDDEN, HEADS, KV_HEADS, FFN = 2048, 512, 8, 4, 2048
WIDTH = HIDDEN // HEADS


def repeated(piece: Pass) -> dict[str, Op]:
    return {op.name: op for op in piece.backward if op.phase is Phase.RECOMPUTE}


def saved_bytes(piece: Pass) -> float:
    return float(sum(op.saved_bytes[0] for op in piece.forward))


def test_every_second_product_of_a_llama_layer() -> None:
    """torchtitan's policy by hand: products in order q k v o gate up down; the first, third, ... stay."""
    preset = framework_preset("megatron").changed({"recomputation.selective": "every_second_product"})
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


@pytest.mark.parametrize("output_gate", [False, True])
def test_products_of_a_layer_without_a_gate(output_gate: bool) -> None:
    """q k v o up down: up stays and down runs again. A mixer's own gate makes no second product of up."""
    (run,) = small_model().blocks
    assert run.block.mlp is not None
    block = replace(run.block, mlp=replace(run.block.mlp, gated=False))
    block = replace(block, mixer=replace(block.mixer, output_gate=output_gate))
    model = replace(small_model(), blocks=(replace(run, block=block),))
    preset = framework_preset("megatron").changed({"recomputation.selective": "every_second_product"})
    predicted = written(model, job(seq_len=SEQ, preset=preset), "mtp", Layout.of(8), "selective").blocks[0]
    again = {name: int(op.n[0]) for name, op in repeated(predicted).items() if isinstance(op, BatchedGemm)}
    assert "mlp.up" not in again
    assert again["mlp.down"] == HIDDEN


def test_what_runs_again_stands_while_its_operation_does() -> None:
    """What a layer without recomputation keeps of an operation is held for a moment, beside what that needs anyway."""
    preset = framework_preset("fsdp").changed({"recomputation.selective": "every_second_product"})
    plain, again = (
        written(small_model(), job(seq_len=SEQ, preset=preset), "mtp", Layout.of(8), mode).blocks[0].forward
        for mode in ("none", "selective")
    )
    held = [float(op.transient_bytes[0]) for op in again[1:]]
    assert held == [float(op.transient_bytes[0] + op.saved_bytes[0]) for op in plain[1:]]
    assert sum(held) > 0


def test_results_of_narrow_products_are_kept_in_16_bits() -> None:
    preset = framework_preset("fsdp").changed({"recomputation.selective": "every_second_product"})
    wide = job(seq_len=SEQ, preset=preset)
    recipe = replace(wide.precision, linear="fp8", scale_recipe="tensor", scaling="dynamic")
    bytes_of = [
        saved_bytes(written(small_model(), asked, "mtp", Layout.of(8), "selective").blocks[0])
        for asked in (wide, replace(wide, precision=recipe))
    ]
    assert bytes_of[0] == bytes_of[1]


def test_what_reduce_scatters_bring_is_kept_and_what_gathers_bring_is_not() -> None:
    preset = framework_preset("fsdp").changed({"recomputation.selective": "every_second_product"})
    predicted = written(
        small_model(), job(seq_len=SEQ, preset=preset), "fsp", Layout.of(8, tp=2), "selective"
    ).blocks[0]
    again = [
        op.collective for op in predicted.backward if op.phase is Phase.RECOMPUTE and isinstance(op, Comm)
    ]
    assert again == [Collective.ALL_GATHER] * 2


@pytest.mark.parametrize("stops", [True, False])
def test_what_runs_again_may_end_with_the_last_thing_needed(stops: bool) -> None:
    """The last product's input is the last thing that a backward reads: neither its all-reduce nor the residual
    behind it runs again, so whole layers never have fewer collectives than every second product."""
    preset = framework_preset("fsdp").changed({"recomputation.stops_early": stops})
    again = {
        mode: written(small_model(), job(seq_len=SEQ, preset=preset), "mtp", Layout.of(8, tp=2), mode).blocks[
            0
        ]
        for mode in ("selective", "full")
    }
    collectives = {
        mode: [name for name, op in repeated(piece).items() if isinstance(op, Comm)]
        for mode, piece in again.items()
    }
    assert collectives["selective"] == collectives["full"]
    assert collectives["full"] == ["attention.out.leave", "mlp.down.leave"][: 1 if stops else 2]
    assert set(repeated(again["selective"])) <= set(repeated(again["full"]))


def test_the_hops_of_a_kept_ring_do_not_run_again() -> None:
    preset = framework_preset("fsdp").changed({"recomputation.selective": "every_second_product"})
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
