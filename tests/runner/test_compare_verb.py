"""The verb compare: a run beside its prediction."""

import re
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from run_workload import main
from runner.comparison.matching import Pair
from runner.comparison.page import bandwidths
from runner.traces.trace_file import collective_key
from tests.runner.comparing import CONFIG, ROOT, SHEET, compare_run, trained
from tests.runner.comparison.made_logs import MEGATRON


def test_a_training_run_beside_its_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = compare_run(tmp_path, str(trained(tmp_path)), *SHEET)
    predicted, ratios = result["predicted"], result["ratios"]
    assert result["measured"]["step_s"] == 0.3
    assert result["measured"]["spread_s"] == pytest.approx([0.22, 0.46])
    assert ratios["step"] == pytest.approx(0.3 / predicted["step_s"])
    assert ratios["tokens/s per GPU"] == pytest.approx(256 / (4 * 0.3) / predicted["tgs"])
    assert ratios["MFU"] == pytest.approx(predicted["step_s"] / 0.3)
    assert ratios["allocated"] == pytest.approx(2**30 / predicted["allocated_bytes"])
    assert ratios["reserved"] == pytest.approx(2**31 / predicted["reserved_bytes"])
    recorded = {name: abs(log(ratios[name])) for name in ("step", "allocated", "reserved")}
    assert result["largest_gap"] == max(recorded, key=lambda name: recorded[name])
    assert compare_run(tmp_path, str(trained(tmp_path, allocated_bytes=2**8)), *SHEET)["largest_gap"] == "allocated"
    assert result["inside_interval"] is False
    # The largest part alone, as long as it is predicted and the gap besides.
    part_s = max(predicted["parts_s"].values())
    factor = (part_s + 0.3 - predicted["step_s"]) / part_s
    assert f" {factor:.2f} x, or" in result["suggestions"][0]
    assert "median of 3 steps after 2 of warm-up" in capsys.readouterr().out


@pytest.mark.parametrize(("cpu_s", "printed"), [(0.1, ["100"]), (0.26, [])])
def test_a_rank_on_a_processor_that_waited_says_how_long_it_worked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu_s: float, printed: list[str]
) -> None:
    """Three steps with a median of 0.25 s by the clock."""
    steps = {"steps_s": [0.25, 0.2, 0.3], "steps_cpu_s": [cpu_s] * 3}
    result = compare_run(tmp_path, str(trained(tmp_path, **steps, allocated_bytes=None, reserved_bytes=None)), *SHEET)
    words = re.findall(r"the busiest rank used (\S+) ms of CPU time in a step \((\S+) x", capsys.readouterr().out)
    assert [worked for worked, _ in words] == printed
    assert [float(ratio) for _, ratio in words] == [
        pytest.approx(cpu_s / result["predicted"]["step_s"], rel=1e-3) for _ in printed
    ]
    on_gpu = compare_run(tmp_path, str(trained(tmp_path, **steps)), *SHEET)
    assert on_gpu["measured"]["steps_cpu_s"] == []


def test_a_step_inside_the_interval_suggests_nothing(tmp_path: Path) -> None:
    plain = {"allocated_bytes": None, "reserved_bytes": None}
    step_s = compare_run(tmp_path, str(trained(tmp_path, **plain)), *SHEET)["predicted"]["step_s"]
    result = compare_run(tmp_path, str(trained(tmp_path, **plain, steps_s=[1.05 * step_s])), *SHEET)
    assert (result["inside_interval"], result["suggestions"]) == (True, [])
    result = compare_run(tmp_path, str(trained(tmp_path, **plain, steps_s=[0.01 * step_s])), *SHEET)
    assert "no part of the step is that long alone" in result["suggestions"][0]


def test_the_job_that_ran_is_the_job_that_is_priced(tmp_path: Path) -> None:
    plain = compare_run(tmp_path, str(trained(tmp_path, job={})), *SHEET)
    muon = {"job": {"optimizer": "muon"}}
    recorded = compare_run(tmp_path, str(trained(tmp_path, **muon)), *SHEET)
    requested = compare_run(tmp_path, str(trained(tmp_path)), *SHEET, "--job", "optimizer=muon")
    assert recorded["predicted"] == requested["predicted"]
    assert recorded["predicted"]["parts_s"]["optimizer"] > plain["predicted"]["parts_s"]["optimizer"]
    again = compare_run(tmp_path, str(trained(tmp_path, **muon)), *SHEET, "--job", "optimizer=muon")
    assert again["predicted"] == recorded["predicted"]


def test_a_plan_may_say_dp(tmp_path: Path) -> None:
    plan = "tp=2,dp=2,strategy=msp,micro_batch=1,recompute=full"
    result = compare_run(tmp_path, str(trained(tmp_path)), *SHEET, "--plan", plan)
    assert result["predicted"] == compare_run(tmp_path, str(trained(tmp_path)), *SHEET)["predicted"]


@pytest.mark.parametrize(
    ("changed", "words", "expected"),
    [
        ({}, ("--world_size", "8"), "--world_size = 8: 4, what the result was run with"),
        ({}, ("--plan", "tp=4"), "what the result was run with"),
        ({}, ("--plan", "tp=2,dp=4"), "dp = 4: 2, what tp 2 x pp 1 x cp 1 leave of 4 processes"),
        ({"job": {"optimizer": "muon"}}, ("--job", "optimizer=adamw"), "'optimizer=muon', what the result was"),
        ({"job": {}}, ("--job", "optimizer=muon"), "--job = 'optimizer=muon': '', what the result was"),
        ({"job": {"optimizer": 1}}, (), "job = {'optimizer': 1}: what run_workload.py train"),
        ({"job": {"optimizer": "x"}}, (), "optimizer = 'x'"),
        ({}, ("--framework", "megatron"), "'internevo', what the result was run with"),
        ({"model": "other"}, (), "'other', what the result was run with"),
        ({"steps_s": []}, (), "steps_s"),
        ({"steps_s": [float("nan")]}, (), "steps_s"),
        ({"world_size": True}, (), "world_size = True: what run_workload.py train --json writes"),
        ({"plan": {"tp": {}}}, (), "tp"),
        ({}, ("--warmup", "3"), "one after 3 of warm-up"),
    ],
)
def test_one_line_and_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    words: tuple[str, ...],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(trained(tmp_path, **changed)), *SHEET, *words]) == 2
    stderr = capsys.readouterr().err
    assert (stderr.count("\n"), expected in stderr) == (1, True), stderr
    assert not (tmp_path / "rows.csv").exists()


def test_a_log_needs_its_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text(MEGATRON)
    assert main(["compare", str(path), *SHEET, "--plan", "tp=2"]) == 2
    assert "the GPUs of the logged run" in capsys.readouterr().err


REAL_TRACE = ROOT / "tests" / "runner" / "traces" / "tp2_of_gloo.trace.json.gz"
TRACED = ["--plan", "tp=2,strategy=msp", "--seq_len", "64", "--global_batch_size", "64", "--framework", "fsdp"]


def test_a_trace_of_train_beside_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fp32 in the trace, so that sizes agree where the job is of fp32 (test_launches says which step this is)."""
    record = trained(
        tmp_path,
        world_size=2,
        seq_len=64,
        global_batch_tokens=64,
        preset="fsdp",
        dtype="fp32",
        plan={"strategy": "msp", "tp": 2},
    )
    result = compare_run(tmp_path, str(record), *SHEET, "--operations", str(REAL_TRACE))["operations"]
    by_kind = {(one["key"]["what"], one["key"]["size_bytes"]): one for one in result["collectives"]}
    assert {key: one["measured_count"] for key, one in by_kind.items()} == {
        ("all_gather", 65536): 18,
        ("reduce_scatter", 65536): 18,
        ("all_reduce", 256): 3,
    }
    assert all(one["measured_count"] == one["expected_count"] for one in by_kind.values())
    # gradients of the norms' weights, which every rank sums over its own tokens: 256 of fp32, two a layer and the last
    assert [(one["key"]["size_bytes"], one["count"]) for one in result["only_measured"]] == [(1024, 9)]
    assert result["only_expected"] == []
    composed = {pair["label"]: pair["how"] for pair in result["pairs"] if pair["how"].startswith("ran as")}
    ways = ("forward", "input_grad", "weight_grad")
    assert composed == {f"{way} attention.qkv": "ran as 3 products" for way in ways} | {
        f"{way} mlp.up": "ran as 2 products" for way in ways
    }
    assert "9 x gloo:all_reduce 1.0 KB" in capsys.readouterr().out


def test_a_trace_alone(tmp_path: Path) -> None:
    result = compare_run(tmp_path, str(REAL_TRACE), *SHEET, *TRACED)
    assert result["measured"]["form"] == "torch.profiler"
    assert result["operations"]["num_steps"] == 1
    assert result["measured"]["steps_s"] == pytest.approx([result["measured"]["step_s"]])


def played(folder: Path, *rows: str) -> Path:
    """A log as ``run`` writes it: initialisation, then one iteration."""
    columns = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count"
    ends = ["CommType.epoch_end,None,None,0,,None,None,None,5.0,None,None,1"]
    path = folder / "tiny_log.csv"
    path.write_text("\n".join([columns, *ends, *rows, *ends]) + "\n")
    return path


def test_a_played_workload_beside_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An all-gather of 64 x 256 bf16 elements in front of the queries; a product of all words on one of two ranks."""
    gather = "CommType.all_gather,CommGroup.tp_group,2,32768,forward.attention.qkv.enter,None,None,None,2.0,1,1,1"
    logits = "CommType.computation,None,None,((1 64 256) (256 512)),forward.head.logits,None,None,None,3.0,None,None,1"
    world = ("--world_size", "2")
    path = played(tmp_path, *[gather] * 18, logits)
    result = compare_run(tmp_path, str(path), *SHEET, *TRACED, *world)
    assert (result["measured"]["form"], result["measured"]["steps_s"]) == ("run", [0.005])
    (one,) = result["operations"]["collectives"]
    assert (one["measured_count"], one["expected_count"], one["measured_s"]) == (18, 18, pytest.approx(0.036))
    products = [pair for pair in result["operations"]["pairs"] if pair["key"]["part"] == "products"]
    assert [(pair["label"], pair["measured_s"]) for pair in products] == [("forward head.logits", 0.003)]
    assert any(one["label"] == "forward mlp.down" for one in result["operations"]["only_expected"])
    assert "over     size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((str(REAL_TRACE), *TRACED, "--world_size", "4"), "--world_size = 4: 2, what the result was run with"),
        ((str(REAL_TRACE), *TRACED, "--warmup", "1"), "steps = 1: one after 1 of warm-up"),
        (("step.json", "--operations", CONFIG), "--operations"),
        (("tiny_log.csv", *TRACED, "--world_size", "2", "--append", "a.csv"), "training steps"),
        (("tiny_log.csv", *TRACED, "--world_size", "2"), "none is one that is expected; check config, plan, seq_len"),
    ],
)
def test_one_line_for_operations_that_do_not_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    expected: str,
) -> None:
    trained(tmp_path)
    played(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words, *SHEET]) == 2
    assert not Path("a.csv").exists()
    stderr = capsys.readouterr().err
    assert (stderr.count("\n"), expected in stderr) == (1, True), stderr


def test_a_comparison_as_a_page(tmp_path: Path) -> None:
    """What the terminal prints, with every operation, the steps against their interval and the bandwidths."""
    record = trained(
        tmp_path,
        world_size=2,
        seq_len=64,
        global_batch_tokens=64,
        preset="fsdp",
        dtype="fp32",
        plan={"strategy": "msp", "tp": 2},
    )
    words = (str(record), *SHEET, "--operations", str(REAL_TRACE), "--report", str(tmp_path / "page"))
    result = compare_run(tmp_path, *words)
    text = (tmp_path / "page" / "index.html").read_text()
    anchors = re.findall(r'<section id="(\w+)"', text)
    assert anchors == ["comparison", "steps", "timeline", "breakdown", "parts", "bandwidth", "operations"]
    rows = {
        cells[0]: cells[1:]
        for cells in re.findall(r'<th scope="row"[^>]*>([^<]*)</th>' + r"<td[^>]*>([^<]*)</td>" * 3, text)
    }
    assert rows["step ms"][2] == f"{result['ratios']['step']:.3f}"
    labels = {pair["label"] for pair in result["operations"]["pairs"] if pair["key"]["part"] != "communication"}
    assert all(label in text for label in labels)
    assert "80 % of them" in text
    assert "Times are measured where they are not called predicted." in text


def test_bandwidths_of_a_comparison_go_by_nccl_tests_factors() -> None:
    key = collective_key("all_reduce", 10**6, 4)
    words = {"label": "x", "axis": "tp", "expected_count": 2, "measured_count": 4}
    pair = Pair(key=key, expected_s=2e-3, measured_s=8e-3, fastest_s=1e-3, **words)
    measured, predicted = bandwidths([pair, replace(pair, how="in order")])
    # 1 MB in 2 ms (1 ms at best; 1 ms predicted) x 2 (n - 1) / n of 4 ranks.
    assert measured == {"all_reduce tp 4": [(10**6, pytest.approx(0.75), pytest.approx(0.75), pytest.approx(1.5))]}
    assert predicted == {"all_reduce tp 4": [(10**6, pytest.approx(1.5))]}


def test_a_step_that_no_gpu_can_make_is_not_appended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = trained(tmp_path, steps_s=[1e-6] * 3)
    words = ["compare", str(fast), *SHEET, "--append", str(tmp_path / "rows.csv")]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert re.search(
        r"measured step = '0.001 ms': a longer one: this is \d{3,} % of the peak FLOP/s of 4 H100", printed.err
    )
    assert not (tmp_path / "rows.csv").exists()
    assert main(words[:-2]) == 0  # to look at
