"""Real processes: two ranks over gloo, a rank that fails, a run that is killed."""

import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import gen_profiler_data
from profdb.cases import CollectiveCase
from profdb.store.data_file import load_profile
from profdb.store.journal import journal_path, read_journal
from tests.patience import patiently
from tests.profiler.distributed.one_of_two import FORKS, both

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = str(ROOT / "gen_profiler_data.py")
LIMIT_S = 6.0
PATIENCE_S = 180.0


def environment(**more: str) -> dict[str, str]:
    """This environment with one thread a process and nothing of an outer launcher."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "MASTER_", "LOCAL_")) and name not in ("RANK", "WORLD_SIZE")
    }
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def free_port() -> str:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def as_slurm_would(rank: int, port: str, nodes: int = 1, tasks: int = 2) -> dict[str, str]:
    """The environment of one of the ``tasks`` on each node."""
    return environment(
        SLURM_PROCID=str(rank),
        SLURM_NPROCS=str(tasks * nodes),
        SLURM_LOCALID=str(rank % tasks),
        SLURM_NNODES=str(nodes),
        SLURM_TASKS_PER_NODE=f"{tasks}(x{nodes})",
        SLURM_JOB_NODELIST="localhost",
        SLURM_JOB_ID="7",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )


@pytest.mark.nightly
def test_two_nodes_under_slurm_measure_every_split(tmp_path: Path) -> None:
    output, port = tmp_path / "data.pt", free_port()
    command = [sys.executable, SCRIPT, "--device", "cpu", "--output", str(output), "--no_pics"]
    command += ["--only", "all_reduce,p2p", "--max_size", "1KiB"]
    ranks = [
        subprocess.Popen(command, env=as_slurm_would(rank, port, nodes=2), stderr=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()
    profile = load_profile(output)
    assert (profile.machine.nodes, profile.machine.gpus_per_node) == (2, 2)
    shapes = Counter(
        (case.collective.value, case.intra, case.inter, case.siblings)
        for case in (sample.case for sample in profile.samples)
        if isinstance(case, CollectiveCase)
    )
    assert set(shapes) == {
        ("all_reduce", 2, 1, 1),
        ("all_reduce", 1, 2, 1),
        ("all_reduce", 1, 2, 2),
        ("all_reduce", 2, 2, 1),
        ("p2p", 2, 1, 1),
        ("p2p", 1, 2, 1),
        ("p2p", 1, 2, 2),
    }
    assert all(sample.status == "ok" for sample in profile.samples)


def one_of_two(way: str, output: Path, limit_s: float) -> list[str]:
    output.parent.mkdir(exist_ok=True)
    return [sys.executable, str(Path(__file__).with_name("one_of_two.py")), str(output), way, str(limit_s)]


def started(way: str, output: Path, limit_s: float, ranks: tuple[int, ...] = (0, 1)) -> list[subprocess.Popen[str]]:
    """Ranks of one_of_two.py started one by one: no launcher ends the other."""
    port, command = free_port(), one_of_two(way, output, limit_s)
    return [
        subprocess.Popen(command, env=as_slurm_would(rank, port), cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in ranks
    ]


def run_two(way: str, output: Path, limit_s: float) -> list[tuple[int | None, str]]:
    """Exit status and stderr of both ranks."""
    port = free_port()
    return both(one_of_two(way, output, limit_s)[1:], [as_slurm_would(rank, port) for rank in (0, 1)])


def test_what_one_rank_raises_is_the_result_of_the_case_on_all(tmp_path: Path) -> None:
    def check(limit_s: float) -> None:
        output = tmp_path / str(limit_s) / "data.pt"
        assert run_two("raises", output, limit_s) == [(0, ""), (0, "")]
        states = [(sample.status, sample.launched.get("reason")) for sample in load_profile(output).samples]
        assert Counter(states) == {("ok", None): 2, ("failed", "ValueError: no luck today"): 1}

    patiently(LIMIT_S, check)


@pytest.mark.nightly
def test_a_device_that_is_lost_on_one_rank_starts_all_again(tmp_path: Path) -> None:
    def check(limit_s: float) -> None:
        output = tmp_path / str(limit_s) / "data.pt"
        (status, said), (other, nothing) = run_two("loses", output, limit_s)
        assert (status, other, nothing) == (0, 0, "")
        assert said.count("\n") == 1
        assert said.startswith("note: started again after the device was lost in linear(batch=1, m=8, ")
        states = Counter(sample.status for sample in load_profile(output).samples)
        assert states == {"ok": 2, "failed": 1}

    patiently(LIMIT_S, check)


@pytest.mark.parametrize(
    ("way", "said", "kept"),
    [
        ("dies", "rank 1 exited or stopped in all_reduce(", 1),
        pytest.param("stops", "rank 1 exited or stopped in all_reduce(", 1, marks=pytest.mark.nightly),
        pytest.param("hangs", "rank 1 behind the others in linear(batch=1, m=16", 2, marks=pytest.mark.nightly),
    ],
)
def test_the_others_say_which_rank_ended_the_run(way: str, said: str, kept: int, tmp_path: Path) -> None:
    def check(limit_s: float) -> None:
        output = tmp_path / str(limit_s) / "data.pt"
        (status, of_first), (_, of_other) = run_two(way, output, limit_s)
        # Of the ranks that know, the first says it: one line of all.
        line = of_first + of_other
        assert (status, line.count("\n")) == (2, 1)
        assert said in line
        assert f"{kept} samples of this run are kept, go on with --resume" in line
        assert len(read_journal(journal_path(output)).samples) == kept

    patiently(LIMIT_S, check)


@pytest.mark.nightly
def test_a_run_that_its_launcher_ends_says_where_and_what_is_kept(tmp_path: Path) -> None:
    """Rank 1 hangs in the third case; both get SIGTERM, as when a third rank is gone."""
    output = tmp_path / "data.pt"
    ranks = started("hangs", output, PATIENCE_S)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and (
            not journal_path(output).exists() or journal_path(output).read_text().count("trials_s") < 2
        ):
            time.sleep(0.1)
        for process in ranks:
            process.terminate()
        said = "".join(process.communicate(timeout=PATIENCE_S)[1] for process in ranks)
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [2, 2]
    assert re.fullmatch(
        r"error: ended from outside \(SIGTERM\) in linear\(.*\); 2 samples of this run are kept, go on with --resume\n",
        said,
    ), said


def test_a_killed_run_resumes_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "data.pt"
    journal = journal_path(output)
    words = ["--device", "cpu", "--output", str(output), "--no_pics", "--only", "attention,host", "--max_size", "16KiB"]
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)
    first = FORKS.Process(target=gen_profiler_data.main, args=(words,))
    first.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if journal.exists() and journal.read_text(encoding="utf-8").count("trials_s") > 5:
                break
            time.sleep(0.02)
    finally:
        first.kill()
        first.join()
    assert not output.exists()
    before = read_journal(journal).samples
    assert len(before) >= 5
    assert gen_profiler_data.main([*words, "--resume"]) == 0
    assert not journal.exists()
    after = {sample.case: sample.trials_s for sample in load_profile(output).samples}
    assert len(after) == len(load_profile(output).samples)  # nothing measured twice
    assert all(after[sample.case] == sample.trials_s for sample in before)
    assert len(after) > len(before)
