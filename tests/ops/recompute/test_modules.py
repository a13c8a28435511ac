"""Modules that run again: what repeats, what is let go, what stays."""

import numpy as np
import pytest

from ops.block import layer_ops
from ops.layout import Layout
from ops.op import Op, Pass, Phase
from ops.recompute import MODULES, Recompute, affecting_modules, recompute_named
from ops.roles import Module, OpKey, Role
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.solver.questions import ROOT

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
        piece = recompute_named(part, names)
        return repeated(piece), saved(piece)

    # The layer, and each operation of it alone: what one lets go of another may run again.
    for part in (plain, *(Pass(forward=(op,), backward=()) for op in plain.forward if op.saved_bytes.any())):
        felt = affecting_modules(part, MODULES)
        assert {name for name in MODULES if done(part, name) != done(part)} <= set(felt)
        assert done(part, *felt) == done(part, *MODULES)
    assert {name for name in MODULES if done(plain, name) != done(plain)} == set(
        affecting_modules(plain, MODULES)
    )
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
