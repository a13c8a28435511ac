"""A compared run as a row of measured steps: the calibration reads it back as the question that ran."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.comparison.train_record import job_words
from solver.calibrate.measured_steps import read_steps, steps_of
from solver.problem.request import Request, read_request
from spec.errors import ConfigError
from tests.runner.comparing import LOGGED, ROOT, SHEET, compare_run, trained
from tests.runner.comparison.made_logs import MEGATRON


def test_rows_appended_are_those_that_the_calibration_prices(tmp_path: Path) -> None:
    rows, path = tmp_path / "rows.csv", tmp_path / "train.log"
    path.write_text(MEGATRON)
    trained_one = compare_run(tmp_path, str(trained(tmp_path)), *SHEET, "--append", str(rows))
    plan = "tp=2,strategy=mtp,micro_batch=1,zero_stage=1"
    logged = compare_run(tmp_path, str(path), *LOGGED, "--plan", plan, "--append", str(rows))
    read = read_steps(rows, Request(root=ROOT, cluster="h100-sxm", missing="modelled"))
    assert [one.measured_s for one in read] == pytest.approx([0.3, 0.103])
    expected = [trained_one["predicted"]["step_s"], logged["predicted"]["step_s"]]
    assert np.allclose(steps_of(read).priced_s, expected, rtol=1e-9)
    assert read[1].problem.job.preset.name == "megatron"


@pytest.mark.parametrize(
    ("changed", "words", "job_text"),
    [
        ({}, (), ""),
        ({"job": {"optimizer": "muon", "host.checks_numbers": "true"}}, (), "host.checks_numbers=true,optimizer=muon"),
        pytest.param({}, ("--job", "context_parallel=all_gather,precision.gradient=fp32"), None, marks=pytest.mark.nightly),
        ({"dtype": "fp32", "job": {"unfused": "rotary+norm"}}, (), None),
        ({"preset": "megatron"}, ("--job", "data_parallel.overlap_grad_reduce=false"), None),
    ],
)  # fmt: skip
def test_a_row_is_read_back_as_the_question_that_ran(
    tmp_path: Path, changed: dict[str, Any], words: tuple[str, ...], job_text: str | None
) -> None:
    rows = tmp_path / "rows.csv"
    result = compare_run(tmp_path, str(trained(tmp_path, **changed)), *SHEET, *words, "--append", str(rows))
    (row,) = csv.DictReader(rows.open(encoding="utf-8"))
    assert (row["job"] == "") == (not changed and not words)
    assert job_text in (None, row["job"])
    read = read_steps(rows, Request(root=ROOT, cluster="h100-sxm", missing="modelled"))
    assert np.allclose(steps_of(read).priced_s, [result["predicted"]["step_s"]], rtol=1e-12)
    if "dtype" in changed:
        assert read[0].problem.job.precision.linear == "fp32"


def test_a_job_that_a_row_cannot_say_is_not_appended(tmp_path: Path) -> None:
    config, rows = tmp_path / "capped.toml", tmp_path / "rows.csv"
    config.write_text((ROOT / "configs" / "tiny_deepseek.toml").read_text() + "[job]\nmoe_capacity_factor = 1.5\n")
    request = Request(
        root=ROOT, config=config, world_size=4, global_batch_tokens=2048, cluster="h100-sxm", missing="modelled"
    )
    job = replace(read_request(request).job, moe_capacity_factor=None)
    with pytest.raises(ConfigError, match="--append: moe_capacity_factor"):
        job_words(request, job)
    assert not rows.exists()


def test_rows_that_are_there_stay_and_get_the_columns_they_lack(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("config,world_size,global_batch,measured_step_s,tp\na.py,8,4096,1.5,2\n")
    compare_run(tmp_path, str(trained(tmp_path)), *SHEET, "--append", str(rows))
    first, second = csv.DictReader(rows.open(encoding="utf-8"))
    assert (first["config"], first["tp"], first["plan"], first["seq_len"]) == ("a.py", "2", "", "")
    assert (second["tp"], second["seq_len"], second["measured_step_s"]) == ("", "64", "0.3")
