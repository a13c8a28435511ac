"""The launchers in scripts/: their syntax, and that every argument arrives as it was given."""

import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.suffix in (".sh", ".sbatch"))
ON_HOSTS, SBATCH = ROOT / "scripts" / "run_on_hosts.sh", ROOT / "scripts" / "run_workload.sbatch"
HOSTILE = ("run", "a b.csv", "$(touch x)", "'; touch y #", "100%", "*")


def ran(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *words], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def hosts(tmp_path: Path, text: str = "# racks\nnode-1\n\n10.0.0.2  \n") -> str:
    (tmp_path / "iplist").write_text(text)
    return str(tmp_path / "iplist")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_read_it(script: Path) -> None:
    assert ran("-n", str(script)).returncode == 0
    assert os.access(script, os.X_OK)


def test_ssh_starts_one_torchrun_a_host(tmp_path: Path) -> None:
    dry = ran(str(ON_HOSTS), "--hosts", hosts(tmp_path), "--nproc", "4", "--dry-run", "--", *HOSTILE)
    lines = [shlex.split(line) for line in dry.stdout.splitlines()]
    assert [line[:5] for line in lines] == [
        ["ssh", "-o", "BatchMode=yes", "--", host] for host in ("node-1", "10.0.0.2")
    ]
    launched = shlex.split(lines[1][5])
    assert launched[:3] == ["cd", str(ROOT), "&&"]
    assert launched[-7:] == ["run_workload.py", *HOSTILE]
    assert {"--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=node-1:29400"} <= set(launched)


def test_pdsh_starts_the_same_everywhere(tmp_path: Path) -> None:
    dry = ran(str(ON_HOSTS), "--hosts", hosts(tmp_path), "--pdsh", "--dry-run", "--", *HOSTILE)
    words = shlex.split(dry.stdout)
    assert words[:6] == ["pdsh", "-S", "-R", "ssh", "-w", "node-1,10.0.0.2"]
    assert shlex.split(words[6].replace("%%", "%"))[-7:] == ["run_workload.py", *HOSTILE]


def test_what_a_host_runs_is_what_was_asked_and_its_failure_is_ours(tmp_path: Path) -> None:
    """With an ssh that runs here, and a torchrun that writes its arguments and fails on the second host."""
    for name, body in (
        ("ssh", 'export HOST="$4"; exec bash -c "$5"'),
        ("torchrun", 'printf "%s\\0" "$@" >"$OUT/$HOST"; [[ $HOST == node-1 ]] || exit 7'),
    ):
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    found = ran(str(ON_HOSTS), "--hosts", hosts(tmp_path), "--", *HOSTILE, PATH=path, OUT=str(tmp_path))
    assert (found.returncode, found.stderr) == (7, "error: 10.0.0.2 ended with status 7\n")
    for host in ("node-1", "10.0.0.2"):
        assert (tmp_path / host).read_text().split("\0")[-8:-1] == ["run_workload.py", *HOSTILE]


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("node-1; touch x\n", (), "is no host"),
        ("-oProxyCommand=x\n", (), "is no host"),
        ("# none\n", (), "holds no host"),
        ("node-1\n", ("--nproc", "8;x"), "--nproc: a number"),
        ("node-1\n", ("--port", "x"), "--port: a number"),
        ("node-1\n", ("--wrong",), "usage:"),
        ("node-1\n", ("--nproc",), "usage:"),
    ],
)
def test_what_is_no_host_or_number_is_refused(tmp_path: Path, text: str, more: tuple[str, ...], said: str) -> None:
    found = ran(str(ON_HOSTS), "--hosts", hosts(tmp_path, text), "--dry-run", *more, "--", "run", "w.csv")
    assert (found.returncode, found.stdout, said in found.stderr) == (2, "", True)
    assert len(found.stderr.splitlines()) == 1


def test_slurm_runs_a_task_a_gpu(tmp_path: Path) -> None:
    dry = ran(str(SBATCH), *HOSTILE, DRY_RUN="1", SLURM_SUBMIT_DIR=str(tmp_path), PYTHON="python3")
    assert shlex.split(dry.stdout) == [
        *("srun", "--distribution=block", "--kill-on-bad-exit=1", "python3", "run_workload.py", *HOSTILE)
    ]
    assert ran(str(SBATCH)).returncode == 2


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
    words = ("--config", str(ROOT / "configs" / "tiny_internlm2.py"), "--global_batch_size", "8192")
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
