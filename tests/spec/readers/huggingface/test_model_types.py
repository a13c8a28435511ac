"""Every model type: its parameters as transformers' own models have them (counts.json, which benchmarks/huggingface_counts.py
writes and says how), and its row of docs/models.md, which --update-golden writes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec.mixers.attention import AttentionSpec
from spec.parameters import num_parameters
from spec.readers.huggingface.reader import ASSUMABLE
from spec.readers.huggingface.type_facts import known_types, nested_defaults, refusals, type_facts
from spec.readers.read_config import read_config
from tests.spec.readers.huggingface.published import SHAPES, load, refusal

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "counts.json").read_text(encoding="utf-8"))["counts"]


def test_a_reader_counts_what_transformers_does(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for row in ROWS:
        path.write_text(json.dumps(row["says"]), encoding="utf-8")
        model = read_config(path).model
        assert num_parameters(model).total == row["parameters"] + sum(row["buffers"].values()), row["name"]


def test_every_type_is_counted() -> None:
    """InternLM2's and Ling 2.0's models lie beside their weights alone; some types stand only behind images or sound."""
    counted = {row["says"]["model_type"] for row in ROWS}
    inside = {nested_defaults(outer).get("text") for outer in counted}
    assert set(known_types()) - counted - inside == {"internlm2", "bailing_moe_v2"}


PAGE = Path(__file__).parents[4] / "docs" / "models.md"
TABLE = json.loads((Path(__file__).parent / "counts.json").read_text(encoding="utf-8"))
HEADS = (
    "| model type | what its reader honours | counted, in parameters |\n|---|---|---|\n",
    "| text model | behind images or sound in |\n|---|---|\n",
    "| refused because | types |\n|---|---|\n",
)


def read_rows() -> list[str]:
    """A row for each type that is read, with the counts of its models."""
    lines = []
    for model_type in known_types():
        counted = "; ".join(_words(row) for row in TABLE["counts"] if row["says"]["model_type"] == model_type)
        lines.append(f"| `{model_type}` | {type_facts(model_type).words} | {counted} |")
    return lines


def _words(row: dict[str, Any]) -> str:
    name = row["name"].removeprefix(f"{row['says']['model_type']}, ")
    corrections = sum(row["buffers"].values())
    return f"{name} {row['parameters']:,}" + (f" + {corrections:,}" if corrections else "")


def outer_rows() -> list[str]:
    """A row for each type that stands inside of others, which are counted too."""
    counted = [row["says"]["model_type"] for row in ROWS]
    inside = {outer: nested_defaults(outer)["text"] for outer in dict.fromkeys(counted) if nested_defaults(outer)}
    texts = [name for name in known_types() if name in inside.values()]
    return [
        f"| `{text}` | {', '.join(f'`{outer}`' for outer, one in inside.items() if one == text)} |" for text in texts
    ]


def refused_rows() -> list[str]:
    """A row for each reason."""
    reasons = dict.fromkeys(refusals().values())
    return [
        f"| {why} | {', '.join(f'`{name}`' for name, one in refusals().items() if one == why)} |" for why in reasons
    ]


@pytest.mark.parametrize(("head", "rows"), list(zip(HEADS, (read_rows, outer_rows, refused_rows), strict=True)))
def test_the_tables_are_those_of_the_readers(
    head: str, rows: Callable[[], list[str]], request: pytest.FixtureRequest
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.search(rf"{re.escape(head)}(\|.*\n)*", text)
    table = head + "\n".join(rows()) + "\n"
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text.replace(shown[0], table), encoding="utf-8")
        return
    assert shown[0] == table


def test_the_page_names_what_it_was_counted_with_and_what_may_be_assumed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"transformers {TABLE['transformers']}" in text
    assert all(f"`--assume {name}`" in text for name in ASSUMABLE)


# What single types write in keys of their own: the values of their published files, or as their classes take older ones.
SMALL = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "intermediate_size": 512,
}


@pytest.mark.parametrize(
    ("model_type", "says", "expected"),
    [
        ("gpt_neo", {"num_layers": 4, "attention_types": [[["global", "local"], 2]]}, [None, 256, None, 256]),
        ("mimo_v2_flash", {"num_hidden_layers": 3, "hybrid_layer_pattern": [0, 1, 0]}, [None, 129, None]),
        ("mimo_v2_flash", {"num_hidden_layers": 7}, [None, *[129] * 4, None, 129]),
        ("flint", {"num_hidden_layers": 8}, [None, None, 513, 513, 513, None, 513, None]),
        ("muse_glimmer_text", {"num_hidden_layers": 5}, [None, 2048, 2048, 2048, None]),
        ("exaone_moe", {"num_hidden_layers": 4, "sliding_window": None}, [None] * 4),
        ("dots1", {"num_hidden_layers": 3, "max_window_layers": 2, "n_routed_experts": None}, [None, None, 4096]),
    ],
)
def test_windows_of_single_types(
    tmp_path: Path, model_type: str, says: dict[str, Any], expected: list[int | None]
) -> None:
    model = load(tmp_path, {"model_type": model_type, **SMALL, **says, "head_dim": 64})
    assert [run.block.mixer.window for run in model.main_blocks for _ in range(run.count)] == expected


def test_heads_and_gates_of_single_types(tmp_path: Path) -> None:
    """MiMo's sinks and twice the heads of keys stand with windows; Laguna and Step 3.5 have other heads in some layers."""
    few = {**SMALL, "head_dim": 64, "num_hidden_layers": 2}
    listed = {"layer_types": ["full_attention", "sliding_attention"]}

    def attention(model_type: str, **says: object) -> list[AttentionSpec]:
        return [run.block.mixer for run in load(tmp_path, {"model_type": model_type, **few, **says}).blocks]

    mimo = attention("mimo_v2_flash", **listed, v_head_dim=32)
    assert [(each.num_kv_heads, each.sinks, each.v_dim) for each in mimo] == [(2, False, 32), (4, True, 32)]
    step = attention("step3p5", **listed, sliding_window=8, attention_other_setting={"num_attention_heads": 6})
    assert [(each.num_heads, each.head_gate) for each in step] == [(4, True), (6, True)]
    laguna = attention("laguna", num_attention_heads_per_layer=[4, 8], gating="per-element")
    assert [(each.num_heads, each.output_gate, each.head_gate) for each in laguna] == [
        (4, True, False),
        (8, True, False),
    ]
    assert refusal(tmp_path, {"model_type": "laguna", **few, "gating": "none"}).key == "gating"


@pytest.mark.parametrize(
    ("says", "borrows"),
    [
        ({}, [False] * 6),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 2}, [False, False, True, False, True, False]),
        ({"index_topk_pattern": "FSSFFS"}, [False, True, True, False, False, True]),
        ({"indexer_types": ["full", "shared"] * 3}, [False, True] * 3),
    ],
)
def test_layers_that_take_the_selection_of_the_one_before(
    tmp_path: Path, says: dict[str, Any], borrows: list[bool]
) -> None:
    """transformers configuration_glm_moe_dsa.py, __post_init__."""
    model = load(tmp_path, {"model_type": "glm_moe_dsa", "num_hidden_layers": 6, **says})
    mixers = [run.block.mixer for run in model.main_blocks for _ in range(run.count)]
    assert [each.index_heads == 0 for each in mixers] == borrows
    assert {each.index_topk for each in mixers} == {2048}
    short = {"model_type": "glm_moe_dsa", "num_hidden_layers": 6, "indexer_types": ["shared"] * 6}
    assert refusal(tmp_path, short).key == "indexer_types"


def test_gemma_4_has_other_heads_in_layers_of_full_attention(tmp_path: Path) -> None:
    """transformers configuration_gemma4.py, Gemma4TextConfig: by keys for all of them, or layer by layer as it writes them."""
    few = {
        "model_type": "gemma4_text",
        **SMALL,
        "hidden_size_per_layer_input": 0,
        "num_hidden_layers": 8,
        "head_dim": 64,
    }

    def heads(**says: object) -> list[tuple[int, int, bool]]:
        model = load(tmp_path, {**few, **says})
        mixers = [run.block.mixer for run in model.blocks for _ in range(run.count)]
        assert all(
            each.value_norm and each.window == (512 if index not in (5, 7) else None)
            for index, each in enumerate(mixers)
        )
        return [(mixers[index].num_kv_heads, mixers[index].qk_dim, mixers[index].keys_as_values) for index in (0, 5, 7)]

    assert heads() == [(2, 64, False), (2, 512, False), (2, 512, False)]
    same = heads(attention_k_eq_v=True, num_global_key_value_heads=1, global_head_dim=128)
    assert same == [(2, 64, False), (1, 128, True), (1, 128, True)]
    listed = {"5": {"head_dim": 128, "num_key_value_heads": 1}, "7": {"head_dim": 256}}
    assert heads(attention_k_eq_v=True, per_layer_config=listed) == [(2, 64, False), (1, 128, True), (2, 256, True)]
    for key, value in (("num_kv_shared_layers", 2), ("enable_moe_block", True), ("per_layer_config", {"last": {}})):
        assert refusal(tmp_path, {**few, key: value}).key == key
    assert refusal(tmp_path, {**few, "hidden_size_per_layer_input": 256}).key == "hidden_size_per_layer_input"


def test_kimi_linear_counts_its_layers_from_one(tmp_path: Path) -> None:
    """moonshotai/Kimi-Linear-48B-A3B-Base: 48B parameters, 3B of them active; its file lists layers in linear_attn_config."""
    listed = {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3, 5],
        "head_dim": 32,
        "num_heads": 3,
        "short_conv_kernel_size": 2,
    }
    few = {"model_type": "kimi_linear", **SMALL, "num_hidden_layers": 5}
    kinds = ["gated_delta", "gated_delta", "gated_delta", "attention", "gated_delta"]
    model = load(tmp_path, {**few, "linear_attn_config": listed})
    assert [run.block.mixer.name for run in model.blocks for _ in range(run.count)] == kinds
    delta = model.blocks[0].block.mixer
    assert (delta.key_dim, delta.num_key_heads, delta.conv_kernel, delta.gate_rank) == (32, 3, 2, 32)
    counted = num_parameters(load(tmp_path, {"model_type": "kimi_linear"}))
    assert (counted.total // 10**9, counted.active // 10**9) == (49, 3)


def test_dots3_has_other_latents_in_layers_with_windows(tmp_path: Path) -> None:
    """transformers configuration_dots3_note.py: by swa_ keys, or layer by layer; without use_dsa no layer has an indexer."""
    few = {"model_type": "dots3_note_text", **SMALL, "num_hidden_layers": 4}

    def latents(**says: object) -> list[tuple[int, int, int, int | None]]:
        model = load(tmp_path, {**few, **says})
        mixers = [run.block.mixer for run in model.blocks for _ in range(run.count)]
        return [(each.kv_lora_rank, each.rope_dim, each.index_heads, each.window) for each in mixers]

    assert latents() == [(512, 64, 64, None), (512, 64, 64, None), (1024, 64, 0, 512), (1024, 64, 0, 512)]
    changed = {"swa_kv_lora_rank": 96, "swa_head_dim": 224, "sliding_window_size": 8}
    assert latents(**changed)[2:] == [(96, 32, 0, 8)] * 2
    assert latents(use_dsa=False)[0] == (512, 64, 0, None)
    listed = {
        "layer_types": ["indexed_attention"] * 3 + ["sliding_attention"],
        "per_layer_config": {"3": {"kv_lora_rank": 64}},
    }
    assert [each[0] for each in latents(**listed)] == [512, 512, 512, 64]


@pytest.mark.parametrize(
    ("model_type", "says", "kinds"),
    [
        ("lfm2", {"full_attn_idxs": [2]}, "ccAc"),
        ("lfm2", {"layer_types": ["conv", "full_attention", "conv", "conv"]}, "cAcc"),
        ("lfm2", {}, "AAAA"),
        ("lfm3", {"num_hidden_layers": 8}, "ccAcWcAc"),
    ],
)
def test_convolutions_between_attention(tmp_path: Path, model_type: str, says: dict[str, Any], kinds: str) -> None:
    """transformers configuration_lfm2.py and configuration_lfm3.py: A is full attention, W one with a window."""
    model = load(tmp_path, {"model_type": model_type, **SMALL, "num_hidden_layers": 4, "conv_L_cache": 5, **says})
    mixers = [run.block.mixer for run in model.blocks for _ in range(run.count)]
    assert (
        "".join("c" if each.name == "short_convolution" else "AW"[each.window is not None] for each in mixers) == kinds
    )
    assert all(each.conv_kernel == 5 for each in mixers if each.name == "short_convolution")


def test_lfm_s_widths_norms_and_gates_follow_their_flags(tmp_path: Path) -> None:
    """transformers modeling_lfm2.py, Lfm2MLP: two thirds, times a multiplier, up to a multiple; modeling_lfm3.py."""
    few = {"model_type": "lfm2", **SMALL, "num_hidden_layers": 1, "intermediate_size": 1000, "block_multiple_of": 64}
    (plain,) = load(tmp_path, {**few, "block_auto_adjust_ff_dim": False}).blocks
    (wide,) = load(tmp_path, {**few, "block_ffn_dim_multiplier": 1.5}).blocks
    assert (plain.block.mlp.ffn_hidden, wide.block.mlp.ffn_hidden) == (1000, 1024)
    third = {"model_type": "lfm3", **SMALL, "num_hidden_layers": 3}
    gated = load(tmp_path, third).blocks[-1].block
    bare = load(tmp_path, {**third, "use_sandwich_norm": False, "use_attention_gate": False}).blocks[-1].block
    assert (gated.norm_place.value, gated.mixer.head_gate) == ("around", True)
    assert (bare.norm_place.value, bare.mixer.head_gate) == ("before", False)
    routed = {**few, "model_type": "lfm2_moe", "num_hidden_layers": 3, "layer_types": ["conv"] * 3}
    for flag in (True, False):
        assert load(tmp_path, {**routed, "use_expert_bias": flag}).blocks[-1].block.moe.router_bias is flag


@pytest.mark.parametrize(
    ("says", "place", "norms"),
    [
        ({"model_type": "chameleon", "swin_norm": True}, "after", "all_heads_with_bias"),
        ({"model_type": "chameleon"}, "before", "all_heads_with_bias"),
        ({"model_type": "molmo2_text", "norm_after": True, "qk_norm_type": "olmo"}, "after", "all_heads"),
        ({"model_type": "molmo2_text"}, "before", "head"),
    ],
)
def test_norms_follow_flags_of_their_own(tmp_path: Path, says: dict[str, Any], place: str, norms: str) -> None:
    """transformers modeling_chameleon.py, ChameleonSwinDecoderLayer; modeling_molmo2.py, Molmo2PostNormDecoderLayer."""
    block = load(tmp_path, {**SMALL, "num_hidden_layers": 1, **says}).blocks[0].block
    assert (block.norm_place.value, block.mixer.qk_norm_weights.value) == (place, norms)


def test_a_table_of_sound_is_not_tied_to_a_head_of_text(tmp_path: Path) -> None:
    few = {
        "model_type": "kyutai_speech_to_text",
        **SMALL,
        "num_hidden_layers": 1,
        "num_codebooks": 3,
        "codebook_vocab_size": 10,
    }
    model = load(tmp_path, {**few, "ffn_dim": 300})
    assert (model.extra_embedding_rows, model.blocks[0].block.mlp.ffn_hidden) == (31, 150)
    for says in (few, {"model_type": "molmo2_text", **SMALL}):
        assert refusal(tmp_path, {**says, "tie_word_embeddings": True}).key == "tie_word_embeddings"


def test_ernie_vl_lists_the_text_s_experts_first(tmp_path: Path) -> None:
    """baidu/ERNIE-4.5-VL-28B-A3B-PT writes pairs: the text's, and the images'."""
    pairs = {"moe_intermediate_size": [96, 32], "moe_num_experts": [8, 4], "moe_layer_start_index": [2, 1]}
    model = load(tmp_path, {"model_type": "ernie4_5_vl_moe_text", **SMALL, "num_hidden_layers": 3, "moe_k": 2, **pairs})
    assert [run.count for run in model.blocks] == [2, 1]
    moe = model.blocks[1].block.moe
    assert (moe.num_experts, moe.expert_ffn_hidden, moe.shared_ffn_hidden) == (8, 96, 192)


def test_mistral_large_4_rotates_three_layers_of_four(tmp_path: Path) -> None:
    """transformers configuration_mistral_large4.py: 1 is a layer that rotates; heads stay as wide."""
    few = {"model_type": "mistral_large4_text", **SMALL, "num_hidden_layers": 4, "qk_rope_head_dim": 32}

    def rotated(**says: object) -> list[int]:
        model = load(tmp_path, {**few, **says})
        assert model.rope_scales == 16
        mixers = [run.block.mixer for run in model.blocks for _ in range(run.count)]
        assert {(each.qk_dim, each.q_lora_rank, each.index_topk) for each in mixers} == {(96, 0, 2048)}
        return [each.rope_dim for each in mixers]

    assert rotated() == [32, 32, 32, 0]
    assert rotated(no_rope_layers=[0, 1, 0, 1]) == [0, 32, 0, 32]
    assert rotated(no_rope_layer_interval=2, kv_source_layers=[0, 1, 2, 3]) == [32, 0, 32, 0]
    assert refusal(tmp_path, {**few, "no_rope_layers": [1]}).key == "no_rope_layers"
    assert refusal(tmp_path, {**few, "kv_source_layers": [0, 0, 2, 3]}).key == "kv_source_layers"


def test_hunyuan_4_selects_keys_anew_in_every_fourth_layer(tmp_path: Path) -> None:
    """transformers configuration_hy_v4.py: the first layer, and every fourth from the second on."""
    few = {"model_type": "hy_v4", **SMALL, "num_hidden_layers": 6}
    model = load(tmp_path, {**few, "hc_mult": 3})
    mixers = [run.block.mixer for run in model.blocks for _ in range(run.count)]
    assert [each.index_heads > 0 for each in mixers] == [True, True, False, False, False, True]
    assert (model.residual_streams, mixers[0].sinks, mixers[0].output_gate) == (3, True, True)
    listed = load(tmp_path, {**few, "indexer_types": ["full", "shared"] * 3}).blocks
    assert [run.block.mixer.index_heads > 0 for run in listed] == [True, *[False, True] * 2, False]


def test_recurrent_gemma_repeats_its_block_types(tmp_path: Path) -> None:
    """transformers configuration_recurrent_gemma.py, layers_block_type; modeling_recurrent_gemma.py, half of the MLP's width."""
    few = {"model_type": "recurrent_gemma", **SMALL, "num_hidden_layers": 4}
    model = load(tmp_path, {**few, "block_types": ["recurrent", "attention"], "lru_width": 320})
    names = [run.block.mixer.name for run in model.blocks for _ in range(run.count)]
    assert names == ["rg_lru", "attention"] * 2
    assert (model.blocks[0].block.mixer.block_width, model.blocks[0].block.mlp.ffn_hidden) == (80, 256)
    assert [run.block.mixer.name for run in load(tmp_path, few).blocks] == ["rg_lru", "attention", "rg_lru"]
    assert refusal(tmp_path, {**few, "lru_width": 322}).key == "lru_width"


def test_dbrx_has_its_keys_in_sections(tmp_path: Path) -> None:
    """databricks/dbrx-base: 132B, of which 36B are active (its README)."""
    model = load(tmp_path, SHAPES["dbrx"])
    counted = num_parameters(model)
    assert (round(counted.total / 1e9), round(counted.active / 1e9)) == (132, 36)
    assert model.rope is not None
    assert model.rope.base == 500_000


def test_ling_2_is_as_large_as_published(tmp_path: Path) -> None:
    """arXiv 2510.22115 table 1: Ling-mini-2.0 has 16B parameters, 1.4B of them active; shapes of its config.json."""
    model = load(tmp_path, SHAPES["ling_mini_2"])
    counted = num_parameters(model)
    assert (round(counted.total / 1e9), round(counted.active / 1e9, 1)) == (16, 1.4)
    first, rest = (run.block for run in model.blocks)
    assert first.mlp is not None
    assert (rest.moe.score, rest.moe.router_bias, rest.moe.route_groups) == ("sigmoid", True, 8)
    assert rest.mixer.qk_norm
    assert not rest.mixer.qkv_bias


def test_a_bias_of_the_last_layer_alone(tmp_path: Path) -> None:
    """transformers modeling_gpt_neox_japanese.py, GPTNeoXJapaneseLayer."""
    model = load(tmp_path, {"model_type": "gpt_neox_japanese", "num_hidden_layers": 3})
    assert [(run.count, run.block.mixer.out_bias) for run in model.blocks] == [(2, False), (1, True)]


def test_modules_that_predict_further_tokens(tmp_path: Path) -> None:
    """MiniMaxAI/MiniMax-M2 writes use_mtp, num_mtp_modules and mtp_transformer_layers."""
    says = {
        "model_type": "minimax_m2",
        **SMALL,
        "num_hidden_layers": 2,
        "num_mtp_modules": 3,
        "mtp_transformer_layers": 1,
    }
    assert [run.block.mtp for run in load(tmp_path, {**says, "use_mtp": True}).blocks] == [False, True]
    assert load(tmp_path, {**says, "use_mtp": True}).blocks[-1].count == 3
    assert not load(tmp_path, says).blocks[-1].block.mtp
    assert refusal(tmp_path, {**says, "mtp_transformer_layers": 2}).key == "mtp_transformer_layers"


def test_sparse_attention_is_refused_where_it_is_not_priced(tmp_path: Path) -> None:
    says = {"model_type": "minimax_m3_vl_text", "num_hidden_layers": 2, "moe_layer_freq": [0, 1]}
    assert [run.block.moe is not None for run in load(tmp_path, says).blocks] == [False, True]
    assert (
        refusal(tmp_path, {**says, "sparse_attention_config": {"sparse_topk_blocks": 16}}).key
        == "sparse_attention_config"
    )


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("moe_topk", {"model_type": "hunyuan_v1_moe", "num_hidden_layers": 2, "moe_topk": [8, 4]}),
        ("layer_types", {"model_type": "granite_swa", "num_hidden_layers": 2, "layer_types": ["conv", "conv"]}),
        ("mlp_layer_types", {"model_type": "hy_v3", "num_hidden_layers": 2, "mlp_layer_types": ["dense"]}),
        ("attention_bias", {"model_type": "glm4_moe_lite", "attention_bias": True}),
    ],
)
def test_bad_values_of_single_types(tmp_path: Path, key: str, says: dict[str, Any]) -> None:
    assert refusal(tmp_path, {**SMALL, **says}).key == key


@pytest.mark.parametrize("model_type", ["bert", "jamba", "longcat_flash"])
def test_a_refusal_says_why(tmp_path: Path, model_type: str) -> None:
    assert refusals()[model_type] in str(refusal(tmp_path, {"model_type": model_type, **SMALL}, "llama"))


def test_deepseek_v4_compresses_by_layer(tmp_path: Path) -> None:
    """transformers configuration_deepseek_v4.py: two layers of long entries, then both kinds in turn; older files list tokens of an
    entry, those of layers that predict at the end; a table routes the first three layers."""
    few = {"model_type": "deepseek_v4", **SMALL, "num_key_value_heads": 1, "head_dim": 128, "o_groups": 2}

    def mixers(**says: object) -> list[tuple[int, int]]:
        model = load(tmp_path, {**few, "num_hidden_layers": 6, **says})
        return [(run.block.mixer.rate, run.block.mixer.index_topk) for run in model.blocks for _ in range(run.count)]

    long, short, window = (128, 0), (4, 512), (0, 0)
    assert mixers() == [long, long, long, short, long, short, window]
    assert mixers(compress_ratios=[0, 4, 128, 4, 0, 0, 4]) == [window, short, long, short, window, window, short]
    assert mixers(compress_ratios=[0] * 6) == [window] * 7
    listed = {"layer_types": ["sliding_attention"] * 5 + ["compressed_sparse_attention"]}
    assert mixers(**listed, compress_rates={"compressed_sparse_attention": 8})[5:] == [(8, 512), window]
    assert mixers(**listed, compress_rate_csa=2)[5] == (2, 512)
    model = load(tmp_path, {**few, "num_hidden_layers": 6})
    assert (model.residual_streams, model.mixed_streams) == (4, True)
    assert [run.block.moe.router_bias for run in model.blocks for _ in range(run.count)] == [False] * 3 + [True] * 4
    assert not load(tmp_path, {**few, "num_hidden_layers": 2, "num_hash_layers": 4}).blocks[0].block.moe.router_bias
    assert {run.block.mixer.rope_dim for run in model.blocks} == {16}
    for key, value in (
        ("compress_ratios", [0, 4]),
        ("compress_ratios", [7] * 6),
        ("layer_types", ["sliding_attention"]),
    ):
        assert refusal(tmp_path, {**few, "num_hidden_layers": 6, key: value}).key == key
    assert refusal(tmp_path, {**few, "o_groups": 3}).key == "o_groups"
    assert refusal(tmp_path, {**few, "num_key_value_heads": 2}).key == "num_key_value_heads"
    assert refusal(tmp_path, {**few, "num_hidden_layers": 3, "mlp_layer_types": ["moe"] * 2}).key == "mlp_layer_types"
