"""Hugging Face ``config.json`` files: what each model type says about the model.

The keys read are those that fix the shapes of the layers, with the defaults of the transformers configuration
class of that type, and what a launch needs besides. Everything else (initialisation, token ids, generation, quantisation of
the stored weights, versions) cannot change the cost of training and is passed over. Of a model that also sees or
hears the text model is read. Model types not in the table are refused, or read as one of ASSUMABLE where that
is requested.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from spec.errors import ConfigError
from spec.files import read_text
from spec.model import ModelSpec
from spec.readers.huggingface import dense, hybrid, moe
from spec.section import Section

GEMMA = {"head_dim": 256, "tie_word_embeddings": True}
OF_TYPE: dict[str, Mapping[str, object]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "mixtral": {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_key_value_heads": 16},
    "qwen3_next": {"num_key_value_heads": 2},
    "nemotron_h": {"num_key_value_heads": 8},
    "qwen3_moe": {"num_key_value_heads": 4},
    "gemma": {**GEMMA, "num_key_value_heads": 16},
    "gemma2": {
        **GEMMA,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        **GEMMA,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
    },
    "phimoe": {"num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 2},
    "gpt_oss": {
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "attention_bias": True,
    },
    "glm4": {"num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
    "glm4_moe": {
        "num_key_value_heads": 8,
        "first_k_dense_replace": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": True,
    },
    "deepseek_v2": {
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "q_lora_rank": 1536,
    },
    "deepseek_v3": {
        "q_lora_rank": 1536,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "n_group": 8,
        "topk_group": 4,
    },
    "kimi_k2": {"norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "olmoe": {"num_experts": 64, "num_experts_per_tok": 8},
    "olmo3": {"sliding_window": 4096},
    "falcon": {"multi_query": True, "parallel_attn": True, "tie_word_embeddings": True},
    "bloom": {"tie_word_embeddings": True},
    "opt": {"tie_word_embeddings": True},
    "gpt_bigcode": {"multi_query": True, "tie_word_embeddings": True},
    "starcoder2": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "granitemoeshared": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "granitemoehybrid": {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        "mamba_n_heads": 128,
        "mamba_d_head": "auto",
    },
    "seed_oss": {"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
    "smollm3": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True, "sliding_window": 4096},
    "llama4_text": {
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 8192,
    },
    "minimax_m2": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
    },
    "ernie4_5": {"num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True},
    "ernie4_5_moe": {
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_intermediate_size": 1536,
    },
    "exaone4": {"num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4},
    "stablelm": {"num_key_value_heads": 32},
    "bamba": {"num_key_value_heads": 8, "mamba_n_heads": 128, "mamba_d_head": "auto"},
    "mamba2": {"num_heads": 128, "head_dim": 64},
}
OLDER = {"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
OTHER_NAMES: dict[str, Mapping[str, str]] = {
    "bloom": OLDER,
    "falcon": OLDER,
    "qwen3_moe": {"num_local_experts": "num_experts"},
}
"""Names of keys in files that other releases of transformers wrote (attribute_map of the class)."""


def with_defaults(model_type: str, said: Mapping[str, object]) -> dict[str, object]:
    """``said`` under the names that readers ask for, and what it leaves out; a key that is written as null stays so."""
    others = OTHER_NAMES.get(model_type, {})
    named = {others.get(key, key): value for key, value in said.items()}
    return {**OF_TYPE.get(model_type, {}), **named}


# Which function reads which ``model_type``.
Reader = Callable[[Section, str], ModelSpec]
MODEL_TYPES: dict[str, Reader] = {
    "llama": dense.llama,
    "mistral": dense.mistral,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "internlm2": dense.internlm2,
    "gpt2": dense.gpt2,
    "gpt_neox": dense.gpt_neox,
    "mixtral": moe.mixtral,
    "qwen2_moe": moe.qwen2_moe,
    "qwen3_moe": moe.qwen3_moe,
    "deepseek_v2": moe.deepseek,
    "deepseek_v3": moe.deepseek,
    "kimi_k2": moe.deepseek,
    "nemotron_h": hybrid.nemotron_h,
    "qwen3_next": hybrid.qwen3_next,
    "gemma": dense.gemma,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3,
    "phi": dense.phi,
    "phi3": dense.phi3,
    "phimoe": moe.phimoe,
    "gpt_oss": moe.gpt_oss,
    "glm4": dense.glm4,
    "glm4_moe": moe.glm4_moe,
    "olmo2": dense.olmo2,
    "olmo3": dense.olmo3,
    "olmoe": moe.olmoe,
    "falcon": dense.falcon,
    "bloom": dense.bloom,
    "opt": dense.opt,
    "gpt_bigcode": dense.gpt_bigcode,
    "starcoder2": dense.starcoder2,
    "granite": dense.llama,
    "granitemoe": moe.granitemoe,
    "granitemoeshared": moe.granitemoe,
    "granitemoehybrid": hybrid.granitemoehybrid,
    "seed_oss": dense.seed_oss,
    "smollm3": dense.llama,
    "cohere": dense.cohere,
    "cohere2": dense.cohere2,
    "llama4_text": moe.llama4,
    "minimax_m2": moe.minimax_m2,
    "ernie4_5": dense.ernie4_5,
    "ernie4_5_moe": moe.ernie4_5_moe,
    "hunyuan_v1_dense": dense.hunyuan,
    "exaone4": dense.exaone4,
    "nemotron": dense.nemotron,
    "stablelm": dense.stablelm,
    "bamba": hybrid.bamba,
    "mamba2": hybrid.mamba2,
}
TEXT_TYPES = {"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral", "llava": "llama"}
"""Type of the text model inside of one that also sees or hears, where its own section does not say."""

MAMBA_1 = "Mamba-1's scan runs on the vector units, an exponential for each state of each channel and token: no operation prices it"
UNREAD = dict.fromkeys(("mamba", "falcon_mamba", "jamba", "zamba"), MAMBA_1)
"""Types that no reader is right for, whatever is assumed, and why: their layers would be priced as others.
Source of the scan: arXiv 2312.00752 sec. 3.3.2; state-spaces/mamba
csrc/selective_scan/selective_scan_fwd_kernel.cuh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """A reader for types that are not known; ``words`` say what is taken for granted then."""

    read: Reader
    words: str


ASSUMABLE: dict[str, Assumed] = {
    "llama": Assumed(
        read=dense.llama,
        words="read as llama: gated feed-forward layers, an RMSNorm before each half, rotary positions, full attention, biases "
        "only where attention_bias and mlp_bias say so, a head apart from the embedding unless tie_word_embeddings",
    )
}


NESTED = "text_config"
SHAPES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Keys that every type of ASSUMABLE has."""
ROUTED = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "kv_lora_rank",
    "layer_types",
)
"""Keys of layers that no type of ASSUMABLE has."""


def read_huggingface_model(path: Path, assume: str | None = None) -> ModelSpec:
    """The model of a ``config.json``; ``assume`` is the type that an unknown one is read as.

    Raises ConfigError for a file that is no JSON object, an unknown model_type or a bad value.
    """
    where = str(path)
    values = _json_object(read_text(path, where), where)
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    top = Section(where=where, name="", values=values)
    outer = top.text("model_type")
    if outer in MODEL_TYPES or not top.has(NESTED):
        return _read(top, name, assume)
    inside = top.section(NESTED)
    inside.values = {"model_type": TEXT_TYPES.get(outer, outer), **inside.values}
    model = _read(inside, name, assume)
    note = f"the text model of {outer} alone: what sees or hears is left out"
    return replace(model, assumptions=(note, *model.assumptions))


def _read(top: Section, name: str, assume: str | None) -> ModelSpec:
    model_type = top.text("model_type")
    if model_type in MODEL_TYPES:
        if assume is not None:
            top.fail("model_type", f"a type that is not known: --assume {assume} is for these alone")
        return MODEL_TYPES[model_type](_section(top, model_type), name)
    if model_type in UNREAD:
        top.fail("model_type", f"a type whose layers can be priced; {UNREAD[model_type]}")
    alike = all(top.has(key) for key in SHAPES) and not any(top.has(key) for key in ROUTED)
    if assume is None or not alike:
        also = f"; --assume {' or '.join(ASSUMABLE)} reads it as such a model" if alike else ""
        top.fail("model_type", f"one of {', '.join(MODEL_TYPES)}{also}")
    return replace(
        ASSUMABLE[assume].read(top, name), assumptions=(f"{model_type} is {ASSUMABLE[assume].words}",)
    )


def _section(top: Section, model_type: str) -> Section:
    """The section with what it leaves out."""
    return Section(where=top.where, name=top.name, values=with_defaults(model_type, top.values))


def _json_object(text: str, where: str) -> Mapping[str, object]:
    def refuse_constant(token: str) -> NoReturn:
        raise ValueError(f"{token} is no number")

    try:
        content = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where=where, key="config", value=text[:40], allowed=f"JSON ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(where=where, key="config", value=text[:40], allowed="a JSON object")
    return content
