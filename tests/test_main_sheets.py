"""The main command about a cluster of which there is no profile."""

import json
from pathlib import Path

import pytest

import simulation_train_formulaic as command
from tests.test_main_command import changed


@pytest.mark.parametrize(
    "sheet", ["ascend-910b", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("mi300x", "mi355x"))]
)
def test_other_makers_accelerators_are_answered(sheet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A search whose answer names itself modelled, at a believable share of the peak, in the memory that the
    sheet has.
    """
    words = f"--cluster {sheet} --config configs/7B_llama2.py --world_size 16 --global_batch_size 1048576"
    words += f" --run_all_solu --framework megatron --fix micro_batch=1,tp=2 --json {tmp_path / 'a.json'}"
    assert command.main(words.split()) == 0
    assert "using the hardware spec" in capsys.readouterr().out
    best = json.loads((tmp_path / "a.json").read_text())["best"][0]
    assert best["origins_s"].keys() <= {"modelled", "derived"}
    assert 0.15 < best["mfu"] < 0.7


def test_any_hardware_spec_is_answered_and_again_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a profile of another GPU, and the second time alike."""
    words = changed(
        cluster="h100-sxm",
        world_size="16",
        framework="internevo",
        fix="pp=1,tp=2",
        modes="msp",
        json=str(tmp_path / "a.json"),
    )
    assert command.main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())  # a long path of the profile breaks the line elsewhere
    assert "of h200): using the hardware spec" in printed
    first = json.loads((tmp_path / "a.json").read_text())["best"][0]
    assert first["origins_s"].keys() <= {"modelled", "derived"}
    assert command.main(words) == 0
    assert json.loads((tmp_path / "a.json").read_text())["best"][0] == first
