"""The launchers in scripts/: their syntax, and that every argument arrives as it was given."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.suffix in (".sh", ".sbatch"))


def ran(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *words], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_read_it(script: Path) -> None:
    assert ran("-n", str(script)).returncode == 0
    assert os.access(script, os.X_OK)


CHECK_PLANS = ROOT / "scripts" / "check_plans.sh"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "usage"),
        (("--config", "no.py"), "no.py is not a file"),
        (("--global_batch_size", "4M"), "--global_batch_size"),
        (("--nproc", "0"), "--nproc"),
        (("--top", "1"), "--top"),
        (("--device", "tpu"), "--device"),
        (("--minutes", "$(touch x)"), "--minutes"),
    ],
)
def test_checking_plans_refuses_what_it_cannot_run(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    given = ("--config", str(ROOT / "configs" / "tiny_internlm2.py"), "--global_batch_size", "8192")
    given += ("--profile", str(tmp_path / "p.pt"), "--out", str(tmp_path / "out"))
    done = ran(str(CHECK_PLANS), *(given if words else ()), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_from_a_profile_to_plans_that_were_trained_and_priced_again(tmp_path: Path) -> None:
    """Two gloo processes measure, search, train the three best plans, compare, fit and search again."""
    # bf16 on a processor: 2 to 4 ms a token.
    words = ("--config", str(ROOT / "configs" / "tiny_internlm2.py"), "--global_batch_size", "512", "--minutes", "0.5")
    words += ("--nproc", "2", "--device", "cpu", "--profile", str(tmp_path / "p.pt"), "--out", str(tmp_path))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = ran(str(CHECK_PLANS), *words, OMP_NUM_THREADS="1", PATH=path)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = (tmp_path / "steps.csv").read_text().splitlines()
    assert len(rows) == 1 + 3
    trained = [json.loads((tmp_path / f"step_{number}.json").read_text()) for number in (1, 2, 3)]
    assert all(len(one["steps_s"]) == 10 for one in trained)
    told = [json.loads((tmp_path / name).read_text())["best"] for name in ("answer.json", "calibrated.json")]
    assert [len(best) for best in told] == [3, 3]
    # In CPU seconds, which others that use the machine do not lengthen; collectives, by the wall, are a small part.
    for answer, one in zip(told[0], trained, strict=True):
        assert 0.5 < statistics.median(one["steps_cpu_s"]) / answer["step_s"] < 2.0
