"""The TOML form: everything a ModelSpec can say, and errors that name the key."""

from pathlib import Path

import pytest

from spec.errors import ConfigError
from spec.mixers.attention import AttentionKind
from spec.model import NormKind, PositionKind
from spec.parameters import num_parameters
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import read_config

MIXED = Path(__file__).with_name("mixed.toml").read_text(encoding="utf-8")


def load(tmp_path: Path, text: str) -> ConfigFile:
    path = tmp_path / "mixed.toml"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def test_mixed_blocks_and_plan(tmp_path: Path) -> None:
    config = load(tmp_path, MIXED)
    assert (config.format, config.seq_len, config.model.name) == ("toml", 2048, "mixed")
    first, second = (run.block for run in config.model.blocks)
    assert (first.mixer.kind, first.mixer.window) == (AttentionKind.GQA, 512)
    assert second.mixer.kind is AttentionKind.MLA
    assert (config.plan.strategy, config.plan.tp, config.plan.wp) == ("fsp", 4, None)
    assert (config.plan.recompute, config.framework) == ("full", "megatron")
    # by hand: embedding, final norm, two dense blocks, six routed blocks
    h = 1024
    dense = h * (16 + 2 * 4) * 64 + h * h + 16 + 3 * h * 4096 + 2 * h
    latent = h * 16 * 96 + h * (256 + 32) + 256 + 256 * 16 * (64 + 64) + 16 * 64 * h
    routed = latent + h * 8 + 9 * 3 * h * 512 + h + 2 * h
    assert num_parameters(config.model).total == 32000 * h + h + 2 * dense + 6 * routed


def test_gpt_preset() -> None:
    config = read_config(Path(__file__).parents[3] / "configs" / "22B_gpt.toml")
    model = config.model
    assert (model.norm, model.position, model.max_positions) == (NormKind.LAYER, PositionKind.LEARNED, 4096)
    assert config.seq_len == 2048


def test_a_block_may_feed_forward_alone(tmp_path: Path) -> None:
    attention = "attention = { num_heads = 16, num_kv_heads = 4, window = 512, sinks = true }"
    config = load(tmp_path, MIXED.replace(attention, "mixer = false"))
    block = config.model.blocks[0].block
    assert (block.mixer, block.mlp is not None) == (None, True)
    assert len(config.model.mixers) == 1
    both = load(tmp_path, MIXED).model
    # the mixer and the norm before it, twice
    mixer = 1024 * (16 + 2 * 4) * 64 + 1024 * 1024 + 16
    assert num_parameters(both).total - num_parameters(config.model).total == 2 * (mixer + 1024)


BAD = {
    "model.colour": ("hidden = 1024", "hidden = 1024\ncolour = 1"),
    "model.blocks[0].attention.num_kv_heads": ("num_kv_heads = 4", "num_kv_heads = 3"),
    "model.blocks[0].attention.qk_dim": ("num_heads = 16, num_kv_heads = 4", "num_heads = 15"),
    "model.blocks[0].mlp.ffn_hidden": ("ffn_hidden = 4096", "ffn_hidden = -1"),
    "model.blocks[0].mlp": ("mlp = { ffn_hidden = 4096 }", ""),
    "model.blocks[0].mixer": ("mlp = { ffn_hidden = 4096 }", "mlp = { ffn_hidden = 4096 }\nmixer = false"),
    "model.blocks[1].mixer": ("[data]", "mixer = false\n[data]"),
    "model.blocks[1].attention.v_dim": ("v_dim = 64, ", ""),
    "model.blocks[1].attention.rope_dim": ("rope_dim = 32", "rope_dim = 96"),
    "model.blocks[1].moe.topk": ("topk = 2", "topk = 9"),
    "model.blocks[1].moe.route_groups": ("topk = 2", "topk = 2, route_groups = 3"),
    "model.position": ("tied_embeddings = true", 'position = "alibi"'),
    "model.max_positions": ("tied_embeddings = true", 'position = "learned"'),
    "plan.strategy": ('strategy = "fsp"', 'strategy = "sp"'),
    "plan.zero_stage": ("zero_stage = 1", "zero_stage = 4"),
    "plan.preset": ('preset = "megatron"', 'preset = "ours"'),
    "plan.dp": ("tp = 4", "dp = 4"),
    "source": ('source = "made for this test"', ""),
    "config": ("[model]", "[model"),
}


@pytest.mark.parametrize(("key", "change"), BAD.items(), ids=BAD.keys())
def test_bad_values_are_one_error(tmp_path: Path, key: str, change: tuple[str, str]) -> None:
    assert change[0] in MIXED
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, MIXED.replace(change[0], change[1], 1))
    assert refused.value.key == key
    assert "\n" not in str(refused.value)


def test_other_endings_and_missing_files(tmp_path: Path) -> None:
    for name in ("model.yaml", "model", "missing.toml", "missing.py", "missing.json"):
        with pytest.raises(ConfigError) as refused:
            read_config(tmp_path / name)
        assert name in str(refused.value)


def test_a_plan_says_what_is_recomputed_and_in_which_order(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    said = 'recompute = "full"\nrecompute_layers = 3\nrecompute_modules = "moe_act+mlp"\nschedule = "zb-h1"'
    path.write_text(MIXED.replace('recompute = "full"', said))
    plan = read_config(path).plan
    assert (plan.recompute, plan.recompute_layers, plan.schedule) == ("full", 3, "zb-h1")
    assert plan.recompute_modules == ("moe_act", "mlp")


def test_a_plan_says_what_is_offloaded(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(MIXED.replace("[plan]", "[plan]\noptimizer_offload = 0.25\noffloaded_layers = 2"))
    plan = read_config(path).plan
    assert (plan.optimizer_offload, plan.offloaded_layers) == (0.25, 2)
    path.write_text(MIXED.replace("[plan]", "[plan]\noptimizer_offload = 1.5"))
    with pytest.raises(ConfigError, match="optimizer_offload"):
        read_config(path)


def test_a_job_is_said_in_tables_of_its_groups(tmp_path: Path) -> None:
    said = '[job]\ndropout = true\ncuda_graphs = ["mlp", "attn"]\n[job.precision]\nrecipe = "fp8-blockwise"\n'
    config = load(tmp_path, MIXED + said + "[job.data_parallel]\nbucket_elements = 1_000\n")
    assert config.job == {
        "dropout": True,
        "cuda_graphs": {"mlp", "attn"},
        "precision.recipe": "fp8-blockwise",
        "data_parallel.bucket_elements": 1000,
    }


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("[job]\ndropoff = true", "job.dropoff"),
        ('[job]\ndropout = "yes"', "job.dropout"),
        ("[job.loss]\nfast = true", "job.loss.fast"),
        ('[job.precision]\nrecipe = "fp8"', "job.precision.recipe"),
        ('[job]\nprecision = "fp8-blockwise"', "job.precision"),
    ],
)
def test_what_no_job_has_is_refused(tmp_path: Path, said: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, f"{MIXED}{said}\n")
    assert refused.value.key == key


@pytest.mark.parametrize("name", ["fp8", "bf16"])
def test_a_bare_dtype_is_refused_with_the_names_of_precisions(tmp_path: Path, name: str) -> None:
    """One byte for parameters and activations is nobody's fp8 training."""
    with pytest.raises(
        ConfigError, match="fp8-tensor, fp8-current, fp8-delayed, fp8-rowwise, fp8-blockwise, mxfp8, nvfp4"
    ):
        load(tmp_path, MIXED.replace("[plan]", f'[plan]\ndtype = "{name}"'))
