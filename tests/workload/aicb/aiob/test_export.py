"""A plan's times as an AIOB file are the forwards of its halves, whatever the model."""

from pathlib import Path

import pytest

import run_workload
from ops.roles import Module, OpKey, Role
from tests.workload.generating import made
from workload.aicb.aiob import aiob_of, aiob_times_ns, read_aiob, write_aiob
from workload.stage_work import StageWork, stage_works


def compute_us(work: StageWork, piece: str, parts: set[Module | OpKey]) -> float:
    (one,) = (each for each in work.pieces if each.name == piece)
    return 1e6 * sum(
        item.seconds for item in one.forward if item.collective is None and item.is_within(parts)
    )


@pytest.mark.parametrize(
    ("words", "layer"),
    [
        ("--model_size 7 --tp 2 --use_flash_attn", "block0"),
        ("--model_size moe --ep 2", "block0"),
        ("--model_size deepseek16 --ep 8 --pp 2 --use_flash_attn", "block1"),
    ],
)
def test_sections_sum_to_the_halves_of_a_layer(words: str, layer: str, tmp_path: Path) -> None:
    built = made(f"{words} --world_size 16 --fixed_time_us 7 --pipeline_stage all")
    works = stage_works(built.question, built.plan)
    write_aiob(tmp_path / "a.txt", aiob_of(works))
    times = aiob_times_ns(read_aiob(tmp_path / "a.txt"))
    assert times["attention_forward"] == pytest.approx(1e3 * compute_us(works[0], layer, {Module.ATTENTION}))
    halves = {Module.MLP, Module.MOE, Module.SHARED_EXPERTS}
    assert times["mlp_forward"] == pytest.approx(1e3 * compute_us(works[0], layer, halves))
    assert times["Emb"] == pytest.approx(1e3 * compute_us(works[0], "embedding", {Module.EMBEDDING}))
    logits = {OpKey(Module.HEAD, Role.LOGITS), Module.LOSS}
    assert times["logit_time"] == pytest.approx(1e3 * compute_us(works[-1], "head", logits))
    step_us = 1e6 * sum(item.seconds for item in works[0].step if item.collective is None)
    assert times["grad_backward"] == pytest.approx(1e3 * step_us)


def test_a_written_file_fills_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = "--model_size 7 --world_size 16 --tp 2 --use_flash_attn"
    words = f"{plan} --fixed_time_us 7 --write_aiob {tmp_path}/a.txt --output {tmp_path}/w.txt"
    assert run_workload.main(["generate", *words.split()]) == 0
    assert f"wrote {tmp_path}/a.txt" in capsys.readouterr().out
    again = f"{plan} --comp_filepath {tmp_path}/a.txt --output {tmp_path}/v.txt"
    assert run_workload.main(["generate", *again.split()]) == 0
