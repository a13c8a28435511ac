"""Runs of two ranks in each of which rank 1 goes wrong in its second step: going_wrong.py WAY...

WAY: dies, fills (its memory; rank 0 waits for its gradients) or hangs (rank 0 waits for those of keys and values), all
in a feed-forward layer. Prints
exit statuses and stderr of each run as JSON.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from profiler.distributed.rank_exit import status_in_ranks
from runner.reference.layers import FeedForward
from runner.training.run import TrainOptions, run_training
from runner.training.task import TrainRequest
from tests.profiler.distributed.test_world import free_port

ROOT = Path(__file__).resolve().parents[3]


def fill() -> NoReturn:
    raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB")


WAYS: dict[str, Callable[[], object]] = {"dies": lambda: os._exit(7), "hangs": lambda: time.sleep(3600), "fills": fill}


class Wayward:
    """A forward of feed-forward layers that goes wrong in its 20th call: 4 layers x 4 micro-batches make a step."""

    def __init__(self, way: str) -> None:
        self.way, self.calls, self.forward = way, 0, FeedForward.forward

    def __call__(self, layer: FeedForward, states: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 20:
            WAYS[self.way]()
        return self.forward(layer, states)


def rank_main(rank: int, port: str, way: str, said: str, limit_s: float) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if rank == 1:
        wayward = Wayward(way)

        def forward(layer: FeedForward, states: torch.Tensor) -> torch.Tensor:
            return wayward(layer, states)

        FeedForward.forward = forward  # type: ignore[method-assign]
    config = ROOT / "configs" / "tiny_internlm2.py"
    options = TrainOptions(
        request=TrainRequest(
            root=ROOT,
            config=config,
            plan="cp=2" if way == "hangs" else "dp=2",
            job={"context_parallel": "all_gather"},
            micro_batches=4,
            seq_len=16,
            dtype="fp32",
        ),
        device="cpu",
        warmup=0,
        timeout_s=limit_s,
    )

    def work(layout: object) -> int:
        run_training(options, layout)  # type: ignore[arg-type]
        return 0

    os._exit(status_in_ranks(work, interrupted=lambda layout: "interrupted"))


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    limit_s = float(sys.argv[1])
    for way in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as folder:
            said, port = f"{folder}/said", free_port()
            ranks = [context.Process(target=rank_main, args=(rank, port, way, said, limit_s)) for rank in range(2)]
            for each in ranks:
                each.start()
            began = time.monotonic()
            while time.monotonic() - began < 10 * limit_s and any(each.is_alive() for each in ranks):
                time.sleep(0.1)
                if way == "hangs" and ranks[0].exitcode is not None:
                    ranks[1].join(limit_s)
            for each in ranks:
                each.kill()
                each.join()
            found = {"way": way, "statuses": [each.exitcode for each in ranks], "said": Path(said).read_text()}
            print(json.dumps(found), flush=True)
