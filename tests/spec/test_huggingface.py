"""Hugging Face configs: layer shapes from the keys of each model type, and published totals."""

import json
from pathlib import Path
from typing import Any

import pytest

from spec.errors import ConfigError
from spec.model import AttentionKind, ModelSpec, NormKind, PositionKind
from spec.parameters import num_parameters
from spec.read_config import read_config


def load(tmp_path: Path, content: dict[str, Any]) -> ModelSpec:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    config = read_config(path)
    assert (config.format, config.plan, config.seq_len) == ("huggingface", None, None)
    return config.model


# Shapes as published with each model; totals as its safetensors index sums them.
LLAMA_2_7B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rope_scaling": None,
    "rms_norm_eps": 1e-05,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
    "use_cache": True,
}
LLAMA_3_405B = {
    "model_type": "llama",
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "quantization_config": {"quant_method": "fp8"},
}
MISTRAL_7B = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "sliding_window": 4096,
}
MIXTRAL_8X7B = {
    **MISTRAL_7B,
    "model_type": "mixtral",
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.02,
}
QWEN2_72B = {
    "model_type": "qwen2",
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "use_sliding_window": False,
    "sliding_window": 131072,
    "max_window_layers": 80,
}
INTERNLM2_20B = {
    "model_type": "internlm2",
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "vocab_size": 92544,
    "bias": False,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
DEEPSEEK_V2 = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 60,
    "num_nextn_predict_layers": 0,
    "first_k_dense_replace": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "topk_method": "group_limited_greedy",
    "vocab_size": 102400,
}
DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V2,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "topk_method": "greedy",
}
GPT_2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "n_ctx": 1024,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
}
GPT_NEOX_20B = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "vocab_size": 50432,
    "max_position_embeddings": 2048,
}
QWEN2_57B_A14B = {
    "model_type": "qwen2_moe",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "vocab_size": 151936,
}


@pytest.mark.published
@pytest.mark.parametrize(
    ("content", "total"),
    [
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_3_405B, 405_853_388_800),
        (MISTRAL_7B, 7_241_732_096),
        (MIXTRAL_8X7B, 46_702_792_704),
        (QWEN2_72B, 72_706_203_648),
        (INTERNLM2_20B, 19_861_149_696),
        (QWEN3_30B_A3B, 30_532_122_624),
        (DEEPSEEK_V3, 671_026_419_200),
        (DEEPSEEK_V2, 235_741_434_880),
        (DEEPSEEK_V2_LITE, 15_706_484_224),
        (GPT_2, 124_439_808),
        (GPT_NEOX_20B, 20_554_567_680),
    ],
)
def test_totals_are_the_published_ones(tmp_path: Path, content: dict[str, Any], total: int) -> None:
    assert num_parameters(load(tmp_path, content)).total == total


@pytest.mark.published
@pytest.mark.parametrize(
    ("content", "active"),
    # rounded figures of the model cards and reports, embedding and head counted
    [(MIXTRAL_8X7B, 12.9), (QWEN3_30B_A3B, 3.3), (QWEN2_57B_A14B, 14.2), (DEEPSEEK_V2, 21.4)],
)
def test_active_parameters(tmp_path: Path, content: dict[str, Any], active: float) -> None:
    assert num_parameters(load(tmp_path, content)).active / 1e9 == pytest.approx(active, abs=0.06)


def test_deepseek_runs(tmp_path: Path) -> None:
    runs = load(tmp_path, DEEPSEEK_V3).blocks
    assert [(run.count, run.block.moe is not None, run.block.mtp) for run in runs] == [
        (3, False, False),
        (58, True, False),
        (1, True, True),
    ]
    attention, moe = runs[1].block.attention, runs[1].block.moe
    assert (attention.kind, attention.qk_dim, attention.rope_dim) == (AttentionKind.MLA, 192, 64)
    assert moe is not None
    assert (moe.shared_ffn_hidden, moe.router_bias) == (2048, True)


def test_deepseek_layers_between_routed_ones_are_dense(tmp_path: Path) -> None:
    model = load(tmp_path, {**DEEPSEEK_V2, "num_hidden_layers": 5, "moe_layer_freq": 2})
    assert [(run.count, run.block.moe is not None) for run in model.blocks] == [
        (2, False),
        (1, True),
        (1, False),
        (1, True),
    ]


def test_sparse_steps_and_dense_layers(tmp_path: Path) -> None:
    content = {**QWEN3_30B_A3B, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    runs = load(tmp_path, content).blocks
    assert [(run.count, run.block.moe is not None) for run in runs] == [(1, False), (1, True), (2, False)]


def test_windows(tmp_path: Path) -> None:
    assert load(tmp_path, MISTRAL_7B).blocks[0].block.attention.window == 4096
    assert load(tmp_path, {**MISTRAL_7B, "sliding_window": None}).blocks[0].block.attention.window is None
    assert load(tmp_path, QWEN2_72B).blocks[0].block.attention.window is None
    mixed = {**QWEN2_72B, "use_sliding_window": True, "max_window_layers": 70}
    runs = load(tmp_path, mixed).blocks
    assert [(run.count, run.block.attention.window) for run in runs] == [(70, None), (10, 131072)]


def test_gpt_families(tmp_path: Path) -> None:
    gpt2 = load(tmp_path, GPT_2)
    assert (gpt2.position, gpt2.norm, gpt2.tied_embeddings) == (PositionKind.LEARNED, NormKind.LAYER, True)
    neox = load(tmp_path, GPT_NEOX_20B)
    assert (neox.position, neox.tied_embeddings) == (PositionKind.ROTARY, False)
    assert neox.blocks[0].block.parallel_residual


def test_a_folder_stands_for_its_config_and_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-2-7b-hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_2_7B), encoding="utf-8")
    assert read_config(folder).model.name == "Llama-2-7b-hf"


BAD: list[tuple[str, dict[str, Any]]] = [
    ("model_type", {**LLAMA_2_7B, "model_type": "mamba"}),
    ("model_type", {"hidden_size": 4096}),
    ("hidden_size", {**LLAMA_2_7B, "hidden_size": 4096.5}),
    ("hidden_size", {**LLAMA_2_7B, "hidden_size": "4096"}),
    ("hidden_size", {**LLAMA_2_7B, "hidden_size": None}),
    ("num_hidden_layers", {**LLAMA_2_7B, "num_hidden_layers": -1}),
    ("num_hidden_layers", {**DEEPSEEK_V3, "num_hidden_layers": 10**12}),
    ("num_attention_heads", {**LLAMA_2_7B, "num_attention_heads": 31, "num_key_value_heads": 31}),
    ("num_key_value_heads", {**LLAMA_2_7B, "num_key_value_heads": 5}),
    ("vocab_size", {**LLAMA_2_7B, "vocab_size": 2**70}),
    ("attention_bias", {**LLAMA_2_7B, "attention_bias": 1}),
    ("num_experts_per_tok", {**MIXTRAL_8X7B, "num_experts_per_tok": 9}),
    ("mlp_only_layers", {**QWEN3_30B_A3B, "mlp_only_layers": "all"}),
    ("attention_bias", {**DEEPSEEK_V3, "attention_bias": True}),
    ("kv_lora_rank", {**DEEPSEEK_V3, "kv_lora_rank": None}),
]


@pytest.mark.parametrize(("key", "content"), BAD)
def test_bad_values_are_one_error(tmp_path: Path, key: str, content: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, content)
    assert refused.value.key == key
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", '{"hidden_size": NaN}', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_damaged_json_is_one_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(path)
