"""Processor time of comparing a collective's ranks, the source of ops/host_work/checked_collectives.py.

    python benchmarks/checked_collectives.py [--ranks 2 3 4]

Runs all-reduces of a few numbers over Gloo on this machine with and without TORCH_DISTRIBUTED_DEBUG=DETAIL
and prints what one rank's process spends on one, in microseconds and in forwards of ``torch.nn.Linear``. On
the critical path stand one rank's messages after another's, so with more ranks than cores the time of day
says nothing and processor time does. Other work on the machine inflates both; where the system allows it,
ranks run ahead of it while they are timed.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

REPEATS = 60
TRIALS = 3
PORT = 29_700


def ahead_of_others() -> None:
    """Let all threads of this process run before other work, where the system allows it."""
    try:
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(10))
    except PermissionError:
        return


def linear_s() -> float:
    """Seconds of a forward of ``torch.nn.Linear`` that multiplies next to nothing."""
    module, rows = torch.nn.Linear(8, 8), torch.zeros(8, 8)
    times = []
    for _ in range(TRIALS):
        begin = time.perf_counter()
        for _ in range(REPEATS):
            module(rows)
        times.append((time.perf_counter() - begin) / REPEATS)
    return min(times)


def run(rank: int, ranks: int, port: int, answers: "mp.SimpleQueue[tuple[float, float]]") -> None:
    """One rank: the quietest of some trials."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    numbers, times = torch.zeros(4), []
    dist.all_reduce(numbers)
    ahead_of_others()
    for _ in range(TRIALS):
        begin = time.process_time()
        for _ in range(REPEATS):
            dist.all_reduce(numbers)
        times.append((time.process_time() - begin) / REPEATS)
    if rank == 0:
        answers.put((min(times), linear_s()))
    dist.destroy_process_group()


def timed(ranks: int, debug: str, port: int) -> tuple[float, float]:
    """Processor seconds of one rank for an all-reduce, and of a linear module."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = debug
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    processes = [context.Process(target=run, args=(rank, ranks, port, answers)) for rank in range(ranks)]
    for process in processes:
        process.start()
    found = answers.get()
    for process in processes:
        process.join()
    return found


def main() -> None:
    """Print one line for every size of group."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    print(f"{'ranks':>5s} {'plain us':>9s} {'compared us':>12s} {'calls more':>11s}")
    for index, ranks in enumerate(parser.parse_args().ranks):
        plain_s, _ = timed(ranks, "OFF", PORT + 2 * index)
        compared_s, linear = timed(ranks, "DETAIL", PORT + 2 * index + 1)
        more = (compared_s - plain_s) / linear
        print(f"{ranks:5d} {plain_s * 1e6:9.0f} {compared_s * 1e6:12.0f} {more:11.0f}")


if __name__ == "__main__":
    main()
