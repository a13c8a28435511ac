"""The verb ``verify``: what it starts, what becomes of plans that fail, and what it concludes."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import run_workload
from runner import verify_verb
from runner.launch.command import Launch
from runner.launch.hosts import LaunchResult
from runner.reference.kernels import COMPILED, EAGER, FLASH2
from spec.settings.job import job_settings
from spec.settings.setting import setting_text
from tests.solver.questions import ROOT

CONFIG = str(ROOT / "configs" / "tiny_internlm2.py")
MEMORY = "error: rank 1: out of memory in step 1 of warm-up, in FeedForward of blocks.3"
STEPS_S = {1: [1.3, 1.2, 1.2], 3: [1.0, 1.0, 0.9]}


class Cluster:
    """Launches and programs that end at once. Plan 2 runs out of memory; plans of ``failing`` end as it says."""

    def __init__(self, failing: Callable[[int], str]) -> None:
        self.failing = failing
        self.launched: list[Launch] = []
        self.programs: list[list[str]] = []

    def launch(self, launch: Launch) -> LaunchResult:
        self.launched.append(launch)
        if launch.words[0] == "profile":
            return LaunchResult(status=4, errors=("error: no device",))
        number = sum(one.words[0] == "train" for one in self.launched)
        if error := self.failing(number):
            return LaunchResult(status=2, errors=(error,))
        result = Path(launch.words[launch.words.index("--json") + 1])
        result.write_text(json.dumps({"steps_s": STEPS_S[number], "allocated_bytes": 2**30}))
        return LaunchResult(status=0)

    def program(self, words: Sequence[str]) -> LaunchResult:
        self.programs.append(list(words))
        if words[0] == "search" and "--calibration" not in words:
            plan = {"strategy": "mtp", "tp": 2, "pp": 1, "micro_batch": 1, "recompute_layers": None}
            best = [{"plan": plan, "step_s": 1.0, "allocated_bytes": 2**30} for _ in range(3)]
            Path(words[words.index("--json") + 1]).write_text(json.dumps({"best": best}))
        return LaunchResult(status=0)


def checking(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str, profiled: bool = True
) -> int:
    monkeypatch.setattr(verify_verb, "run_on_hosts", cluster.launch)
    monkeypatch.setattr(verify_verb, "pss", cluster.program)
    profile = folder / "p.pt"
    if profiled:
        profile.touch()
    question = [
        "--config",
        CONFIG,
        "--global_batch_size",
        "8192",
        "--profile",
        str(profile),
        "--out",
        str(folder / "out"),
    ]
    return run_workload.main(["verify", *question, *words])


def test_a_plan_without_memory_is_a_result_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(lambda number: MEMORY if number == 2 else "")
    assert checking(cluster, tmp_path, monkeypatch, "--nproc", "4") == 0
    names = [words[0] for words in cluster.programs]
    assert names == ["search", "compare", "compare", "calibrate", "search"]
    out = capsys.readouterr().out
    assert "plan 2 out of memory: rank 1: out of memory in step 1 of warm-up, in FeedForward of blocks.3" in out
    # by the medians 1.2 and 1.0
    assert "predicted best: plan 1; fastest: plan 3; regret 20.0 %" in out
    found = json.loads((tmp_path / "out" / "checked.json").read_text())
    assert [one["outcome"] for one in found["plans"]] == ["ran", "out of memory", "ran"]
    assert [one["measured_s"] for one in found["plans"]] == [1.2, None, 1.0]
    assert found["regret"] == pytest.approx(0.2)
    train = cluster.launched[0].words
    assert train[:4] == ("train", "--config", CONFIG, "--plan=strategy=mtp,tp=2,pp=1,micro_batch=1")
    assert cluster.launched[0].nproc == 4


def test_nothing_is_concluded_where_no_plan_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(lambda _: "error: rank 0: no such device")
    assert checking(cluster, tmp_path, monkeypatch) == 1
    assert [words[0] for words in cluster.programs] == ["search"]
    out = capsys.readouterr().out
    assert out.endswith("plan 3 failed: rank 0: no such device\nno plan ran\n")
    assert json.loads((tmp_path / "out" / "checked.json").read_text())["regret"] is None


def test_one_measured_plan_is_not_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(lambda number: "" if number == 1 else MEMORY)
    assert checking(cluster, tmp_path, monkeypatch) == 0
    assert [words[0] for words in cluster.programs] == ["search", "compare"]


def test_a_profile_that_fails_ends_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(lambda _: "")
    assert checking(cluster, tmp_path, monkeypatch, "--minutes", "5", profiled=False) == 4
    assert cluster.programs == []
    assert cluster.launched[0].words[1:] == (
        "--device", "cuda", "--output", str(tmp_path / "p.pt"), "--budget_minutes=5.0"
    )  # fmt: skip


@pytest.mark.parametrize(("words", "settings"), [((), EAGER), (("--compile",), COMPILED)])
def test_the_search_prices_what_train_runs(
    words: tuple[str, ...], settings: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\n")
    cluster = Cluster(lambda _: MEMORY)
    where = ("--hosts", str(hosts), "--nproc", "4", "--job", "unfused=norm", *words)
    checking(cluster, tmp_path, monkeypatch, *where)
    search = cluster.programs[0]
    assert "--world_size=8" in search
    assert "--modes=mtp" in search
    expected = settings | {"unfused": frozenset({"norm"})}
    assert {word for word in search if word.startswith("--job=")} == {
        f"--job={key}={setting_text(value)}" for key, value in expected.items()
    }
    assert ("--compile" in cluster.launched[0].words) == bool(words)
    assert "--job=unfused=norm" in cluster.launched[0].words


@pytest.mark.parametrize("settings", [EAGER, COMPILED, FLASH2])
def test_settings_of_the_reference_can_be_written_and_read(settings: dict[str, object]) -> None:
    known = job_settings()
    assert {key: known[key].read(setting_text(value), "here") for key, value in settings.items()} == settings


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--config", "no.py"), "no.py"),
        (("--framework", "nope"), "nope"),
        (("--job", "nope=1"), "nope"),
        (("--global_batch_size", "4X"), "--global_batch_size"),
        (("--nproc", "0"), "--nproc"),
        (("--top", "0"), "--top"),
        (("--device", "tpu"), "--device"),
        (("--minutes", "$(touch x)"), "--minutes"),
    ],
)
def test_what_cannot_be_checked_is_refused_before_a_folder_is_made(
    words: tuple[str, ...],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        status = checking(Cluster(lambda _: ""), tmp_path, monkeypatch, *words)
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_question_that_the_search_refuses_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(lambda _: "")
    monkeypatch.setattr(cluster, "program", lambda _: LaunchResult(status=2, errors=("error: no profile",)))
    assert checking(cluster, tmp_path, monkeypatch) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_one_line_before_anything_is_measured(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    cluster = Cluster(lambda _: "")
    assert checking(cluster, tmp_path, monkeypatch, "--out", str(tmp_path / out), profiled=False) == 2
    assert cluster.launched == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "--out" in line


@pytest.mark.nightly
def test_from_a_profile_to_plans_that_were_trained_and_searched_again(tmp_path: Path) -> None:
    """Two gloo processes measure, search, train the three best plans, compare, fit and search again."""
    # bf16 on a processor: 2 to 4 ms a token
    words = ["verify", "--config", CONFIG, "--global_batch_size", "512", "--minutes", "0.5", "--nproc", "2"]
    words += ["--device", "cpu", "--profile", str(tmp_path / "p.pt"), "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_workload.py"), *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "predicted best: plan 1; fastest: plan " in done.stdout
    trained = [json.loads((tmp_path / f"step_{number}.json").read_text()) for number in (1, 2, 3)]
    assert all(len(one["steps_s"]) == 10 for one in trained)
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 1 + 3
    best = json.loads((tmp_path / "answer.json").read_text())["best"]
    # In CPU seconds, which others that use the machine do not lengthen; collectives, by the wall, are a small part.
    for answer, one in zip(best, trained, strict=True):
        assert 0.5 < statistics.median(one["steps_cpu_s"]) / answer["step_s"] < 2.0
    # on a busy machine no factors explain the steps
    if (tmp_path / "calibration.toml").exists():
        after = json.loads((tmp_path / "calibrated.json").read_text())["best"]
        assert after[0]["origins_s"]["calibrated"] > 0
