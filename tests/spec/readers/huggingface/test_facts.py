"""Rotary base and scaling, epsilon, activation and router: facts that a launch needs, whatever wrote them."""

import json
from pathlib import Path

import pytest

from spec.errors import ConfigError
from spec.mixers.attention import RopeScaling, RopeSpec
from spec.model import ModelSpec
from spec.readers.internlm import read_internlm_config
from spec.readers.read_config import read_config
from tests.spec.readers.huggingface.published import SHAPES, load, refusal

CONFIGS = Path(__file__).parents[4] / "configs"


def read(tmp_path: Path, name: str, **changes: object) -> ModelSpec:
    content = SHAPES[name] | changes
    return load(tmp_path, {key: value for key, value in content.items() if value != "gone"})


# rope_scaling of huggingface.co/meta-llama/Llama-3.1-405B and deepseek-ai/DeepSeek-V3, config.json
SCALING = json.loads(Path(__file__).with_name("rope_scaling.json").read_text(encoding="utf-8"))
LLAMA_3, DEEPSEEK = SCALING["llama_3_1_405b"], SCALING["deepseek_v3"]


def test_rope_as_older_and_newer_configs_write_it(tmp_path: Path) -> None:
    said = RopeSpec(
        base=500_000.0, scaling=RopeScaling(kind="llama3", factor=8.0, original_positions=8192, slow=1.0, fast=4.0)
    )
    older = read(tmp_path, "llama_3_405b", rope_theta=500_000.0, rope_scaling=LLAMA_3)
    newer = read(tmp_path, "llama_3_405b", rope_scaling="gone", rope_parameters={"rope_theta": 500_000.0, **LLAMA_3})
    assert older.rope == newer.rope == said
    yarn = read(tmp_path, "deepseek_v3", rope_theta=10_000, rope_scaling=DEEPSEEK).rope
    assert yarn == read_config(CONFIGS / "671B_deepseek_v3.toml").model.rope
    assert (yarn.scaling.kind, yarn.scaling.fast, yarn.scaling.mscale_all_dim) == ("yarn", 32.0, 1.0)
    none = read(tmp_path, "llama_3_405b", rope_scaling={"rope_type": "default"})
    assert none.rope == RopeSpec(base=10_000.0)


# defaults of transformers' configuration classes, for configs that leave the key out
@pytest.mark.parametrize(
    ("name", "rope", "epsilon", "activation"),
    [
        ("llama_2_7b", RopeSpec(), 1e-6, "silu"),
        ("mixtral_8x7b", RopeSpec(base=1_000_000.0), 1e-5, "silu"),
        ("gpt_neox_20b", RopeSpec(share=0.25), 1e-5, "gelu"),
        ("gpt_2", None, 1e-5, "gelu_tanh"),
    ],
)
def test_defaults_of_the_type(
    tmp_path: Path, name: str, rope: RopeSpec | None, epsilon: float, activation: str
) -> None:
    gone = dict.fromkeys(("rope_theta", "rope_scaling", "rms_norm_eps", "hidden_act", "rotary_pct"), "gone")
    model = read(tmp_path, name, **gone)
    block = model.blocks[0].block
    assert (model.rope, model.norm_epsilon) == (rope, epsilon)
    assert {part.activation for part in (block.mlp, block.moe) if part} == {activation}


def test_what_a_type_calls_otherwise(tmp_path: Path) -> None:
    keys = {"rotary_emb_base": 25_000, "rotary_pct": 0.5, "layer_norm_eps": 1e-6, "hidden_act": "gelu_new"}
    model = read(tmp_path, "gpt_neox_20b", **keys)
    assert (model.rope, model.norm_epsilon) == (RopeSpec(base=25_000.0, share=0.5), 1e-6)
    assert model.blocks[0].block.mlp.activation == "gelu_tanh"
    assert read(tmp_path, "llama_2_7b", rms_norm_eps=1e-5).norm_epsilon == 1e-5


def test_how_a_router_weighs_its_experts(tmp_path: Path) -> None:
    said = {"n_group": 8, "topk_group": 4, "scoring_func": "sigmoid", "routed_scaling_factor": 2.5}
    third = read(tmp_path, "deepseek_v3", norm_topk_prob=True, **said).blocks[-1].block.moe
    shipped = read_config(CONFIGS / "671B_deepseek_v3.toml").model.blocks[-1].block.moe
    assert third == shipped
    assert (third.score, third.route_scale, third.normalized) == ("sigmoid", 2.5, True)
    second = read(tmp_path, "deepseek_v2", routed_scaling_factor=16.0).blocks[-1].block.moe
    assert (second.score, second.route_scale, second.normalized) == ("softmax", 16.0, False)
    mixtral = read(tmp_path, "mixtral_8x7b").blocks[0].block.moe
    assert mixtral.normalized
    qwen = read(tmp_path, "qwen3_30b_a3b", norm_topk_prob="gone").blocks[0].block.moe
    assert not qwen.normalized


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("partial_rotary_factor", {"partial_rotary_factor": 1.5}),
        ("rope_theta", {"rope_theta": 0}),
        ("rms_norm_eps", {"rms_norm_eps": "1e-5"}),
        ("rope_scaling.factor", {"rope_scaling": {"type": "linear", "factor": -2}}),
        ("hidden_act", {"hidden_act": 3}),
    ],
)
def test_bad_facts_are_one_error(tmp_path: Path, key: str, changes: dict[str, object]) -> None:
    assert refusal(tmp_path, SHAPES["llama_2_7b"] | changes).key == key


INTERNLM = """
model_type = "INTERNLM2_PUBLIC"
model = dict(num_layers=4, hidden_size=256, num_attention_heads=4, vocab_size=512, mlp_ratio=2.0, {more})
"""


def test_internlm_configs_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(INTERNLM.format(more=""))
    model = read_internlm_config(path).model
    assert (model.rope, model.norm_epsilon) == (RopeSpec(), 1e-5)  # InternLM2's defaults in InternEvo
    more = "rope_base=1e6, layer_norm_epsilon=1e-6, use_dynamic_ntk_rope=True, rope_scaling_factor=2.0"
    path.write_text(INTERNLM.format(more=more))
    model = read_internlm_config(path).model
    assert model.rope == RopeSpec(base=1e6, scaling=RopeScaling(kind="dynamic", factor=2.0))
    assert model.norm_epsilon == 1e-6
    routed = 'num_experts=8, top_k=2, moe_type="Dropless", moe_layer_kwargs=dict({more})'
    path.write_text(INTERNLM.format(more=routed.format(more="")))
    moe = read_internlm_config(path).model.blocks[0].block.moe
    assert (moe.score, moe.normalized, moe.route_scale) == ("softmax", True, 1.0)
    kwargs = 'scoring_func="sigmoid", normalize_expert_weights=False, routed_scaling_factor=2.5'
    path.write_text(INTERNLM.format(more=routed.format(more=kwargs)))
    moe = read_internlm_config(path).model.blocks[0].block.moe
    assert (moe.score, moe.normalized, moe.route_scale) == ("sigmoid", False, 2.5)


TOML = """
source = "made for this test"
[model]
hidden = 256
vocab = 512
norm_epsilon = 1e-6
rope = { base = 25000, share = 0.5, scaling = { kind = "linear", factor = 4 } }
[[model.blocks]]
count = 2
attention = { num_heads = 4 }
moe = { num_experts = 4, topk = 2, expert_ffn_hidden = 64, gated = false, activation = "squared_relu", score = "sigmoid", normalized = false, route_scale = 2.5 }
"""


def test_toml_configs_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(TOML)
    model = read_config(path).model
    assert model.rope == RopeSpec(base=25_000.0, share=0.5, scaling=RopeScaling(kind="linear", factor=4.0))
    assert model.norm_epsilon == 1e-6
    moe = model.blocks[0].block.moe
    assert (moe.activation, moe.score, moe.normalized, moe.route_scale) == ("squared_relu", "sigmoid", False, 2.5)
    path.write_text(TOML.replace("rope = {", 'position = "none"\nrope = {'))
    with pytest.raises(ConfigError, match="rotary positions only"):
        read_config(path)
    path.write_text(TOML.replace("share = 0.5", "share = 2"))
    with pytest.raises(ConfigError, match=r"rope\.share"):
        read_config(path)
