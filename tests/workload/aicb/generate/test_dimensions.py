"""A model of bare dimensions is what its frame trains."""

import pytest

from spec.errors import UserError
from spec.mixers.attention import AttentionSpec
from spec.model import ModelSpec
from spec.parameters import num_parameters
from spec.readers.read_config import read_config
from tests.workload.generating import ROOT, made

SEVEN = "--num_layers 32 --hidden_size 4096 --num_attention_heads 32 --world_size 8 --use_flash_attn"


def model(words: str) -> ModelSpec:
    return made(words).question.model


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
    words = (
        f"--num_layers 2 --hidden_size {hidden} --num_attention_heads {heads} --world_size 8 --use_flash_attn"
    )
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
