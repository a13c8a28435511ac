"""The suite of toy plans on four gloo processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from runner.logs.log import Log
from tests.profiler.ranks.test_world import environment, free_port
from tests.runner.replay.test_run_in_ranks import PATIENCE_S, ROOT

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

# Kinds and groups that must occur in the iterations of each plan, on the first rank.
RUNS = {
    "dp4": {("all_gather", "dp_group", 4), ("reduce_scatter", "dp_group", 4)},
    "tp2_dp2": {
        ("all_gather", "tp_group", 2),
        ("reduce_scatter", "tp_group", 2),
        ("all_reduce", "dp_group", 2),
    },
    "pp2_dp2": {("isend", "pp_group", 2), ("irecv", "pp_group", 2), ("all_reduce", "embedding_group", 2)},
    "tp2_pp2": {("isend", "pp_group", 2), ("all_reduce", "tp_group", 2)},
    "cp2_dp2": {("all_reduce", "dp_group", 4)},
    "zero3": {("all_gather", "dp_group", 4), ("reduce_scatter", "dp_group", 4)},
    "ep2": {("all_to_all", "ep_group", 2), ("all_reduce", "ep_dp_group", 2)},
}


def test_seven_plans_run_and_are_not_run_again(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=4",
        "--master-port",
        free_port(),
    ]
    command += ["run_workload.py", "suite", "configs/suites/tiny.toml", "--device", "cpu", "--quiet"]
    command += ["--results", str(tmp_path)]

    def run() -> str:
        ran = subprocess.run(
            command,
            env=environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    first = run()
    assert "left out" not in first
    for name, expected in RUNS.items():
        log = Log.load(tmp_path / "comm_logs" / f"{name}_log.csv")
        found = {
            (item.comm_type, item.comm_group, item.comm_group_size)
            for epoch in log.comm_log_each_epoch[1:]
            for item in epoch
        }
        assert expected <= found, (name, found)
        assert ("computation", "", 0) in found
        assert not log.cut_off
    again = run().splitlines()
    assert [line.split()[0] for line in again[-7:]] == list(RUNS)
    assert all(line.endswith("(done before)") for line in again[-7:])
