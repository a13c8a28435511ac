"""The shipped configs of open models, each asked in a search of its own."""

import json
from pathlib import Path

import pytest

import simulation_train_formulaic as command
from spec.parameters import num_parameters
from spec.readers.read_config import read_config

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
# config: parameters in billions as its authors write them (model cards of Qwen3, OLMo 2, SmolLM3, Llama 4 and
# GLM-4.5; gpt-oss: arXiv 2508.10925 table 1; Gemma 3: arXiv 2503.19786 table 1, without the vision encoder;
# Kimi K2: the card's "1T"; DeepSeek-V4: its report's abstract), to what share the figure is written, GPUs, and what the search may not choose
OPEN = {
    "8B_qwen3": (8.2, 0.01, 64, "tp=1,pp=1"),
    "32B_qwen3": (32.8, 0.01, 64, "tp=2,pp=4"),
    "30B_qwen3_moe": (30.5, 0.01, 64, "tp=1,pp=1"),
    "235B_qwen3_moe": (235.0, 0.01, 256, "tp=2,pp=8"),
    "20B_gpt_oss": (20.91, 0.001, 64, "tp=1,pp=1"),
    "120B_gpt_oss": (116.83, 0.001, 256, "tp=2,pp=4"),
    "109B_llama4_scout": (109.0, 0.02, 256, "tp=2,pp=4"),
    "106B_glm4.5_air": (106.0, 0.02, 256, "tp=2,pp=2"),
    "355B_glm4.5": (355.0, 0.02, 256, "tp=2,pp=8"),
    "1000B_kimi_k2": (1000.0, 0.05, 512, "tp=2,pp=8"),
    "32B_olmo2": (32.0, 0.02, 64, "tp=2,pp=4"),
    "3B_smollm3": (3.08, 0.01, 16, "tp=1,pp=1"),
    "284B_deepseek_v4_flash": (284.0, 0.01, 256, "tp=1,pp=4"),
    "27B_gemma3": (27.0, 0.02, 64, "tp=2,pp=2"),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_shipped_model_is_as_large_as_its_authors_say(name: str) -> None:
    path = CONFIGS / f"{name}.json"
    billions, share, _, _ = OPEN[name]
    assert num_parameters(read_config(path).model).total / 1e9 == pytest.approx(billions, rel=share)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["_name_or_path"].count("/") == 1
    assert written["_confirmed_by"]
    assert all(key in written for key in written.get("_unconfirmed", "model_type").split(", "))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("20B_gpt_oss", "27B_gemma3") else pytest.mark.nightly) for name in OPEN],
)
def test_a_shipped_model_is_searched(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every plan that the search offers runs on the sheet of an H200, at a believable share of its peak."""
    _, _, world, fixed = OPEN[name]
    answer = tmp_path / "answer.json"
    words = f"--cluster h200 --config {CONFIGS / name}.json --seq_len 4096 --world_size {world} --run_all_solu"
    words += f" --framework megatron --global_batch_size {world * 16384} --fix {fixed},micro_batch=1 --json {answer}"
    assert command.main(words.split()) == 0
    assert "model" in capsys.readouterr().out
    best = json.loads(answer.read_text())["best"][0]
    assert 0.1 < best["mfu"] < 0.7
