"""Hugging Face configs: layer shapes from the keys of each model type, and published totals."""

import json
from pathlib import Path
from typing import Any

import pytest

from spec.errors import ConfigError
from spec.mixers.attention import AttentionKind
from spec.model import NormKind, PositionKind
from spec.parameters import num_parameters
from spec.readers.read_config import read_config
from tests.spec.readers.huggingface.published import SHAPES, load, refusal

LLAMA_2_7B, MIXTRAL_8X7B, QWEN2_72B = (SHAPES[name] for name in ("llama_2_7b", "mixtral_8x7b", "qwen2_72b"))
DEEPSEEK_V2, DEEPSEEK_V3 = SHAPES["deepseek_v2"], SHAPES["deepseek_v3"]
QWEN3_30B_A3B = SHAPES["qwen3_30b_a3b"]


# totals as the model's safetensors index sums them, or as its paper states them
@pytest.mark.published
@pytest.mark.parametrize(
    ("content", "total"),
    [
        (LLAMA_2_7B, 6_738_415_616),
        (SHAPES["llama_3_405b"], 405_853_388_800),
        (SHAPES["mistral_7b"], 7_241_732_096),
        (MIXTRAL_8X7B, 46_702_792_704),
        (QWEN2_72B, 72_706_203_648),
        (SHAPES["internlm2_20b"], 19_861_149_696),
        (QWEN3_30B_A3B, 30_532_122_624),
        (DEEPSEEK_V3, 671_026_419_200),
        (DEEPSEEK_V2, 235_741_434_880),
        (SHAPES["deepseek_v2_lite"], 15_706_484_224),
        (SHAPES["gpt_2"], 124_439_808),
        (SHAPES["gpt_neox_20b"], 20_554_567_680),
    ],
)
def test_totals_are_the_published_ones(tmp_path: Path, content: dict[str, Any], total: int) -> None:
    assert num_parameters(load(tmp_path, content)).total == total


@pytest.mark.published
@pytest.mark.parametrize(
    ("content", "active"),
    # rounded figures of the model cards and reports, embedding and head counted
    [(MIXTRAL_8X7B, 12.9), (QWEN3_30B_A3B, 3.3), (SHAPES["qwen2_57b_a14b"], 14.2), (DEEPSEEK_V2, 21.4)],
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
    attention, moe = runs[1].block.mixer, runs[1].block.moe
    assert (attention.kind, attention.qk_dim, attention.rope_dim) == (AttentionKind.MLA, 192, 64)
    assert (moe.shared_ffn_hidden, moe.router_bias) == (2048, True)
    assert (moe.route_groups, moe.route_chosen_groups) == (8, 4)


def test_deepseek_limits_a_token_to_groups(tmp_path: Path) -> None:
    """n_group 8, topk_group 4 of the published config; a greedy top-k knows no groups."""
    for method, groups in (("noaux_tc", (8, 4)), ("greedy", (1, 1))):
        grouped = {**DEEPSEEK_V3, "n_group": 8, "topk_group": 4, "topk_method": method}
        moe = load(tmp_path, grouped).blocks[1].block.moe
        assert (moe.route_groups, moe.route_chosen_groups) == groups


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
    assert load(tmp_path, SHAPES["mistral_7b"]).blocks[0].block.mixer.window == 4096
    assert load(tmp_path, {**SHAPES["mistral_7b"], "sliding_window": None}).blocks[0].block.mixer.window is None
    assert load(tmp_path, QWEN2_72B).blocks[0].block.mixer.window is None
    mixed = {**QWEN2_72B, "use_sliding_window": True, "max_window_layers": 70}
    runs = load(tmp_path, mixed).blocks
    assert [(run.count, run.block.mixer.window) for run in runs] == [(70, None), (10, 131072)]


def test_gpt_families(tmp_path: Path) -> None:
    gpt2 = load(tmp_path, SHAPES["gpt_2"])
    assert (gpt2.position, gpt2.norm, gpt2.tied_embeddings) == (PositionKind.LEARNED, NormKind.LAYER, True)
    neox = load(tmp_path, SHAPES["gpt_neox_20b"])
    assert (neox.position, neox.tied_embeddings) == (PositionKind.ROTARY, False)
    assert neox.blocks[0].block.parallel_residual


def test_a_folder_stands_for_its_config_and_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-2-7b-hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_2_7B), encoding="utf-8")
    assert read_config(folder).model.name == "Llama-2-7b-hf"


UNKNOWN = {**LLAMA_2_7B, "model_type": "neo_llama"}


def test_an_unknown_type_is_read_as_llama_where_that_is_asked_for(tmp_path: Path) -> None:
    model = load(tmp_path, UNKNOWN, "llama")
    assert num_parameters(model).total == 6_738_415_616
    (said,) = model.assumptions
    assert said.startswith("neo_llama is read as llama: gated feed-forward layers")
    assert not load(tmp_path, LLAMA_2_7B).assumptions


@pytest.mark.parametrize(
    ("content", "assume", "said"),
    [
        (UNKNOWN, None, "; --assume llama reads it as such a model"),
        ({**UNKNOWN, "vocab_size": None}, "llama", "types that docs/models.md lists"),
        (LLAMA_2_7B, "llama", "a type that is not known"),
        ({**UNKNOWN, "model_type": "jamba"}, "llama", "Mamba-1's scan"),
    ],
)
def test_what_is_not_assumed(tmp_path: Path, content: dict[str, Any], assume: str | None, said: str) -> None:
    error = refusal(tmp_path, content, assume)
    assert error.key == "model_type"
    assert said in str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("num_experts", 8),
        ("sliding_window", 4096),
        ("layer_norm_eps", 1e-5),
        ("kv_lora_rank", 512),
    ],
)
def test_what_llama_lacks_is_evidence_against_it(tmp_path: Path, key: str, value: object) -> None:
    assert refusal(tmp_path, {**UNKNOWN, key: value}, "llama").key == key
    load(tmp_path, {**UNKNOWN, "hidden_act": "silu", "use_sliding_window": False, "attention_bias": True}, "llama")


def test_nothing_is_assumed_of_other_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--assume"):
        read_config(Path(__file__).parents[4] / "configs" / "7B_gpt.toml", assume="llama")


# google/gemma-3-4b-it: its text model says what its class does not
GEMMA_3_4B = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}


@pytest.mark.parametrize("inner", [{"model_type": "gemma3_text"}, {}])
def test_the_text_model_of_one_that_sees_is_read(tmp_path: Path, inner: dict[str, str]) -> None:
    """The 34 layers of the 4B model: windows in five of six, the last four among them."""
    nested = {"model_type": "gemma3", "text_config": {**GEMMA_3_4B, **inner}, "vision_config": {"hidden_size": 1152}}
    model = load(tmp_path, nested)
    windows = [(run.count, run.block.mixer.window) for run in model.blocks]
    assert windows == [(5, 1024), (1, None)] * 5 + [(4, 1024)]
    assert (model.vocab, model.tied_embeddings) == (262208, True)
    assert model.assumptions == ("the text model of gemma3 alone: what sees or hears is left out",)


def test_a_vision_tower_that_is_read_says_how_it_runs(tmp_path: Path) -> None:
    """Qwen2.5-VL-7B: transformers counts 676,550,144 parameters of its tower."""
    text = {"model_type": "qwen2_5_vl_text", "hidden_size": 3584, "num_hidden_layers": 28}
    model = load(tmp_path, {"model_type": "qwen2_5_vl", "text_config": text, "vision_config": {"hidden_size": 1280}})
    note = "its vision tower of 676,550,144 parameters runs with --job images=N,image_patches=P"
    assert model.assumptions == (f"the text model of qwen2_5_vl; {note}",)
    assert model.vision is not None
    assert (model.vision.hidden, sum(run.count for run in model.vision.blocks)) == (1280, 32)


def test_the_outer_model_says_whether_embeddings_are_tied(tmp_path: Path) -> None:
    """transformers ties what the whole model's config says, or its class: Mistral3Config does, Qwen3VLMoeConfig does not."""

    def tied(outer: str, inner: str, said: bool | None, **keys: object) -> bool:
        return load(
            tmp_path,
            {
                "model_type": outer,
                "text_config": {"model_type": inner, **keys},
                **({} if said is None else {"tie_word_embeddings": said}),
            },
        ).tied_embeddings

    assert tied("mistral3", "mistral", None, tie_word_embeddings=False)
    assert not tied("mistral3", "mistral", False, tie_word_embeddings=True)
    assert not tied("qwen3_vl_moe", "qwen3_vl_moe_text", None, tie_word_embeddings=True, num_experts_per_tok=4)
    assert tied("seeing_llama", "llama", None, tie_word_embeddings=True)  # an unknown type says nothing


def test_older_files_have_the_keys_of_the_text_model_at_the_top(tmp_path: Path) -> None:
    """Qwen/Qwen2.5-VL-7B-Instruct, as it was published: 7,615,616,512 parameters of text, as in Qwen2.5-7B."""
    flat = {"model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    flat |= {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "vision_config": {"depth": 32}}
    assert num_parameters(load(tmp_path, flat)).total == 7_615_616_512


def test_an_answer_names_shapes_that_a_file_leaves_to_its_class(tmp_path: Path) -> None:
    model = load(tmp_path, {key: value for key, value in LLAMA_2_7B.items() if key != "intermediate_size"})
    assert model.assumptions == ("left out, so as in transformers' class of llama: intermediate_size = 11008",)


def test_an_error_names_the_key_of_the_file(tmp_path: Path) -> None:
    assert refusal(tmp_path, {**SHAPES["gpt_2"], "n_embd": 0}).key == "n_embd"
    assert refusal(tmp_path, {**DEEPSEEK_V3, "n_routed_experts": -1}).key == "n_routed_experts"


def test_windows_by_type(tmp_path: Path) -> None:
    """Every other layer of Gemma 2 from the first on, three of four of Command A, and what layer_types lists."""
    four = {**LLAMA_2_7B, "num_hidden_layers": 4, "num_key_value_heads": 8, "head_dim": 128}

    def windows(model_type: str, **says: object) -> list[tuple[int, int | None]]:
        runs = load(tmp_path, {**four, "model_type": model_type, **says}).blocks
        return [(run.count, run.block.mixer.window or run.block.mixer.chunk) for run in runs]

    assert windows("gemma2") == [(1, 4096), (1, None)] * 2
    assert windows("cohere2") == [(3, 4096), (1, None)]
    assert windows("exaone4", sliding_window_pattern="LG") == [(1, 4096), (1, None)] * 2
    assert windows("exaone4", sliding_window=None) == [(4, None)]
    assert windows("olmo3", layer_types=["full_attention"] * 4) == [(4, None)]
    assert windows("llama4_text", intermediate_size_mlp=512) == [(3, 8192), (1, None)]
    with pytest.raises(ConfigError, match="layer_types"):
        windows("olmo3", layer_types=["full_attention"] * 3)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("model_type", {**LLAMA_2_7B, "model_type": "mamba"}),
    ("model_type", {"hidden_size": 4096}),
    ("hidden_size", {**LLAMA_2_7B, "hidden_size": 4096.5}),
    ("num_hidden_layers", {**LLAMA_2_7B, "num_hidden_layers": -1}),
    ("num_hidden_layers", {**DEEPSEEK_V3, "num_hidden_layers": 10**12}),
    ("num_attention_heads", {**LLAMA_2_7B, "num_attention_heads": 31, "num_key_value_heads": 31}),
    ("num_key_value_heads", {**LLAMA_2_7B, "num_key_value_heads": 5}),
    ("attention_bias", {**LLAMA_2_7B, "attention_bias": 1}),
    ("num_experts_per_tok", {**MIXTRAL_8X7B, "num_experts_per_tok": 9}),
    ("mlp_only_layers", {**QWEN3_30B_A3B, "mlp_only_layers": "all"}),
    ("attention_bias", {**DEEPSEEK_V3, "attention_bias": True}),
    ("kv_lora_rank", {**DEEPSEEK_V3, "kv_lora_rank": None}),
    ("n_group", {**DEEPSEEK_V3, "n_group": 8, "topk_group": 9}),
    ("n_group", {**DEEPSEEK_V3, "n_group": 7, "topk_group": 4}),
    ("n_group", {**DEEPSEEK_V3, "n_group": 64, "topk_group": 1}),
]


@pytest.mark.parametrize(("key", "content"), BAD)
def test_bad_values_are_one_error(tmp_path: Path, key: str, content: dict[str, Any]) -> None:
    assert refusal(tmp_path, content).key == key


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", '{"hidden_size": NaN}', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_damaged_json_is_one_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(path)
