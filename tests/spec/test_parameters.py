"""Parameter counts against published figures, to the last digit where one is published."""

from dataclasses import replace
from pathlib import Path

import pytest

from spec.parameters import num_parameters
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import read_config
from tests.solver.questions import with_part

CONFIGS = Path(__file__).parents[2] / "configs"


def shipped(name: str) -> ConfigFile:
    return read_config(CONFIGS / name)


# tensor shapes summed in each model's safetensors index on huggingface.co
PUBLISHED_TOTALS = {
    "7B_llama2.py": 6_738_415_616,
    "13B_llama2.py": 13_015_864_320,
    "70B_llama2.py": 68_976_648_192,
    "8x7B_mixtral.py": 46_702_792_704,
    "7B_internlm2.py": 7_737_708_544,
    "20B_internlm2.py": 19_861_149_696,
    "72B_qwen2.py": 72_706_203_648,
    "8B_llama3.py": 8_030_261_248,
    "70B_llama3.py": 70_553_706_496,
    "405B_llama3.py": 405_853_388_800,
    "671B_deepseek_v3.toml": 671_026_419_200,
}


@pytest.mark.published
@pytest.mark.parametrize(("name", "total"), PUBLISHED_TOTALS.items())
def test_totals_are_the_published_ones(name: str, total: int) -> None:
    assert num_parameters(shipped(name).model).total == total


@pytest.mark.published
def test_deepseek_v3_without_router_bias_and_multi_token_prediction() -> None:
    count = num_parameters(shipped("671B_deepseek_v3.toml").model)
    assert count.total - count.router_bias == 671_026_404_352
    # README_WEIGHTS.md beside the weights: 36.6 B active counting the head and not the embedding;
    # 11.5 B in the MTP block besides what it shares
    assert (count.active - count.embedding) / 1e9 == pytest.approx(36.6, abs=0.05)
    assert count.mtp / 1e9 == pytest.approx(11.5, abs=0.12)


@pytest.mark.published
def test_mixtral_is_active_as_published() -> None:
    # arXiv 2401.04088 abstract: 13 B active; sec. 1 and model card: 12.9 B
    assert num_parameters(shipped("8x7B_mixtral.py").model).active / 1e9 == pytest.approx(12.9, abs=0.05)


def test_baichuan2_7b_is_llama_2_7b_with_a_larger_vocabulary() -> None:
    # arXiv 2309.10305 sec. 2: the Llama block; vocabulary 125,696 for 32,000
    llama = num_parameters(shipped("7B_llama2.py").model).total
    larger = 2 * (125_696 - 32_000) * 4096
    assert num_parameters(shipped("7B_baichuan2.py").model).total == llama + larger


def test_gpt_175b_matches_the_closed_form() -> None:
    # Narayanan et al. 2021 (arXiv 2104.04473 eq. 2): 12 l h^2 (1 + 13/12h + (V + s)/12lh), which
    # leaves out the final norm's 2h
    layers, h, vocab, positions = 96, 12288, 50257, 4096
    closed_form = 12 * layers * h * h + 13 * layers * h + (vocab + positions) * h
    assert num_parameters(shipped("175B_gpt.toml").model).total == closed_form + 2 * h


def test_every_shipped_config_reads_and_is_near_its_name() -> None:
    for path in sorted(CONFIGS.glob("*B_*.*")):
        config = read_config(path)
        # A published config.json says no length to train at.
        assert config.seq_len is not None or path.suffix == ".json", path
        # A .py config is a training config and writes a plan; the other forms may hold a model alone.
        written = config.plan is not None and config.plan.strategy is not None
        assert written or path.suffix != ".py", path
        size = path.stem.split("B_")[0]
        if size.isdigit() and "MoE" not in path.stem:
            billions = num_parameters(config.model).total / 1e9
            assert billions == pytest.approx(int(size), rel=0.2), path


def test_tying_and_biases_count_once() -> None:
    model = shipped("7B_internlm2.py").model
    before = num_parameters(model)
    assert num_parameters(replace(model, tied_embeddings=True)).total == before.total - before.head
    assert num_parameters(replace(model, head_bias=True)).total == before.total + model.vocab
    added = num_parameters(with_part(model, "mixer", qkv_bias=True, out_bias=True)).total - before.total
    assert added == 32 * (4096 + 2 * 8 * 128 + 4096)


def test_active_is_total_when_every_expert_is_visited() -> None:
    model = shipped("8x7B_mixtral.py").model
    count = num_parameters(with_part(model, "moe", topk=model.blocks[0].block.moe.num_experts))
    assert count.active == count.total
