"""Rows that state their question: asked as a user asks, in today's words; what one row cannot be is its reason."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

import solver
from benchmarks import published_rows
from benchmarks.accuracy import COLUMNS as PREDICTED
from benchmarks.accuracy import main
from benchmarks.published_rows import UNEVEN_BATCH, current_words, parse_row, read_rows
from benchmarks.row_scores import GAP_STD, gap_lines, interval, measured_step_s, memory_gib, residual_lines
from solver.problem.interval import EIGHTY_PERCENT, NEW_SOURCES, UNPRICED
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError
from spec.units import GIB
from tests.benchmarks.made_up_rows import CELLS, DENSE, ROOT, predict, row, write
from tests.profdb.profiles import profile_of_nothing

JOB = {"world_size": 8, "seq_len": 256, "framework": "megatron"}


def asked(tmp_path: Path, plan: str, *, sequences: int = 8, **job: object) -> solver.Answer:
    """The same question through the public door, by the hardware spec alone."""
    session = solver.ask(
        profile=profile_of_nothing(tmp_path),
        model=tmp_path / "models" / "tiny.toml",
        cluster="a100-sxm-80g",
        job=JOB | {"global_batch_tokens": sequences * 256} | job,
    )
    return session.price(plan)


def test_a_row_is_priced_as_a_user_asks(tmp_path: Path) -> None:
    (one,) = predict(row(tmp_path, job="precision.recipe=fp16,data_parallel.overlap_grad_reduce=true"))
    same = asked(tmp_path, CELLS["plans"], **{"precision": "fp16", "data_parallel.overlap_grad_reduce": True})
    assert one.answer is not None
    assert (one.step_s, one.answer.needed_bytes) == pytest.approx((same.step_s, same.needed_bytes), rel=1e-12)
    assert memory_gib(one) == same.needed_bytes / GIB
    assert not one.gaps


def test_a_silent_plan_is_plain_whatever_the_defaults(tmp_path: Path) -> None:
    (one,) = predict(row(tmp_path, plans="tp=2,micro_batch=1"))
    assert one.answer is not None
    assert (one.answer.plan.strategy, one.answer.plan.zero_stage) == ("mtp", 0)


def test_older_words_become_current_ones_and_dropped_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"cut": "dropout", "cut=yes": "cut=true", "gone": "", "preset=of-old": "megatron"}
    monkeypatch.setattr(published_rows, "CURRENT_WORDS", table)
    job = parse_row(row(tmp_path, preset="of-old", job="cut=yes,gone=1"), ROOT).job
    assert (job.dropout, job.preset.name) == (True, "megatron")
    assert current_words("cut=1,b=2") == {"dropout": "1", "b": "2"}
    assert current_words("") == {}


def test_inferred_settings_are_not_applied(tmp_path: Path) -> None:
    assert not parse_row(row(tmp_path, inferred="dropout=true"), ROOT).job.dropout


def test_the_fastest_plan_that_fits_is_taken(tmp_path: Path) -> None:
    """Or the smallest where none does."""
    plans = ["tp=2,micro_batch=1", "tp=8,micro_batch=1"]
    steps = {plan: predict(row(tmp_path, plans=plan))[0].step_s for plan in plans}
    (one,) = predict(row(tmp_path, plans=" | ".join(plans)))
    assert one.step_s == min(steps.values()) < max(steps.values())
    huge = (
        DENSE.replace("hidden = 512", "hidden = 65536")
        .replace("1024", "262144")
        .replace("num_heads = 8", "num_heads = 512")
    )
    needs = [predict(row(tmp_path, huge, plans=plan))[0] for plan in plans]
    (one,) = predict(row(tmp_path, huge, plans=" | ".join(plans)))
    assert one.answer is not None
    least = min(each.answer.needed_bytes for each in needs if each.answer)
    assert one.answer.needed_bytes == least > read_cluster("a100-sxm-80g", root=ROOT).gpu.memory_bytes


def test_a_smaller_last_micro_batch_costs_its_share(tmp_path: Path) -> None:
    """10 sequences on 4 ranks are 2.5 micro-batches: half of the third's way; 2 alone where nothing lies beyond."""
    (one,) = predict(row(tmp_path, global_batch_sequences=10, plans="tp=2,micro_batch=1,num_micro=2,beyond=0.5"))
    two, three = (asked(tmp_path, "strategy=mtp,zero_stage=0,tp=2,micro_batch=1", sequences=n).step_s for n in (8, 12))
    assert one.step_s == pytest.approx((two + three) / 2, rel=1e-12)
    assert one.gaps == (UNEVEN_BATCH,)
    (alone,) = predict(row(tmp_path, global_batch_sequences=10, plans="tp=2,micro_batch=1,num_micro=2"))
    assert alone.step_s == pytest.approx(two, rel=1e-12)


def test_an_interleaved_pipeline_turns_pp_micro_batches_at_once(tmp_path: Path) -> None:
    plan = "pp=2,vpp=2,micro_batch=1"
    (one,) = predict(row(tmp_path, global_batch_sequences=10, plans=f"{plan},num_micro=2,beyond=0.25"))
    two, four = (asked(tmp_path, f"strategy=mtp,zero_stage=0,{plan}", sequences=n).step_s for n in (8, 16))
    assert one.step_s == pytest.approx(two + 0.25 * (four - two), rel=1e-12)


def test_changes_of_the_hardware_are_in_the_keys_of_its_file(tmp_path: Path) -> None:
    changes = "domains.infiniband.name=efa;domains.infiniband.bandwidth=12500000000.0;node.nics=4"
    own = read_cluster("a100-sxm-80g", root=ROOT)
    changed = parse_row(row(tmp_path, cluster_changes=changes), ROOT).hardware_spec
    outer = replace(own.domains[-1], name="efa", bandwidth=12.5e9)
    expected = replace(own, domains=(own.domains[0], outer), nics_per_node=4)
    assert replace(changed, name=own.name) == expected
    (one,) = predict(row(tmp_path, cluster_changes="domains.rope.bandwidth=1"))
    assert "domains.rope.bandwidth" in one.reason


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"refused": "no dimensions"}, "no dimensions"),
        ({"model_file": "none.toml"}, "none.toml"),
        ({"plans": "tp=3,micro_batch=1"}, "tensor x pipeline"),
        ({"job": "nobody=1"}, "nobody"),
        ({"num_gpus": "x"}, "num_gpus"),
        ({"cluster": "none"}, "none"),
    ],
)
def test_a_row_that_asks_nothing_says_why(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    (one,) = predict(row(tmp_path, **cells))
    assert one.answer is None
    assert reason in one.reason
    assert interval(one) is None
    assert any(reason in line for line in gap_lines([one]))


def test_a_damaged_line_is_a_row_with_a_reason(tmp_path: Path) -> None:
    path = write(tmp_path, {}, {"row_id": "r2"})
    path.write_text(path.read_text().rstrip() + ",one more\n")
    first, second = read_rows([tmp_path])
    assert not first.fault
    assert "cells for" in predict(second)[0].reason
    path.write_text("dataset,row_id\na,b\n")
    with pytest.raises(ConfigError, match="also num_gpus"):
        read_rows([path])
    with pytest.raises(ConfigError, match="readable CSV"):
        read_rows([tmp_path / "none.csv"])


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        ({"measured_step_s": "1.5"}, 1.5),
        ({"measured_tokens_per_s_per_gpu": "64"}, 8 * 256 / (64 * 8)),
        # 96 B s l h^2 (1 + s / 6h + V / 16lh), arXiv 2104.04473 eq. 3
        (
            {"dataset": "megatron_sc21", "measured_tflops_per_gpu": "2"},
            96 * 8 * 256 * 4 * 512**2 * (1 + 256 / 3072 + 1000 / 32768) / 16e12,
        ),
        ({"measured_tflops_per_gpu": "2"}, None),
        ({}, None),
    ],
)
def test_seconds_come_from_whichever_figure_is_given(
    tmp_path: Path, cells: dict[str, str], seconds: float | None
) -> None:
    model = {"hidden": 512, "layers": 4, "vocab": 1000, "measured_step_s": ""}
    assert measured_step_s(row(tmp_path, **{**model, **cells})) == pytest.approx(seconds)


def test_every_missing_piece_widens_the_interval_once(tmp_path: Path) -> None:
    (plain,) = predict(row(tmp_path))
    assert plain.answer is not None

    def std(*gaps: str) -> float:
        bounds = interval(replace(plain, gaps=gaps))
        assert bounds is not None
        return (math.log(bounds[1] / plain.step_s) - UNPRICED) / EIGHTY_PERCENT

    assert interval(plain, NEW_SOURCES) == pytest.approx((plain.answer.interval_low_s, plain.answer.interval_high_s))
    assert std(UNEVEN_BATCH) == pytest.approx(std())
    assert std("one", "one") == pytest.approx(math.hypot(std(), GAP_STD))
    assert std("one", "other") == pytest.approx(math.hypot(std(), GAP_STD, GAP_STD))


def test_the_command_writes_a_line_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measurements = write(tmp_path, {}, {"row_id": "r2", "refused": "no dimensions"})
    out = tmp_path / "pred.csv"
    words = ["--measurements", str(measurements), "--out", str(out)]
    assert main(words) == 0
    with out.open(newline="") as handle:
        first, second = csv.DictReader(handle)
    assert tuple(first) == PREDICTED
    assert sum(float(first[name]) for name in first if name.startswith("part_")) == pytest.approx(1.0)
    assert (second["pred_step_s"], second["reason"]) == ("", "no dimensions")
    printed = capsys.readouterr().out
    assert "2 rows, 1 priced" in printed
    assert "made_up" in printed
    assert main(["--measurements", str(tmp_path / "none"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("skipped: there is no ")


def test_residuals_are_split_by_what_may_explain_them(tmp_path: Path) -> None:
    (one,) = predict(row(tmp_path, tp=2))
    measured = measured_step_s(one.row)
    assert measured is not None
    lines = [line.split() for line in residual_lines([one])]
    bias, error = f"{math.log(one.step_s / measured):+.3f}", f"{100 * abs(one.step_s / measured - 1):.1f}"
    assert ["tp", "2", "1", bias, error] in lines
    assert ["dataset", "made_up", "1", bias, error] in lines
