"""Four gloo processes: tp 2 x pp 2 run well, and rank 3 of them goes wrong in one way or another."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import run_workload
from runner.logs.log import Log
from tests.patience import patiently
from tests.profiler.distributed.test_world import as_slurm_would, environment, free_port

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 400.0
LIMIT_S = 12.0
SHAPE = (
    "--num_layers 2 --hidden_size 32 --num_attention_heads 4 --seq_length 16 --world_size 4 --global_batch 4 "
    "--tensor_model_parallel_size 2 --pipeline_model_parallel 2 --enable_sequence_parallel --use_flash_attn "
    "--computation_enable --stage all --format general"
)


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the first of two stages."""
    folder = tmp_path_factory.mktemp("work")
    assert run_workload.main(["generate", *SHAPE.split(), "--output", str(folder / "tiny_workload.csv")]) == 0
    for stage in (0, 1):
        copied = folder / f"other-stage{stage}.csv"
        for ending in ("", ".args.json"):
            shutil.copy(folder / f"tiny_workload-stage{stage}.csv{ending}", f"{copied}{ending}")
        copied.write_text(copied.read_text().replace("forward", "forwards"))
    return folder / "tiny_workload-stage0.csv"


def ends(workload: Path, results: Path, way: str, limit_s: float = LIMIT_S) -> list[tuple[int, str]]:
    """Exit status and stderr of every rank; one that is stopped is killed when the others have ended."""
    port = free_port()
    script = Path(__file__).with_name("one_of_four.py")
    command = [sys.executable, str(script), str(workload), str(results), way, str(limit_s)]
    ranks = [
        subprocess.Popen(command, env=as_slurm_would(rank, port, tasks=4), cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    result = []
    try:
        for rank, process in enumerate(ranks):
            if way == "stops" and rank == 3:
                process.kill()
            _, errors = process.communicate(timeout=PATIENCE_S)
            result.append((process.returncode, errors))
    finally:
        for process in ranks:
            process.kill()
    return result


def test_a_run_that_is_well(workload: Path, tmp_path: Path) -> None:
    assert ends(workload, tmp_path, "well") == [(0, "")] * 4
    first, last = (Log.load(tmp_path / "comm_logs" / f"tiny{stage}_log.csv") for stage in ("", "-stage1"))
    assert [len(log.epoch_times) for log in (first, last)] == [3, 3]
    sent = sum(item.comm_type == "isend" for item in first.comm_logs)
    assert sent == sum(item.comm_type == "irecv" for item in last.comm_logs) > 0
    ranks = (tmp_path / "comm_logs" / "tiny_ranks.csv").read_text().splitlines()[1:]
    assert [line.split(",")[:3] for line in ranks] == [
        [str(rank), str(rank // 2), str(epoch)] for rank in range(4) for epoch in range(3)
    ]
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["iterations_ms"] == pytest.approx(first.epoch_times[1:])
    assert sum(row["spread"]["count"] for row in record["train"]) > 0
    assert 'pss_iterations_total{run="tiny"} 2\n' in (tmp_path / "run.prom").read_text()


@pytest.mark.parametrize(
    ("way", "line_pattern", "status"),
    [
        ("dies", r"error: rank 3 exited or stopped in \w+ .* over \w+_group \(.*row \d+\), iteration 1", 7),
        (
            "stops",
            r"error: rank 3 exited or stopped in \w+ .* over \w+_group \(.*row \d+\), iteration 1",
            -signal.SIGKILL,
        ),
        ("hangs", r"error: rank 3 behind the others in \w+ .* \(.*row \d+\), iteration 1", 2),
        ("fills", r"error: rank 3: out of memory in \w+ .* \(.*row \d+\), iteration 1", 2),
        ("differs", r"error: rank 3: the workload tiny differs from rank 0's: use the same on all nodes", 2),
    ],
)
def test_a_rank_that_goes_wrong(workload: Path, tmp_path: Path, way: str, line_pattern: str, status: int) -> None:
    def check(limit_s: float) -> None:
        results = tmp_path / str(limit_s)
        result = ends(workload, results, way, limit_s)
        assert [code for code, _ in result] == [2, 2, 2, status], result
        lines = [line for _, errors in result for line in errors.splitlines()]
        assert len(lines) == 1, lines
        assert re.fullmatch(f"{line_pattern}.*", lines[0]), lines
        if way != "differs":
            log = Log.load(results / "comm_logs" / "tiny_log.csv")
            assert log.incomplete
            assert (len(log.epoch_times), len(log.comm_log_each_epoch[1]) > 3) == (1, True)

    patiently(LIMIT_S, check)


def test_a_full_disk(workload: Path, tmp_path: Path) -> None:
    (tmp_path / "comm_logs").mkdir()
    (tmp_path / "comm_logs" / "tiny-stage1_log.csv.part").symlink_to("/dev/full")
    result = ends(workload, tmp_path, "well")
    assert [code for code, _ in result] == [2] * 4
    line_pattern = "".join(errors for _, errors in result)
    assert re.fullmatch(
        r"error: rank 2: .*tiny-stage1_log.csv: cannot be written: No space left on device\n", line_pattern
    ), line_pattern


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--master-port", free_port()]
    return subprocess.run(
        [*command, *words], env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_torchrun_ends_the_others_of_a_rank_that_dies(workload: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("one_of_four.py")
    ran = torchrun(str(script), str(workload), str(tmp_path), "dies", str(LIMIT_S))
    assert ran.returncode != 0
    lines = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, ran.stderr
    assert re.match(r"error: rank 3 exited or stopped in .* over \w+_group \(.*\), iteration 1", lines[0])
    assert Log.load(tmp_path / "comm_logs" / "tiny_log.csv").incomplete


# The suite of toy plans on four gloo processes.


# Kinds and groups that must occur in the iterations of each plan, on the first rank.
RUNS = {
    "dp4": {("all_gather", "dp_group", 4), ("reduce_scatter", "dp_group", 4)},
    "tp2_dp2": {("all_gather", "tp_group", 2), ("reduce_scatter", "tp_group", 2), ("all_reduce", "dp_group", 2)},
    "pp2_dp2": {("isend", "pp_group", 2), ("irecv", "pp_group", 2), ("all_reduce", "embedding_group", 2)},
    "tp2_pp2": {("isend", "pp_group", 2), ("all_reduce", "tp_group", 2)},
    "cp2_dp2": {("all_reduce", "dp_group", 4)},
    "zero3": {("all_gather", "dp_group", 4), ("reduce_scatter", "dp_group", 4)},
    "ep2": {("all_to_all", "ep_group", 2), ("all_reduce", "ep_dp_group", 2)},
}


def test_seven_plans_run_and_are_not_run_again(tmp_path: Path) -> None:
    suite = ["run_workload.py", "suite", "configs/suites/tiny.toml", "--device", "cpu", "--quiet"]

    def run() -> str:
        ran = torchrun(*suite, "--results", str(tmp_path))
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    first = run()
    assert "left out" not in first
    for name, expected in RUNS.items():
        log = Log.load(tmp_path / "comm_logs" / f"{name}_log.csv")
        result = {
            (item.comm_type, item.comm_group, item.comm_group_size)
            for epoch in log.comm_log_each_epoch[1:]
            for item in epoch
        }
        assert expected <= result, (name, result)
        assert ("computation", "", 0) in result
        assert not log.incomplete
    again = run().splitlines()
    assert [line.split()[0] for line in again[-7:]] == list(RUNS)
    assert all(line.endswith("(done before)") for line in again[-7:])
