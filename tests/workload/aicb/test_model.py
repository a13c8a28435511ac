"""Experts, latent attention and dense layers by AICB's flags, on presets and on bare dimensions."""

from pathlib import Path

import pytest

import run_workload
from spec.errors import UserError
from spec.mixers.attention import AttentionSpec
from spec.model import BlockSpec, ModelSpec
from spec.parameters import num_parameters
from spec.readers.read_config import read_config
from tests.workload.generator import ROOT, made
from workload.simai.format import SimaiPass
from workload.simai.reader import read_simai

WORLD = "--world_size 8 --use_flash_attn"
V2_LITE = "--model_size deepseek16 --world_size 8 --use_flash_attn"
# arXiv 2412.19437 sec. 4.2, in AICB's flags and Megatron-LM's for the width of an expert
V3 = (
    "--num_layers 61 --hidden_size 7168 --num_attention_heads 128 --ffn_hidden_size 18432 --moe_ffn_hidden_size 2048 "
    "--num_experts 256 --moe_router_topk 8 --n_shared_expert 1 --n_dense_layers 3 --q_lora_rank 1536 "
    "--kv_lora_rank 512 --qk_nope_dim 128 --qk_rope_dim 64 --v_head_dim 128"
)


def model(words: str) -> ModelSpec:
    return made(words).problem.model


def blocks(words: str) -> list[tuple[BlockSpec, int]]:
    return [(run.block, run.count) for run in model(words).blocks]


def exported_bytes(words: str, path: Path) -> int:
    assert run_workload.main(["generate", *f"{words} --output {path}".split()]) == 0
    rows = [placed.row for placed in read_simai(path).rows]
    return sum(row.comm(column)[1] for row in rows for column in SimaiPass)


@pytest.mark.parametrize("size", ["deepseek16", "deepseek671", "moe"])
def test_moe_enable_changes_nothing_where_there_are_experts(size: str, tmp_path: Path) -> None:
    words = f"--model_size {size} --world_size 64 --ep 8 --use_flash_attn --use_distributed_optimizer"
    assert model(f"{words} --moe_enable") == model(words)
    assert exported_bytes(f"{words} --moe_enable", tmp_path / "a") == exported_bytes(words, tmp_path / "b")


def test_the_width_of_an_expert_leaves_dense_layers_alone() -> None:
    (dense, _), (experts, _) = blocks(f"{V2_LITE} --ffn_hidden_size 704")
    assert dense.mlp is not None
    assert experts.moe is not None
    # config.json of DeepSeek-V2-Lite: intermediate_size 10944; two shared experts, now of 704
    assert (dense.mlp.ffn_hidden, experts.moe.expert_ffn_hidden) == (10944, 704)
    assert experts.moe.shared_ffn_hidden == 2 * 704


def test_deepseek_v3_from_its_dimensions() -> None:
    built = model(f"--frame DeepSeek {V3} --world_size 8 --use_flash_attn")
    # the published count, router correction biases included
    assert num_parameters(built).total == 671_026_419_200
    published = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    assert [run.block.mixer for run in built.blocks] == [run.block.mixer for run in published.main_blocks]


def test_latent_attention_by_flags() -> None:
    flags = "--q_lora_rank 96 --kv_lora_rank 80 --qk_nope_dim 48 --qk_rope_dim 16 --v_head_dim 40"
    for block, _ in blocks(f"{V2_LITE} {flags}"):
        mixer = block.mixer
        assert isinstance(mixer, AttentionSpec)
        assert (mixer.q_lora_rank, mixer.kv_lora_rank, mixer.v_dim) == (96, 80, 40)
        assert (mixer.qk_dim, mixer.rope_dim) == (48 + 16, 16)
    direct = blocks(f"{V2_LITE.replace('16', '671', 1)} --q_lora_rank 0")[0][0].mixer
    assert isinstance(direct, AttentionSpec)
    assert direct.q_lora_rank == 0


def test_shared_experts_by_flag() -> None:
    (_, (block, _)) = blocks(f"{V2_LITE} --n_shared_expert 5")
    assert block.moe is not None
    assert block.moe.shared_ffn_hidden == 5 * 1408
    ((block, _),) = blocks("--model_size moe --world_size 8 --use_flash_attn --n_shared_expert 1")
    assert block.moe is not None
    assert block.moe.shared_ffn_hidden == 14336


@pytest.mark.parametrize(
    ("words", "dense", "experts"),
    [
        ("--model_size deepseek16 --n_dense_layers 4", [4], [23]),
        ("--model_size deepseek16 --n_dense_layer 4 --num_layers 10", [4], [6]),
        ("--model_size deepseek16 --n_dense_layers 0", [], [27]),
        ("--model_size deepseek671 --n_dense_layers 1", [1], [60, 1]),
        ("--model_size moe --n_dense_layers 2 --ffn_hidden_size 64 --moe_ffn_hidden_size 32", [2], [30]),
        ("--model_size 7 --moe_enable --num_experts 8 --n_dense_layers 6", [6], [30]),
    ],
)
def test_dense_layers_by_flag(words: str, dense: list[int], experts: list[int]) -> None:
    built = blocks(f"{words} {WORLD}")
    assert [count for block, count in built if block.moe is None] == dense
    assert [count for block, count in built if block.moe is not None] == experts


def test_zero_is_a_size_like_any_other() -> None:
    for flag in ("hidden_size", "num_layers", "num_experts", "moe_router_topk", "ffn_hidden_size", "kv_lora_rank"):
        with pytest.raises(UserError, match=f"--{flag} = 0: 1 or more"):
            made(f"{V2_LITE} --{flag} 0")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("--model_size 7 --kv_lora_rank 512", "latent attention"),
        ("--model_size 7 --n_shared_expert 1", "a model of experts"),
        ("--model_size 7 --n_dense_layers 1", "a model of experts"),
        ("--model_size 7 --moe_ffn_hidden_size 1", "a model of experts"),
        ("--model_size deepseek16 --num_query_groups 4", "no groups"),
        ("--model_size deepseek16 --n_dense_layers 27", "less than the 27 layers"),
        ("--model_size moe --n_dense_layers 1", "how wide an expert and a dense layer are"),
        ("--frame DeepSeek --num_layers 4 --hidden_size 64 --num_attention_heads 4", "--num_experts"),
        (f"--frame DeepSeek {V3} --num_layers 3", "less than the 3 layers"),
    ],
)
def test_refusals(words: str, match: str) -> None:
    with pytest.raises(UserError, match=match):
        made(f"{words} {WORLD}")


def test_what_nobody_typed_is_said() -> None:
    bare = made(f"--frame DeepSeek {V3.replace('--moe_ffn_hidden_size 2048', '')} {WORLD}")
    assert any("3 dense layers as wide as an expert" in note for note in bare.notes)
    any_size = made(f"--model_size deepseek --num_experts 4 --topk 2 --num_layers 5 {WORLD}")
    assert any("the dimensions of deepseek671" in note for note in any_size.notes)
    assert any("not in the preset's groups" in note for note in any_size.notes)
    assert not made(f"{V2_LITE} --num_experts 32").notes[:-1]


# A model of bare dimensions is what its frame trains.

SEVEN = "--num_layers 32 --hidden_size 4096 --num_attention_heads 32 --world_size 8 --use_flash_attn"


@pytest.mark.parametrize("frame", ["DeepSpeed", "FSDP"])
def test_a_llama_where_llamas_are_trained(frame: str) -> None:
    built = model(f"--frame {frame} {SEVEN}")
    # arXiv 2302.13971 table 2 and 2307.09288: LLaMA-7B, to the last parameter
    assert num_parameters(built).total == 6_738_415_616
    assert built.blocks == read_config(ROOT / "configs" / "7B_llama2.py").model.blocks


# arXiv 2302.13971: the widths of its four sizes, as AICB's DeepSpeed script gives them
@pytest.mark.parametrize(
    ("hidden", "heads", "width"), [(4096, 32, 11008), (5120, 40, 13824), (6656, 52, 17920), (8192, 64, 22016)]
)
def test_the_widths_of_llama(hidden: int, heads: int, width: int) -> None:
    words = f"--num_layers 2 --hidden_size {hidden} --num_attention_heads {heads} --world_size 8 --use_flash_attn"
    for source in (f"--frame DeepSpeed {words}", f"--frame DeepSpeed --model_size 30 {words}"):
        (run,) = model(source).blocks
        assert run.block.mlp is not None
        assert run.block.mlp.ffn_hidden == width, source


def test_a_gpt_in_megatron() -> None:
    built = model(SEVEN)
    assert built.blocks[0].block == read_config(ROOT / "configs" / "7B_gpt.toml").model.blocks[0].block
    assert built.tied_embeddings


@pytest.mark.parametrize("frame", ["Megatron", "DeepSpeed", "FSDP"])
def test_heads_divide_the_hidden_size(frame: str) -> None:
    words = f"--frame {frame} --num_layers 2 --hidden_size 5000 --num_attention_heads 48 --world_size 8"
    with pytest.raises(UserError, match="48: a divisor of the hidden size 5000"):
        made(words)


def test_biases_by_flag() -> None:
    built = model(f"--frame DeepSpeed {SEVEN} --add_bias_linear")
    block = built.blocks[0].block
    assert block.mlp is not None
    assert isinstance(block.mixer, AttentionSpec)
    assert (block.mixer.qkv_bias, block.mixer.out_bias, block.mlp.bias) == (True, True, True)
    # q, k, v and out of 4096, gate and up of 11008, down of 4096, in 32 layers
    assert num_parameters(built).total == 6_738_415_616 + 32 * (5 * 4096 + 2 * 11008)
