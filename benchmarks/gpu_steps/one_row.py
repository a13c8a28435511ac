"""Runs the step of one case and prints one line of JSON: seconds and bytes, or the reason why there are none.

    python benchmarks/gpu_steps/one_row.py cuda CASE       # its JSON (benchmarks.gpu_steps.case)

It is a process of its own, so that a case cannot affect the next one's device, allocator or compiler. Under torchrun
the ranks are data-parallel and average their gradients. On a GPU, seconds are wall time with the device idle before and
after. On a CPU they are CPU seconds of the thread that does all the work, which other processes do not lengthen; only the
collective is timed by the wall clock, after a barrier.

On a CPU ``reference_s`` are seconds of the step's own kernels, launched between steps as in a profile, by step, kernel and
launch: clocks and shared caches change by the minute, which an earlier profile cannot know. ``page_faults`` are those of
all trials on the first rank.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.gpu_steps.case import StepCase, case_of
from benchmarks.gpu_steps.training import PlainTrainer
from profdb.cases import AttentionCase, Case, GemmCase, MemoryBoundCase
from profiler.benchmarks.launched import OUT_OF_MEMORY
from profiler.device import Device
from profiler.distributed.rank_exit import rank_exit
from profiler.distributed.rank_layout import RankLayout, read_rank_layout
from profiler.distributed.world import World
from profiler.timing import stopwatch_for
from profiler.torch_launcher import TorchLauncher

SEED = 7
LAUNCHES = 5
"""Launches of each reference kernel before each step: some ten milliseconds."""


def reference_cases(case: StepCase) -> tuple[Case, ...]:
    """A product, an attention call and a memory-bound kernel, all of the forward; a profile measured for the step's
    look-ups has them."""
    shape, rows = case.shape, case.micro_batch * case.shape.seq_len
    width = shape.hidden // shape.heads
    return (
        GemmCase(m=rows, k=shape.hidden, n=2 * shape.ffn),
        AttentionCase(
            batch=case.micro_batch,
            q_len=shape.seq_len,
            kv_len=shape.seq_len,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            qk_dim=width,
            v_dim=width,
            mask="causal",
            direction="forward",
            kernel="flash",
            dtype="bf16",
        ),
        MemoryBoundCase(kernel="swiglu_halves_unfused", rows=rows, width=shape.ffn, direction="forward"),
    )


class Reference:
    """The reference kernels of a case, ready on a device."""

    def __init__(self, case: StepCase, device: Device) -> None:
        launcher = TorchLauncher(world=World(layout=RankLayout(), device=device))
        self.launched = [launcher.launch(one) for one in reference_cases(case)]
        self.clock = stopwatch_for(device)

    def seconds(self) -> list[list[float]]:
        """Seconds of LAUNCHES launches of each kernel, one by one."""
        return [[self.clock.burst(one.calls, 1, None) for _ in range(LAUNCHES)] for one in self.launched]


def one_step(training: PlainTrainer, device: Device) -> dict[str, float]:
    """Seconds of one step by its parts."""
    now = time.perf_counter if device.kind == "cuda" else time.thread_time
    device.synchronize()
    start = now()
    training.passes()
    parts = {}
    several = dist.is_initialized()
    if several:
        gradients = training.flat_gradients()
        device.synchronize()
        parts["passes_s"] = now() - start
        parts["communication_s"] = summing_s(gradients, device)
        start = now()
        training.average_gradients(gradients)
    training.update()
    device.synchronize()
    return parts | {"update_s" if several else "step_s": now() - start}


def summing_s(gradients: torch.Tensor, device: Device) -> float:
    """Wall seconds of summing the gradients of all ranks, which start together."""
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(gradients)
    device.synchronize()
    return time.perf_counter() - start


def measured(case: StepCase, device: Device) -> dict[str, Any]:
    """The trials of a case, and on a GPU the peak memory."""
    torch.manual_seed(SEED)
    training = PlainTrainer(case, device)
    for _ in range(case.warmup):
        one_step(training, device)
    if device.kind == "cuda":
        torch.cuda.reset_peak_memory_stats(device.index)
    reference = Reference(case, device) if device.kind == "cpu" else None
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    trials, reference_s = [], []
    for _ in range(case.steps):
        if reference is not None:
            reference_s.append(reference.seconds())
        trials.append(one_step(training, device))
    result: dict[str, Any] = {"status": "ok", "device": device.name, "torch": torch.__version__}
    if reference is not None:
        result["reference_s"] = reference_s
        result["page_faults"] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    result["trials"] = {part: [trial[part] for trial in trials] for part in trials[0]}
    if device.kind == "cuda":
        result["allocated_bytes"] = torch.cuda.max_memory_allocated(device.index)
        result["reserved_bytes"] = torch.cuda.max_memory_reserved(device.index)
    return result


def main(layout: RankLayout) -> int:
    """Read the case, run it, print the result. The exit status."""
    kind = sys.argv[1]
    device = Device(kind=kind, index=layout.local_rank)
    if kind == "cuda":
        torch.cuda.set_device(layout.local_rank)
    else:
        torch.set_num_threads(1)
    if layout.size > 1:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        result = measured(case_of(sys.argv[2]), device)
    except OUT_OF_MEMORY as error:
        result = {"status": "oom", "reason": str(error).partition("\n")[0]}
    if dist.is_initialized():
        result = slowest(result)
        dist.destroy_process_group()
    if layout.rank == 0:
        print(json.dumps(result), flush=True)
    return 0


def slowest(own: dict[str, Any]) -> dict[str, Any]:
    """The first result of any rank that has no time, else each trial's time on its slowest rank."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    for one in everyone:
        if one["status"] != "ok":
            return dict(one)
    longest = {
        part: [max(times) for times in zip(*(one["trials"][part] for one in everyone), strict=True)]
        for part in own["trials"]
    }
    if "reference_s" in own:
        own["reference_s"] = np.max([one["reference_s"] for one in everyone], axis=0).tolist()
    return own | {"trials": longest}


if __name__ == "__main__":
    of_this_rank = read_rank_layout(os.environ)
    with rank_exit(of_this_rank) as leave:
        status = leave(main(of_this_rank))
    sys.exit(status)
