"""Modules that run again: what repeats, what is let go, what stays."""

from dataclasses import replace

import numpy as np
import pytest

from ops.block import layer_ops
from ops.layout import Layout
from ops.op import Attention, BatchedGemm, Comm, Op, Pass, Phase
from ops.recompute import MODULES, Recompute, affecting_modules, recompute_parts
from ops.roles import Module, OpKey, Role
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from spec.readers.read_config import read_config
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import ROOT, small_model, with_part

SEQ = 256
DENSE, EXPERTS = 0, 1


def deepseek() -> ModelSpec:
    return read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model


def block(which: int, *names: str, recompute: str = "none") -> Pass:
    layout = Layout.of(8, ep=8)
    return written(deepseek(), job(seq_len=SEQ), "mtp", layout, recompute, names).blocks[which]


def repeated(piece: Pass) -> list[str]:
    return [op.name for op in piece.backward if op.phase is Phase.RECOMPUTE]


def saved(piece: Pass) -> dict[str, float]:
    totals: dict[str, float] = {}
    for op in piece.forward:
        totals[op.name] = totals.get(op.name, 0.0) + float(np.max(op.saved_bytes))
    return totals


def let_go(which: int, *names: str) -> set[str]:
    before, after = saved(block(which)), saved(block(which, *names))
    assert all(after[name] <= before[name] for name in before)
    return {name for name in before if after[name] < before[name]}


@pytest.mark.parametrize("which", [DENSE, EXPERTS])
def test_a_module_is_felt_where_it_changes_what_runs_or_is_kept(which: int) -> None:
    plain = block(which)

    def done(part: Pass, *names: str) -> object:
        piece = recompute_parts(part, names)
        return repeated(piece), saved(piece)

    # The layer, and each operation of it alone: what one lets go of another may run again.
    for part in (plain, *(Pass(forward=(op,), backward=()) for op in plain.forward if op.saved_bytes.any())):
        felt = affecting_modules(part, MODULES)
        assert {name for name in MODULES if done(part, name) != done(part)} <= set(felt)
        assert done(part, *felt) == done(part, *MODULES)
    assert {name for name in MODULES if done(plain, name) != done(plain)} == set(affecting_modules(plain, MODULES))
    # Under modules of which it feels the same, a layer is the very same piece.
    layout = Layout.of(8, ep=8)
    bare = layer_ops(deepseek(), job(seq_len=SEQ), layout, "mtp")
    both = [bare.apply_recompute(Recompute.NONE, names) for names in (("mlp",), ("mlp", "moe"))]
    assert (both[0].blocks[which] is both[1].blocks[which]) == (which == DENSE)
    assert both[0].head is both[1].head
    # Not so where ends run again with all layers, whichever is asked for first.
    ends = framework_preset("megatron").changed({"recomputation.recomputes_ends": True})
    bare = layer_ops(deepseek(), job(seq_len=SEQ, preset=ends), layout, "mtp")
    kinds = (Recompute.FULL, Recompute.NONE)
    assert [len(repeated(bare.apply_recompute(kind).head)) > 0 for kind in kinds] == [True, False]


def test_expert_activations_run_again_from_the_first_product() -> None:
    assert repeated(block(EXPERTS, "moe_act")) == ["moe.activation"]
    assert let_go(EXPERTS, "moe_act") == {"moe.down"}
    assert repeated(block(DENSE, "moe_act")) == []


def test_norms_of_their_own_run_again() -> None:
    """Before MLA's projections and before experts; the dense layer's is fused into its first linear."""
    assert repeated(block(EXPERTS, "layernorm")) == ["attention.norm", "mlp.norm"]
    assert repeated(block(DENSE, "layernorm")) == ["attention.norm"]
    assert let_go(DENSE, "layernorm") == {"attention.q_down"}


def test_every_norm_runs_again_and_nothing_keeps_what_it_makes() -> None:
    """DeepSeek-V3 sec. 3.2.3: before MLA's projections, the router, the shared experts and the dense layer."""
    for which, kept in ((DENSE, {"mlp.up"}), (EXPERTS, {"shared.up"})):
        assert repeated(block(which, "norm")) == ["attention.norm", "mlp.norm"]
        assert kept <= let_go(which, "norm")
        assert all(saved(block(which, "norm"))[name] == 0.0 for name in kept)


def test_mla_projects_its_latents_again() -> None:
    names = repeated(block(EXPERTS, "mla_up_proj"))
    assert {"attention.q_up", "attention.kv_up"} <= set(names)
    assert not {"attention.q_down", "attention.kv_down", "attention.core"} & set(names)
    assert let_go(EXPERTS, "mla_up_proj") == {"attention.q_up", "attention.kv_up", "attention.core"}
    after = saved(block(EXPERTS, "mla_up_proj"))
    assert after["attention.core"] == 4.0 * SEQ * 128  # the kernel's own sums alone: 128 heads


def test_a_dense_mlp_keeps_its_norms_input_alone() -> None:
    assert set(repeated(block(DENSE, "mlp"))) >= {"mlp.norm", "mlp.up", "mlp.activation", "mlp.down"}
    assert "attention.core" not in repeated(block(DENSE, "mlp"))
    assert repeated(block(EXPERTS, "mlp")) == []
    after = saved(block(DENSE, "mlp"))
    assert after["mlp.up"] == after["mlp.activation"] == after["mlp.down"] == 0.0
    assert after["mlp.norm"] == saved(block(DENSE))["mlp.norm"] > 0.0


def test_whole_expert_layers_repeat_their_exchanges() -> None:
    names = repeated(block(EXPERTS, "moe"))
    assert {"moe.dispatch", "moe.combine", "moe.up", "moe.down", "shared.up"} <= set(names)
    assert "mlp.norm" not in names
    after = saved(block(EXPERTS, "moe"))
    assert after["moe.up"] == after["moe.activation"] == after["moe.down"] == 0.0
    assert after["shared.up"] > 0.0  # the input of it all


def test_full_recomputation_repeats_everything_once() -> None:
    names = repeated(block(EXPERTS, "moe_act", "mla_up_proj", recompute="full"))
    assert len(names) == len(block(EXPERTS).forward)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_names_operations_that_exist(name: str) -> None:
    ops: list[Op] = [op for which in (DENSE, EXPERTS) for op in block(which).forward]
    # gpt-oss's, experts in a latent, unjoined gates, and attention without latents
    elsewhere = {OpKey(Module.MOE, role) for role in (Role.CLAMP, Role.LATENT_DOWN, Role.LATENT_UP)}
    elsewhere |= {OpKey(Module.MLP, Role.GATE), OpKey(Module.ATTENTION, Role.QKV)}
    keys = {op.key for op in ops} | elsewhere
    for module in MODULES[name]:
        assert module.drops <= keys
        assert module.again <= keys | {op.module for op in ops}


def test_what_is_let_go_is_held_while_the_layer_runs() -> None:
    def held(piece: Pass) -> float:
        return float(sum(np.max(op.saved_bytes + op.transient_bytes) for op in piece.forward))

    assert held(block(EXPERTS, *MODULES)) == pytest.approx(held(block(EXPERTS)))


# Recomputation of every second product, and of some layers of a stage.


SEQUENCE, HIDDEN, HEADS, KV_HEADS, FFN = 2048, 512, 8, 4, 2048
WIDTH = HIDDEN // HEADS


def rerun_names(piece: Pass) -> dict[str, Op]:
    return {op.name: op for op in piece.backward if op.phase is Phase.RECOMPUTE}


def second_products(
    framework: str = "fsdp",
    strategy: str = "mtp",
    mode: str = "selective",
    model: ModelSpec | None = None,
    **degrees: int,
) -> Pass:
    """A layer of which, recomputed selectively, every second product runs again."""
    preset = framework_preset(framework).changed({"recomputation.selective": "every_second_product"})
    asked = job(seq_len=SEQUENCE, preset=preset)
    return written(model or small_model(), asked, strategy, Layout.of(8, **degrees), mode).blocks[0]


def test_every_second_product_of_a_llama_layer() -> None:
    """torchtitan's policy by hand: products in order q k v o gate up down; the first, third, ... stay."""
    predicted = second_products("megatron")
    products = {name: op for name, op in rerun_names(predicted).items() if isinstance(op, BatchedGemm)}
    assert {name: int(op.n[0]) for name, op in products.items()} == {
        "attention.qkv": KV_HEADS * WIDTH,
        "attention.out": HIDDEN,
        "mlp.up": FFN,
    }
    assert "attention.core" not in rerun_names(predicted)
    assert {"attention.norm", "mlp.norm", "mlp.activation", "attention.rotary"} <= set(rerun_names(predicted))
    # input, q, v, the attention's output, gate and down, and 4 bytes of statistics a head
    channels = HIDDEN + HIDDEN + KV_HEADS * WIDTH + HIDDEN + FFN + HIDDEN
    assert saved_bytes(predicted) == 2 * SEQUENCE * channels + 4 * SEQUENCE * HEADS


@pytest.mark.parametrize("output_gate", [False, True])
def test_products_of_a_layer_without_a_gate(output_gate: bool) -> None:
    """q k v o up down: up stays and down runs again. A mixer's own gate makes no second product of up."""
    model = with_part(with_part(small_model(), "mlp", gated=False), "mixer", output_gate=output_gate)
    predicted = second_products("megatron", model=model)
    again = {name: int(op.n[0]) for name, op in rerun_names(predicted).items() if isinstance(op, BatchedGemm)}
    assert "mlp.up" not in again
    assert again["mlp.down"] == HIDDEN


def test_what_runs_again_stands_while_its_operation_does() -> None:
    """What a layer without recomputation keeps of an operation is held for a moment, beside what that needs anyway."""
    plain, again = (second_products(mode=mode).forward for mode in ("none", "selective"))
    held = [float(op.transient_bytes[0]) for op in again[1:]]
    assert held == [float(op.transient_bytes[0] + op.saved_bytes[0]) for op in plain[1:]]
    assert sum(held) > 0


def test_results_of_narrow_products_are_kept_in_16_bits() -> None:
    preset = framework_preset("fsdp").changed({"recomputation.selective": "every_second_product"})
    wide = job(seq_len=SEQUENCE, preset=preset)
    recipe = replace(wide.precision, linear="fp8", scale_recipe="tensor", scaling="dynamic")
    bytes_of = [
        saved_bytes(written(small_model(), asked, "mtp", Layout.of(8), "selective").blocks[0])
        for asked in (wide, replace(wide, precision=recipe))
    ]
    assert bytes_of[0] == bytes_of[1]


def test_what_reduce_scatters_bring_is_kept_and_what_gathers_bring_is_not() -> None:
    predicted = second_products(strategy="fsp", tp=2)
    again = [op.collective for op in predicted.backward if op.phase is Phase.RECOMPUTE and isinstance(op, Comm)]
    assert again == [Collective.ALL_GATHER] * 2


@pytest.mark.parametrize("stops", [True, False])
def test_what_runs_again_may_end_with_the_last_thing_needed(stops: bool) -> None:
    """The last product's input is the last thing that a backward reads: neither its all-reduce nor the residual
    behind it runs again, so whole layers never have fewer collectives than every second product."""
    preset = framework_preset("fsdp").changed({"recomputation.stops_early": stops})
    again = {
        mode: written(small_model(), job(seq_len=SEQUENCE, preset=preset), "mtp", Layout.of(8, tp=2), mode).blocks[0]
        for mode in ("selective", "full")
    }
    collectives = {
        mode: [name for name, op in rerun_names(piece).items() if isinstance(op, Comm)] for mode, piece in again.items()
    }
    assert collectives["selective"] == collectives["full"]
    assert collectives["full"] == ["attention.out.leave", "mlp.down.leave"][: 1 if stops else 2]
    assert set(rerun_names(again["selective"])) <= set(rerun_names(again["full"]))


def test_the_hops_of_a_kept_ring_do_not_run_again() -> None:
    predicted = second_products(cp=2)
    assert any(op.name == "attention.ring_p2p" for op in predicted.forward)
    assert not {"attention.ring", "attention.ring_p2p", "attention.subtract_outputs"} & set(rerun_names(predicted))


def test_some_layers_of_a_stage_are_whole_and_the_others_plain() -> None:
    predicted = written(small_model(), job(seq_len=SEQUENCE), "mtp", Layout.of(8), "block").blocks
    assert len(predicted) == 2
    full, plain = predicted
    assert saved_bytes(full) == 2 * SEQUENCE * HIDDEN
    assert rerun_names(full)
    assert not rerun_names(plain)


# Full recomputation that keeps what some products of attention make: what runs again, and bytes kept.


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
    kept = [saved_bytes(layer(*names)) for names in ((), keeps)]
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


def test_attentions_result_stays_beside_what_its_backward_reads() -> None:
    """16 bits of every channel of its output, which the output product reads, and the sums of its rows."""
    kept = [saved_bytes(layer(*names)) for names in ((), ("context",))]
    block = small_model().blocks[0].block.mixer
    assert kept[1] - kept[0] == TOKENS * block.num_heads * (2 * block.v_dim + 4)
