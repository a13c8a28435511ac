"""Full recomputation that keeps what some products of attention make: what runs again, and bytes kept."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.op import Attention, Pass, Phase
from ops.roles import Module
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

TOKENS = 1024


def layer(*keeps: str) -> Pass:
    changes = {"recomputation.keeps": frozenset(keeps), "layers.fused_casts": False}
    preset = framework_preset("maxtext").changed(changes)
    asked = job(world_size=4, seq_len=TOKENS, preset=preset)
    fp8 = {"linear": "fp8", "scale_recipe": "tensor", "scaling": "delayed", "casts_every_forward": True}
    asked = replace(asked, precision=replace(asked.precision, **fp8))
    return written(small_model(), asked, "mtp", Layout.of(4, zero_stage=3, zero_size=4), "full").blocks[0]


def again(piece: Pass) -> set[str]:
    return {op.name for op in piece.backward if op.phase is Phase.RECOMPUTE}


@pytest.mark.parametrize(
    ("keeps", "spared"),
    [
        (("qkv",), {"attention.qkv", "attention.rotary"}),
        (("out",), {"attention.out", "attention.out.leave"}),
        (("context",), {"attention.core"}),
        (("up",), {"mlp.up", "mlp.gate"}),
    ],
)
def test_what_makes_the_kept_does_not_run_again(keeps: tuple[str, ...], spared: set[str]) -> None:
    """Casts of inputs stay: the weight gradients read them."""
    assert again(layer()) - again(layer(*keeps)) == spared
    assert {"mlp.activation", "attention.qkv.cast_input", "mlp.up.cast_input"} <= again(layer(*keeps))
    assert again(layer("qkv", "out")) == again(layer("qkv")) & again(layer("out"))


@pytest.mark.parametrize("keeps", [("qkv",), ("out",), ("qkv", "out"), ("up",), ("qkv", "out", "up")])
def test_the_kept_stays_from_forward_to_backward(keeps: tuple[str, ...]) -> None:
    """16 bits of every query, key and value, and of each channel of the output product's result."""
    block = small_model().blocks[0].block.mixer
    width = {
        "qkv": block.qk_dim * (block.num_heads + block.num_kv_heads) + block.v_dim * block.num_kv_heads,
        "out": small_model().hidden,
        "up": 2 * small_model().blocks[0].block.mlp.ffn_hidden,
    }
    kept = [sum(float(op.saved_bytes[0]) for op in layer(*names).forward) for names in ((), keeps)]
    assert kept[1] - kept[0] == 2 * TOKENS * sum(width[name] for name in keeps)
    held = [
        sum(
            float(op.saved_bytes[0] + op.transient_bytes[0])
            for op in layer(*names).forward
            if isinstance(op, Attention)
        )
        for names in ((), ("qkv",))
    ]
    assert held[0] == held[1]


def test_other_modules_run_again_as_ever() -> None:
    spared = {op.module for op in layer().backward if op.name in again(layer()) - again(layer("qkv", "out"))}
    assert spared == {Module.ATTENTION}


def test_attentions_result_stays_beside_what_its_backward_reads() -> None:
    """16 bits of every channel of its output, which the output product reads, and the sums of its rows."""
    kept = [sum(float(op.saved_bytes[0]) for op in layer(*names).forward) for names in ((), ("context",))]
    block = small_model().blocks[0].block.mixer
    assert kept[1] - kept[0] == TOKENS * block.num_heads * (2 * block.v_dim + 4)
