"""What a ``config.json`` means by leaving a key out: defaults of each transformers configuration class.

Source: transformers 5.23, ``models/<type>/configuration_<type>.py``; Kimi K2: ``configuration_deepseek.py``
beside its weights. Held against the classes by benchmarks/huggingface_counts.py. Only keys that the readers
take and that configs of the type leave out: ``hidden_size`` and its like stand in every file, except in those
of Gemma 3 and Llama 4, whose text models are described inside of others.
"""

from collections.abc import Mapping

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
