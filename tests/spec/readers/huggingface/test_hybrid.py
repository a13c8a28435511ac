"""Nemotron-H and Nemotron-3: one block a letter; Qwen3-Next: three layers of the gated delta rule and one of gated
attention; all with the parameters of the published weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from spec.mixers.attention import AttentionSpec
from spec.mixers.gated_delta import GatedDeltaSpec
from spec.mixers.mamba2 import Mamba2Spec
from spec.model import MlpSpec, PositionKind
from spec.parameters import num_parameters
from tests.solver.questions import ROOT
from tests.spec.readers.huggingface.published import SHAPES, load, refusal

H_8B, NANO, NEXT_80B = (
    json.loads((ROOT / "configs" / f"{name}.json").read_text())
    for name in ("8B_nemotron_h", "30B_nemotron3_nano", "80B_qwen3_next")
)
H_56B, SUPER = SHAPES["nemotron_h_56b"], SHAPES["nemotron3_super"]


@pytest.mark.published
def test_nemotron_h_8b_has_the_parameters_of_its_weights(tmp_path: Path) -> None:
    """Tensors of nvidia/Nemotron-H-8B-Base-8K: 8,100,852,736."""
    model = load(tmp_path, H_8B)
    assert num_parameters(model).total == 8_100_852_736
    assert (model.num_layers, model.position, model.rope) == (52, PositionKind.NONE, None)


@pytest.mark.published
def test_nemotron3_nano_has_the_parameters_of_its_weights(tmp_path: Path) -> None:
    """Hugging Face counts 31,577,937,344 trained elements in its safetensors; the 23 x 128 score corrections are
    buffers there. Active, with embedding and head: 3.6 B (arXiv 2512.20848)."""
    count = num_parameters(load(tmp_path, NANO))
    assert count.total - count.router_bias == 31_577_937_344
    assert count.router_bias == 23 * 128
    assert count.active / 1e9 == pytest.approx(3.6, abs=0.05)


@pytest.mark.published
def test_larger_models_are_as_published(tmp_path: Path) -> None:
    """Nemotron-H 56B (arXiv 2504.03624); Nemotron-3 Super: 120.6 B, 12.7 B of them active (arXiv 2604.12374)."""
    assert num_parameters(load(tmp_path, H_56B)).total / 1e9 == pytest.approx(56, abs=0.5)
    count = num_parameters(load(tmp_path, SUPER))
    assert count.total / 1e9 == pytest.approx(120.6, abs=0.1)
    assert count.active / 1e9 == pytest.approx(12.7, abs=0.1)


def test_what_predicts_one_more_token_is_one_block(tmp_path: Path) -> None:
    """Super's *E: three norms and 2h -> h beside attention and experts, with a norm before each."""
    model = load(tmp_path, SUPER)
    last = model.blocks[-1].block
    assert last.mtp
    assert last.mixer is not None
    assert last.moe is not None
    assert model.num_layers == 88
    attention, experts = (
        next(run.block for run in model.blocks if wanted(run.block))
        for wanted in (lambda block: block.mixer == last.mixer, lambda block: block.moe == last.moe)
    )
    assert attention.moe is None
    assert experts.mixer is None


def test_letters_and_names_say_the_same(tmp_path: Path) -> None:
    """Two feed-forward layers may follow each other, as in Nemotron-H 47B (M---MM)."""
    short = {key: value for key, value in NANO.items() if key not in ("hybrid_override_pattern", "num_hidden_layers")}
    letters = load(tmp_path, {**short, "hybrid_override_pattern": "M--*E"})
    named = ["linear_attention", "mlp", "mlp", "full_attention", "moe"]
    assert load(tmp_path, {**short, "layers_block_type": named}).blocks == letters.blocks
    assert [run.count for run in letters.blocks] == [1, 2, 1, 1]
    mixer = letters.blocks[0].block.mixer
    assert mixer == Mamba2Spec(num_heads=64, head_dim=64, state_size=128, num_groups=8, chunk_size=128)
    assert [run.block.mlp is not None for run in letters.blocks] == [False, True, False, False]


def test_what_a_config_leaves_out_is_its_classes(tmp_path: Path) -> None:
    """NemotronHConfig and Qwen3NextConfig, the defaults of transformers."""
    sizes = {"hidden_size": 4096, "vocab_size": 131072, "num_attention_heads": 32, "num_key_value_heads": 8}
    bare = {"model_type": "nemotron_h", **sizes, "hybrid_override_pattern": "M*-", "intermediate_size": 21504}
    mamba, attention, mlp = (run.block for run in load(tmp_path, bare).blocks)
    assert mamba.mixer == Mamba2Spec(
        num_heads=128, head_dim=64, state_size=128, num_groups=8, conv_kernel=4, chunk_size=128
    )
    assert isinstance(attention.mixer, AttentionSpec)
    assert (attention.mixer.qk_dim, attention.mixer.window, attention.mixer.qkv_bias) == (128, None, False)
    assert mlp.mlp == MlpSpec(ffn_hidden=21504, gated=False, activation="squared_relu")
    named = {key: value for key, value in NEXT_80B.items() if not key.startswith("linear_")}
    left = ("head_dim", "full_attention_interval", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")
    short = {key: value for key, value in named.items() if key not in left}
    assert load(tmp_path, short).blocks == load(tmp_path, NEXT_80B).blocks


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("hybrid_override_pattern", {**H_8B, "hybrid_override_pattern": "M-X"}),
        ("hybrid_override_pattern", {**H_8B, "hybrid_override_pattern": None}),
        ("layers_block_type", {**H_8B, "hybrid_override_pattern": None, "layers_block_type": ["rnn"]}),
        ("num_hidden_layers", {**H_8B, "num_hidden_layers": 53}),
        ("use_bias", {**H_8B, "use_bias": True}),
        ("residual_in_fp32", {**H_8B, "residual_in_fp32": True}),
        ("n_groups", {**H_8B, "n_groups": 7}),
        ("n_shared_experts", {**NANO, "n_shared_experts": 2}),
        ("n_group", {**NANO, "n_group": 3}),
        ("mtp_hybrid_override_pattern", {**SUPER, "mtp_hybrid_override_pattern": "EE"}),
        ("layer_types", {**NEXT_80B, "layer_types": ["full_attention"]}),
        ("layer_types", {**NEXT_80B, "num_hidden_layers": 1, "layer_types": ["mamba"]}),
        ("linear_num_key_heads", {**NEXT_80B, "linear_num_key_heads": 5}),
        ("num_experts_per_tok", {**NEXT_80B, "num_experts_per_tok": 513}),
    ],
)
def test_bad_values_are_one_error(tmp_path: Path, key: str, content: dict[str, Any]) -> None:
    assert refusal(tmp_path, content).key == key


@pytest.mark.published
def test_qwen3_next_has_the_parameters_of_its_weights(tmp_path: Path) -> None:
    """Hugging Face counts 81,324,862,720 in Qwen3-Next-80B-A3B's safetensors, the layer that predicts one more token
    included, which its config does not mention."""
    count = num_parameters(load(tmp_path, {**NEXT_80B, "num_nextn_predict_layers": 1}))
    assert count.total + count.mtp == 81_324_862_720
    assert count.total == num_parameters(load(tmp_path, NEXT_80B)).total


def test_every_fourth_layer_is_gated_attention(tmp_path: Path) -> None:
    runs = load(tmp_path, NEXT_80B).blocks
    assert [run.count for run in runs] == [3, 1] * 12
    delta, attention = (run.block.mixer for run in runs[:2])
    assert delta == GatedDeltaSpec(num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128)
    assert isinstance(attention, AttentionSpec)
    assert (attention.output_gate, attention.qk_norm, attention.qk_dim) == (True, True, 256)
    moe = runs[0].block.moe
    assert (moe.shared_ffn_hidden, moe.shared_gate, moe.normalized) == (512, True, True)


def test_layers_may_be_listed(tmp_path: Path) -> None:
    kinds = ["full_attention", "linear_attention", "linear_attention"]
    runs = load(tmp_path, {**NEXT_80B, "num_hidden_layers": 3, "layer_types": kinds}).blocks
    assert [(run.count, type(run.block.mixer)) for run in runs] == [(1, AttentionSpec), (2, GatedDeltaSpec)]
    rope = load(tmp_path, {key: value for key, value in NEXT_80B.items() if key != "partial_rotary_factor"}).rope
    assert rope.share == 0.25
