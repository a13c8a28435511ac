"""One rank of a run of four, tp 2 x pp 2, in which rank 3 may go wrong: one_of_four.py WORKLOAD RESULTS WAY LIMIT_S.

WAY: well, dies, stops, hangs, fills (its memory) - in the 12th operation of its first iteration -, differs
(in its file), or small (a workload of other degrees).
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

import run_workload
from profiler.benchmarks.launched import Call
from profiler.device import Device
from runner.replay import run

AT = 12


def fills() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


WAYS: dict[str, Call] = {
    "dies": lambda: os._exit(7),
    "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hangs": lambda: time.sleep(3600),
    "fills": fills,
}


def wayward(way: str) -> run.Clock:
    """The clock of a CPU, until it goes wrong."""
    count = 0

    def clock(call: Call) -> float:
        nonlocal count
        count += 1
        if count == AT:
            WAYS[way]()
        return run.host_seconds(call)

    return clock


def main(workload: str, results: str, way: str, limit_s: str) -> int:
    rank = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
    if rank == 3 and way in WAYS:

        def chosen(_: Device) -> run.Clock:
            return wayward(way)

        run.clock_for = chosen
    more = ["--quiet", "--timeout_s", limit_s, "--warmup", "0", "--epoch_num", "2"]
    if way == "well":
        more += ["--json", str(Path(results) / "run.json"), "--metrics", str(Path(results) / "run.prom")]
    if way == "differs" and rank == 3:
        workload = str(Path(workload).with_name("other-stage0.csv"))
    return run_workload.main(["run", workload, "--device", "cpu", "--results", results, *more])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
