"""DeepSeek-V4: layers of experts behind attention to a window and, in most, to entries that stand for many tokens.

Source: transformers 5.24 ``models/deepseek_v4/configuration_deepseek_v4.py`` (which takes the keys of older files too) and
``modeling_deepseek_v4.py``.
"""

from dataclasses import replace

from spec.mixers.compressed import CompressedAttentionSpec
from spec.model import BlockSpec, ModelSpec
from spec.readers.huggingface.decoder import model_of, read_experts
from spec.readers.huggingface.parts import predicting, read_layer_numbers, read_layers
from spec.readers.huggingface.type_facts import TypeFacts
from spec.section import Section

SELECTED, COMPRESSED, WINDOW = "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"
RATES = {WINDOW: 0, SELECTED: 4, COMPRESSED: 128}
"""Tokens of an entry, by default, and the names of kinds of layers in ``compress_ratios``."""
OLDER_KEYS = {SELECTED: "compress_rate_csa", COMPRESSED: "compress_rate_hca"}


def deepseek_v4(top: Section, facts: TypeFacts, name: str) -> ModelSpec:
    """Returns the model of a config. A table of tokens chooses the experts of the first layers, whose scores are not corrected."""
    layers = read_layers(top)
    kinds, moe = _layer_kinds(top, layers), read_experts(top, facts)
    by_table = [word == "hash_moe" for word in top.texts("mlp_layer_types", ("hash_moe", "moe"))]
    if not by_table:
        first = top.integer("num_hash_layers", 3, minimum=0)
        by_table = [index < first for index in range(layers)]
    if len(by_table) < layers:
        top.fail("mlp_layer_types", f"a list of {layers} texts, hash_moe or moe")
    blocks = [
        BlockSpec(mixer=_attention(top, kinds[index]), moe=replace(moe, router_bias=not by_table[index]))
        for index in range(layers)
    ]
    # layers that predict further tokens stand at the end of a list of all, or have windows alone
    further = BlockSpec(mixer=_attention(top, kinds[layers] if len(kinds) > layers else WINDOW), moe=moe)
    return model_of(top, facts, name, predicting(top, blocks, further))


def _layer_kinds(top: Section, layers: int) -> list[str]:
    kinds = list(top.texts("layer_types", tuple(RATES)))
    ratios = read_layer_numbers(top, "compress_ratios")
    if ratios and not kinds:
        named = {rate: kind for kind, rate in RATES.items()}
        kinds = [named.get(ratio, "") for ratio in ratios]
        if len(kinds) < layers or not all(kinds):
            top.fail("compress_ratios", f"{', '.join(map(str, named))}, one for each of {layers} layers")
    elif not kinds:
        kinds = [SELECTED if index > 2 and index % 2 else COMPRESSED for index in range(layers)]
    if len(kinds) < layers:
        top.fail("layer_types", f"a list of {layers} texts out of {', '.join(RATES)}")
    return kinds


def _attention(top: Section, kind: str) -> CompressedAttentionSpec:
    top.only("num_key_value_heads", (1,), "all heads read one key")
    top.only("attention_bias", (False,), "biases of this attention are not priced")
    heads, dim, groups = top.integer("num_attention_heads"), top.integer("head_dim"), top.integer("o_groups")
    if heads % groups:
        top.fail("o_groups", f"a divisor of num_attention_heads = {heads}")
    rate = RATES[kind]
    if kind in OLDER_KEYS:
        rate = top.integer(OLDER_KEYS[kind], top.section("compress_rates").integer(kind, rate))
    share = top.number("partial_rotary_factor", 64 / 512, maximum=1.0)
    selects = kind == SELECTED
    return CompressedAttentionSpec(
        num_heads=heads,
        head_dim=dim,
        rope_dim=top.integer("qk_rope_head_dim", int(dim * share)),
        q_lora_rank=top.integer("q_lora_rank"),
        window=top.integer("sliding_window"),
        out_groups=groups,
        out_rank=top.integer("o_lora_rank"),
        rate=rate,
        index_topk=top.integer("index_topk") if selects else 0,
        index_heads=top.integer("index_n_heads") if selects else 0,
        index_dim=top.integer("index_head_dim") if selects else 0,
    )
