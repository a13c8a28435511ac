"""The loop of scripts/check_plans.sh from a profile to calibrated plans, on one processor and in little time.

The script itself runs; its programs run one after another in this process, which has loaded torch already.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gen_profiler_data
import run_workload
import simulation_train_formulaic
from solver.calibrate.__main__ import main as calibrate

ROOT = Path(__file__).resolve().parents[1]
MODEL = """model = dict(num_layers=2, hidden_size=64, num_attention_heads=4, vocab_size=128, mlp_ratio=2)
data = dict(seq_len=64, micro_num=1, micro_bsz=1)
"""
BATCH = "256"
# Hands its words to this process and ends as it says.
STAND_IN = """#!/usr/bin/env bash
[[ $1 == -c ]] && exec "$REAL_PYTHON" "$@"
printf '%s\\0' "$@" >"$PIPES/asked"
read -r status <"$PIPES/ended"
exit "$status"
"""
PROGRAMS: dict[str, Callable[[list[str]], int]] = {
    "gen_profiler_data.py": gen_profiler_data.main,
    "simulation_train_formulaic.py": simulation_train_formulaic.main,
    "run_workload.py": run_workload.main,
    "solver.calibrate": calibrate,
}


def started(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """The script, with stand-ins for python and torchrun."""
    for name in ("python", "torchrun"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    for pipe in ("asked", "ended"):
        os.mkfifo(folder / pipe)
    told = {"PATH": f"{folder}:{os.environ['PATH']}", "PIPES": str(folder), "REAL_PYTHON": sys.executable}
    script = str(ROOT / "scripts" / "check_plans.sh")
    return subprocess.Popen(["bash", script, *words], env=os.environ | told, stdout=subprocess.DEVNULL)


def served(running: subprocess.Popen[bytes], folder: Path) -> list[str]:
    """The programs that the script asked for, each run when it asked; one that fails ends the script."""
    names = []
    asked = os.open(folder / "asked", os.O_RDWR)  # stays open between the stand-ins
    while running.poll() is None:
        os.set_blocking(asked, False)
        try:
            words = os.read(asked, 1 << 16).decode().split("\0")[:-1]
        except BlockingIOError:
            try:
                running.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            break
        name = next(word for word in words if word in PROGRAMS)
        names.append(name)
        status = PROGRAMS[name](words[words.index(name) + 1 :])
        (folder / "ended").write_text(f"{status}\n")
    os.close(asked)
    return names


def profiled(config: Path, folder: Path) -> Path:
    """A profile of this processor that holds what a search of the model asks for."""
    profile, cases = folder / "p.pt", folder / "cases.json"
    asked = ["--config", str(config), "--cluster", "cpu", "--world_size", "1", "--global_batch_size", BATCH]
    asked += ["--run_all_solu", "--modes", "mtp", "--top_k", "2", "--missing", "modelled"]
    assert simulation_train_formulaic.main([*asked, "--write_cases", str(cases)]) == 0
    measured = ["--device", "cpu", "--no_pics", "--cases", str(cases), "--output", str(profile)]
    assert gen_profiler_data.main(measured) == 0
    return profile


@pytest.mark.nightly
def test_a_profile_a_search_trained_plans_factors_and_a_search(tmp_path: Path) -> None:
    config, out = tmp_path / "tiny.py", tmp_path / "out"
    config.write_text(MODEL)
    words = ["--config", str(config), "--global_batch_size", BATCH, "--nproc", "1", "--top", "2"]
    words += ["--profile", str(profiled(config, tmp_path)), "--out", str(out), "--device", "cpu"]
    with started(tmp_path, *words) as running:
        names = served(running, tmp_path)
    assert running.returncode == 0
    checked = ["run_workload.py", "run_workload.py"] * 2
    searched = "simulation_train_formulaic.py"
    calibrated = (out / "calibration.toml").exists()  # on a busy machine no factors explain two steps
    assert names == [searched, *checked, "solver.calibrate", *[searched] * calibrated]
    trained = [json.loads((out / f"step_{number}.json").read_text()) for number in (1, 2)]
    assert all(len(one["steps_s"]) == 10 for one in trained)
    assert len((out / "steps.csv").read_text().splitlines()) == 1 + 2
    before = json.loads((out / "answer.json").read_text())["best"]
    assert len(before) == 2
    assert before[0]["origins_s"]["measured"] > 0.5 * before[0]["step_s"]
    if calibrated:
        after = json.loads((out / "calibrated.json").read_text())["best"]
        assert len(after) == 2
        assert after[0]["origins_s"]["calibrated"] > 0
