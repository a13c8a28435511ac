"""A row says what its process found, or how it ended; the next row starts all the same."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu_step
from benchmarks.gpu_steps import rows
from benchmarks.gpu_steps.case import DecoderShape, StepCase, case_of
from benchmarks.gpu_steps.rows import price_case, row_of
from profdb.cases import CollectiveCase, GemmCase
from profdb.store.case_file import read_cases
from solver.problem.request import Request

TINY = ["--hidden", "32", "--heads", "4", "--kv_heads", "2", "--ffn", "64", "--vocab", "96", "--seq_len", "16"]
CASE = StepCase(shape=DecoderShape(hidden=32, heads=4, kv_heads=2, ffn=64, vocab=96, seq_len=16), micro_batch=2)
REQUEST = Request(root=gpu_step.ROOT, cluster="cpu")
# Stands for the process of a row: which words it got decides how it ends.
CHILD = """
import json, sys, time
case = json.loads(sys.argv[2])
if case["micro_batch"] == 1:
    print(json.dumps({"status": "oom", "reason": "CUDA out of memory"}))
elif case["compiled"]:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
elif case["micro_batch"] == 3:
    time.sleep(60)
else:
    print("a library talks")
    trials = {"passes_s": [2.0, 1.0, 9.0], "update_s": [0.5, 0.5, 0.5]}
    print(json.dumps({"status": "ok", "trials": trials, "allocated_bytes": 3 << 30, "reserved_bytes": 4 << 30}))
"""


@pytest.fixture(autouse=True)
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one_row.py"
    path.write_text(CHILD)
    monkeypatch.setattr(rows, "ONE_ROW", path)


def prediction(step_s: float) -> SimpleNamespace:
    return SimpleNamespace(step_s=step_s, parts_s={}, allocated_bytes=1.5 * 2**30, reserved_bytes=4.0 * 2**30)


def test_medians_of_the_parts_are_summed_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "price_case", lambda *asked: prediction(5.0))
    row = row_of(CASE, 1, "cuda", REQUEST, 20.0)
    assert (row.status, row.step_s) == ("ok", 2.5)
    assert row.as_line().split() == [
        *("mb2x1", "eager", "2500.0", "5000.0", "2.000", "3.0", "1.5", "0.500", "4.0", "4.0", "1.000")
    ]
    assert row.as_dict()["predicted"]["step_s"] == 5.0


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"micro_batch": 1}, "oom", "CUDA out of memory"),
        ({"compiled": True}, "failed", "illegal memory access"),
        ({"micro_batch": 3}, "timeout", "1 s"),
    ],
)
def test_what_goes_wrong_is_a_row(change: dict[str, object], status: str, reason: str) -> None:
    fields = json.loads(CASE.as_text()) | change
    row = row_of(case_of(json.dumps(fields)), 1, "cuda", REQUEST, 1.0 if status == "timeout" else 20.0)
    assert row.status == status
    assert reason in row.as_line()
    assert row.prediction is not None


def test_without_a_price_a_row_is_measured_all_the_same() -> None:
    row = row_of(CASE, 1, "cuda", Request(root=gpu_step.ROOT, profile=Path("nowhere.pt")), 20.0)
    assert row.step_s == 2.5
    assert "nowhere.pt" in row.as_line()


def test_all_rows_stand_in_the_file_and_none_starts_without_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    words = [*TINY, "--cluster", "cpu", "--json", str(path), "--micro_batch", "1", "2"]
    options = gpu_step.options_of([*words, "--recompute", "none", "--budget_s", "34"])
    assert gpu_step.run(options) == 0
    rows_of_file = json.loads(path.read_text())
    # 34 s are enough to start rows expected to take 15 s, and not for those that compile (35 s).
    assert [row["status"] for row in rows_of_file] == ["oom", "ok", "left out", "left out"]
    assert [row["case"]["micro_batch"] for row in rows_of_file] == [1, 2, 1, 2]
    assert "4 rows, about 100 s" in capsys.readouterr().out


def test_the_rows_asked_for_by_default_fit_their_budget() -> None:
    options = gpu_step.options_of([])
    cases = gpu_step.cases_of(options)
    assert len({case.name for case in cases}) == len(cases) == 12
    assert sum(map(gpu_step.expected_s, cases)) <= options.budget_s == 300.0
    # Of a row's seconds its steps are a fraction: the longest is the one of most tokens that runs its layers again.
    request = Request(root=gpu_step.ROOT, cluster="h200", missing="modelled")
    longest = next(case for case in cases if case.micro_batch == 4 and case.recompute and not case.compiled)
    steps_s = (longest.warmup + longest.steps) * price_case(longest, 1, request).step_s
    assert 1.0 < steps_s < gpu_step.expected_s(longest) / 2


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(gpu_step.ConfigError, match="--kv_heads"):
        gpu_step.options_of(["--heads", "8", "--kv_heads", "3"])


@pytest.mark.nightly
def test_what_predictions_hang_on_is_written_for_the_profiler(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    words = [*TINY, "--cluster", "cpu", "--ranks", "2", "--write_cases", str(path), "--micro_batch", "1", "2"]
    assert gpu_step.run(gpu_step.options_of(words)) == 0
    cases = read_cases(path)
    assert len(set(cases)) == len(cases)
    products = {case.m for case in cases if isinstance(case, GemmCase) and case.layout == "NT"}
    assert products == {16, 32}  # tokens of one sequence and of two
    assert any(isinstance(case, CollectiveCase) for case in cases)
