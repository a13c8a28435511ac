"""How many parameters the model has that a framework builds from an export, recounted from the export alone.

Megatron-LM: core/models/gpt (gpt_model.py, gpt_layer_specs.py), core/transformer (attention.py,
multi_latent_attention.py, mlp.py, moe/), of flags as parsed, on a raw vocabulary. InternEvo:
internlm/model/modeling_*.py and modules/ (mha.py, mlp.py, norm.py), moe/. Nothing of spec.parameters is used.
"""

import argparse
import re
from collections.abc import Mapping
from typing import Any


def megatron_parameters(flags: argparse.Namespace) -> int:
    """Without multi-token prediction, whose blocks ``megatron_predicting`` counts."""
    hidden = flags.hidden_size
    norm = hidden if flags.normalization == "RMSNorm" else 2 * hidden
    embedding = flags.vocab_size * hidden
    if flags.position_embedding_type == "learned_absolute":
        embedding += flags.max_position_embeddings * hidden
    if flags.untie_embeddings_and_output_weights:
        embedding += flags.vocab_size * hidden
    return embedding + norm + sum(_layer(flags, routed) for routed in _routed(flags))


def megatron_predicting(flags: argparse.Namespace) -> int:
    """Multi-token prediction: two norms of the inputs, one of the output, their projection, a layer as the last."""
    hidden = flags.hidden_size
    norm = hidden if flags.normalization == "RMSNorm" else 2 * hidden
    extra = 3 * norm + 2 * hidden * hidden
    return (flags.mtp_num_layers or 0) * (extra + _layer(flags, _routed(flags)[-1]))


def _routed(flags: argparse.Namespace) -> list[bool]:
    """Which layers have experts: all, none, or the pattern of --moe-layer-freq, such as ([0]*3+[1]*58)."""
    if flags.moe_layer_freq is None:
        return [flags.num_experts is not None] * flags.num_layers
    runs = re.findall(r"\[(\d)\]\*(\d+)", flags.moe_layer_freq)
    return [kind == "1" for kind, count in runs for _ in range(int(count))]


def _layer(flags: argparse.Namespace, routed: bool) -> int:
    hidden = flags.hidden_size
    norm = hidden if flags.normalization == "RMSNorm" else 2 * hidden
    attention = _latent(flags) if flags.multi_latent_attention else _attention(flags)
    return 2 * norm + attention + (_experts(flags) if routed else _mlp(flags, flags.ffn_hidden_size))


def _attention(flags: argparse.Namespace) -> int:
    hidden, heads = flags.hidden_size, flags.num_attention_heads
    channels = flags.kv_channels or hidden // heads
    groups = flags.num_query_groups if flags.group_query_attention else heads
    columns = (heads + 2 * groups) * channels
    biases = not flags.disable_bias_linear
    count = columns * hidden + heads * channels * hidden
    count += columns if biases or flags.add_qkv_bias else 0
    count += hidden if biases else 0
    return count + (2 * channels if flags.qk_layernorm else 0)


def _latent(flags: argparse.Namespace) -> int:
    """Down and up projections; the norms of the latents exist with --qk-layernorm alone."""
    hidden, heads, rank = flags.hidden_size, flags.num_attention_heads, flags.kv_lora_rank
    query = flags.qk_head_dim + flags.qk_pos_emb_head_dim
    if flags.q_lora_rank:
        count = hidden * flags.q_lora_rank + flags.q_lora_rank * heads * query
        count += flags.q_lora_rank if flags.qk_layernorm else 0
    else:
        count = hidden * heads * query
    count += hidden * (rank + flags.qk_pos_emb_head_dim) + rank * heads * (flags.qk_head_dim + flags.v_head_dim)
    return count + (rank if flags.qk_layernorm else 0) + heads * flags.v_head_dim * hidden


def _mlp(flags: argparse.Namespace, width: int) -> int:
    inward = 2 if flags.swiglu else 1
    count = (inward + 1) * flags.hidden_size * width
    return count + (0 if flags.disable_bias_linear else inward * width + flags.hidden_size)


def _experts(flags: argparse.Namespace) -> int:
    count = flags.num_experts * (flags.hidden_size + _mlp(flags, flags.moe_ffn_hidden_size))
    count += flags.num_experts if flags.moe_router_enable_expert_bias else 0
    shared = flags.moe_shared_expert_intermediate_size
    count += _mlp(flags, shared) if shared else 0
    return count + (flags.hidden_size if getattr(flags, "moe_shared_expert_gate", False) else 0)


def internevo_parameters(config: Mapping[str, Any]) -> int:
    """Of the names of a config. Experts have no biases; a shared one has a gate in Qwen's layers."""
    model, kind = config["model"], config["model_type"]
    hidden, heads, kv = model["hidden_size"], model["num_attention_heads"], model["num_kv_attention_heads"]
    channels = model.get("head_dim", hidden // heads)
    plain = kind == "INTERNLM2_PUBLIC"
    qkv_bias = not model["no_bias"] if plain else model["qkv_bias"]
    out_bias = not model["no_bias"] if plain else model["o_bias"]
    mlp_bias = not model["no_bias"] if plain else model.get("mlp_bias", False)
    norm = hidden if model["norm_type"] == "rmsnorm" else 2 * hidden
    columns = (heads + 2 * kv) * channels
    layer = 2 * norm + columns * (hidden + qkv_bias) + heads * channels * hidden + hidden * out_bias
    layer += 2 * channels if kind == "QWEN3MOE" else 0
    unit = model["multiple_of"]
    width = unit * -(-int(hidden * model["mlp_ratio"]) // unit)
    expert = 3 * hidden * width
    if "num_experts" in model:
        shared = model["num_shared_experts"]
        layer += model["num_experts"] * (expert + hidden) + shared * expert
        layer += hidden if shared and kind != "MIXTRALMOE" else 0
    else:
        layer += expert + mlp_bias * (2 * width + hidden)
    return 2 * model["vocab_size"] * hidden + norm + model["num_layers"] * layer
