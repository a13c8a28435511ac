"""A training run: timed steps, peak memory, traces, and what a rank was doing when it failed or hung, read from its
stack."""

import csv
import json
import os
import re
import resource
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TextIO

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from profiler.device import Device, choose_device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.rendezvous import RankFailedError
from profiler.distributed.termination import install_abort_hook, report_failure
from profiler.distributed.world import World, open_world
from profiler.outcome import OOM, error_status
from runner.groups.agreement import agree, check_same
from runner.logs.analysis import drift_lines
from runner.logs.metrics import RunMetrics
from runner.reference.kernels import FLASH2
from runner.reference.layers import causal_attention
from runner.training.task import TrainRequest, TrainTask, read_task
from runner.training.trainer import Trainer, TrainingConfig
from solver.problem.model_flops import attention_counted, mfu, products, tokens_per_gpu_per_s
from solver.report.files import write_json
from spec.errors import ExportError
from spec.files import atomic_file, atomic_path, check_outputs
from spec.mixers.attention import AttentionSpec
from spec.parameters import num_parameters
from spec.readers.read_config import assumption_lines
from spec.settings.setting import setting_text
from spec.units import GIB

MOST_RANKS = 8
MOST_LETTERS = 120
PROBED_TOKENS = 128
CHOSEN_ATTENTION = "aten::_scaled_dot_product_"
PLACE_IN_SOURCE = re.compile(r"^\[[^\]]*\] ")
"""The source location before gloo's messages."""
LOST = ("gloo", "connection", "socket", "broken pipe", "nccl", "timed out", "timeout", "store")
"""Words, in lower case, by which torch's backends report that another rank is gone. They raise plain RuntimeErrors."""
WRAPPERS = ("wrapper", "inner", "_fn", "wait", "__call__", "decorate_context")
"""Functions in torch.distributed that call an operation and are none themselves."""


@contextmanager
def guard_step(world: World, doing: str) -> Iterator[None]:
    """Run something that all ranks do. Raises RankFailedError, one line with rank and operation, when memory is full or a
    rank is lost; any other error keeps its traceback."""
    world.begin(doing)
    if world.watch is not None:
        world.watch.inside = place_reader(threading.main_thread().ident)
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's out of memory is a RuntimeError
        first = innermost(error)
        message = PLACE_IN_SOURCE.sub("", str(first).partition("\n")[0])[:MOST_LETTERS]
        where = place_of(frames_of(first.__traceback__))
        if isinstance(first, Exception) and error_status(first) == OOM:
            inside = f"{doing}, in {where}" if where else doing
            text = f"rank {world.rank}: out of memory in {inside} ({message})"
            raise RankFailedError(text, speaker=world.rank) from error
        # The backend's error says that a rank is gone, not which: the watchdog finds out.
        if world.size > 1 and any(word in str(first).lower() for word in LOST):
            raise world.failure(f"{where}: {message}" if where else message) from error
        raise


def innermost(error: BaseException) -> BaseException:
    """The error that others were raised from: pipelines wrap those of their stages."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def place_reader(thread: int | None) -> Callable[[], str]:
    """A function that tells, from another thread, what a thread is doing."""

    def words() -> str:
        frame = sys._current_frames().get(thread or 0)
        frames: list[FrameType] = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        return place_of(frames)

    return words


def frames_of(trace: TracebackType | None) -> list[FrameType]:
    """The frames of an error, the innermost first."""
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames[::-1]


def place_of(frames: list[FrameType]) -> str:
    """``all_reduce over mesh_tp (ranks 0, 1) in FeedForward of blocks.3``, as far as the frames tell."""
    # Frames come from the innermost: the first hit is the operation, the group and the module closest to the error.
    parts = []
    operation = next((name for name in map(_operation, frames) if name), "")
    if operation:
        group = next((result for result in map(_group, frames) if result), "")
        parts.append(f"{operation} over {group}" if group else operation)
    modules = [module for frame in frames if isinstance(module := frame.f_locals.get("self"), nn.Module)]
    part = next((str(module.place) for module in modules if hasattr(module, "place")), "")
    if part:
        parts.append(f"{type(modules[0]).__name__} of {part}")
    elif any(frame.f_code.co_name == "_engine_run_backward" for frame in frames):
        parts.append("the backward")
    return " in ".join(parts)


def _operation(frame: FrameType) -> str:
    module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
    distributed = module.startswith("torch.distributed") and name not in WRAPPERS and not name.startswith("<")
    return name.strip("_") if distributed else ""


def _group(frame: FrameType) -> str:
    for value in frame.f_locals.values():
        if isinstance(value, dist.ProcessGroup):
            try:
                ranks = dist.get_process_group_ranks(value)
            except KeyError:
                # The group is being created or destroyed: torch has no ranks for it.
                continue
            listed = ", ".join(map(str, ranks[:MOST_RANKS])) + (", ..." if len(ranks) > MOST_RANKS else "")
            return f"{value.group_desc or 'all ranks'} (ranks {listed})"
    return ""


# The result of a training run, as text and as files.

STEP_COLUMNS = ("step", "step_s", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak memory of a rank: what torch's allocator allocated and reserved after warm-up (None on a CPU, which has no
    such allocator), and the process's resident set since its start."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What a training run measured: of each timed step the seconds (of the slowest rank), CPU seconds (of the busiest)
    and loss, and the peak memory of any rank."""

    task: TrainTask
    device: str
    warmup: int
    steps_s: tuple[float, ...]
    steps_cpu_s: tuple[float, ...]
    losses: tuple[float, ...]
    memory: Memory
    attention: str

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return statistics.fmean(self.steps_s)

    @property
    def tokens_per_gpu_per_s(self) -> float:
        """Tokens per GPU and second (TGS)."""
        return float(tokens_per_gpu_per_s(self.task.problem.job, np.array([self.step_s]))[0])

    @property
    def mfu(self) -> float:
        """Share of the peak in the cluster's hardware spec."""
        problem = self.task.problem
        return float(mfu(problem.model, problem.job, problem.cluster, np.array([self.step_s]))[0])

    @property
    def name(self) -> str:
        """Name of its files."""
        return file_name(self.task)


def file_name(task: TrainTask) -> str:
    """Name of the files of a run."""
    plan = task.plan
    words = f"{task.problem.model.name}-world{plan.world_size}-{plan.label()}-{task.dtype}"
    return re.sub(r"[^\w.+=-]+", "-", words)


def peak_memory(memories: Sequence[Memory]) -> Memory:
    """Largest of all ranks, each figure by itself."""
    allocated = [each.allocated_bytes for each in memories if each.allocated_bytes is not None]
    reserved = [each.reserved_bytes for each in memories if each.reserved_bytes is not None]
    return Memory(
        allocated_bytes=max(allocated, default=None),
        reserved_bytes=max(reserved, default=None),
        resident_bytes=max(each.resident_bytes for each in memories),
    )


def heading(task: TrainTask, device: str) -> str:
    """Two lines that announce a run: the model, and the plan with its batch."""
    plan, job = task.plan, task.problem.job
    parameters = num_parameters(task.problem.model).total
    degree = f" dp{plan.dp}" if plan.dp > 1 and "dp" not in plan.label() else ""
    cut = f", cp by {job.context_parallel}" if plan.cp > 1 else ""
    return (
        f"{task.problem.model.name}, {parameters:,} parameters, on {plan.world_size} x {device}\n"
        f"plan {plan.label()}{degree}{cut}, {task.dtype}, "
        f"{job.global_batch_sequences} sequences of {job.seq_len} tokens a step"
    )


def lines(measured: TrainingResult) -> list[str]:
    """The summary of a run."""
    steps, memory, problem = measured.steps_s, measured.memory, measured.task.problem
    spread = statistics.stdev(steps) if len(steps) > 1 else 0.0
    attention_note = (
        ""
        if attention_counted(products(problem.model, problem.job), problem.job.mfu) == "full"
        else ", half of the attention matrix"
    )
    if memory.allocated_bytes is None or memory.reserved_bytes is None:
        memory_text = f"resident {memory.resident_bytes / GIB:.3f} GiB"
    else:
        memory_text = (
            f"allocated {memory.allocated_bytes / GIB:.3f} GiB, reserved {memory.reserved_bytes / GIB:.3f} GiB"
        )
    return [
        f"step     {measured.step_s:.4f} s (min {min(steps):.4f}, max {max(steps):.4f}, std {spread:.4f}; "
        f"{len(steps)} steps after {measured.warmup} of warm-up)",
        *drift_lines(steps, "steps"),
        f"tokens   {measured.tokens_per_gpu_per_s:.1f} per second and device",
        f"mfu      {100 * measured.mfu:.2f} % of the {measured.task.dtype} peak of {problem.cluster.gpu.name}{attention_note}",
        f"memory   {memory_text} on the rank with the most",
        f"loss     {measured.losses[0]:.4f} to {measured.losses[-1]:.4f}",
    ]


def record(measured: TrainingResult) -> dict[str, object]:
    """Everything, as plain values with the unit in the name; the plan's keys are those of --plan, and dp."""
    task, problem = measured.task, measured.task.problem
    # Of torch's kernels on NVIDIA's GPUs this one is not the best for the GPU (docs/configs.md, attention_kernel).
    job = dict(FLASH2 if measured.attention == "flash_attention" and torch.version.cuda else {}) | dict(task.job)
    return {
        "config": str(task.config),
        "model": problem.model.name,
        "cluster": problem.cluster.name,
        "device": measured.device,
        "torch": torch.__version__,
        "world_size": problem.job.world_size,
        "seq_len": problem.job.seq_len,
        "global_batch_tokens": problem.job.global_batch_tokens,
        "preset": problem.job.preset.name,
        "dtype": task.dtype,
        "job": {key: setting_text(value) for key, value in job.items()},
        "attention_kernel": measured.attention,
        "compiled": task.training.compiled,
        "plan": asdict(task.plan.settings) | {"dp": task.plan.dp},
        "warmup_steps": measured.warmup,
        "steps_s": list(measured.steps_s),
        "steps_cpu_s": list(measured.steps_cpu_s),
        "losses": list(measured.losses),
        "step_s": measured.step_s,
        "tokens_per_gpu_per_s": measured.tokens_per_gpu_per_s,
        "mfu": measured.mfu,
        **asdict(measured.memory),
    }


def write(measured: TrainingResult, json_file: Path | TextIO | None, results: Path | None) -> list[str]:
    """The files asked for, and a line for each; ``results`` is made where it is missing."""
    files = [] if json_file is None else [json_file]
    messages = []
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        files.append(results / f"{measured.name}_train.json")
    for file in files:
        write_json(file, record(measured))
    if results is not None:
        path = results / f"{measured.name}_steps.csv"
        with atomic_file(path) as handle:
            writer = csv.writer(handle, lineterminator="\n")
            writer.writerow(STEP_COLUMNS)
            rows = zip(measured.steps_s, measured.losses, strict=True)
            writer.writerows([place, f"{seconds:.6f}", f"{loss:.6f}"] for place, (seconds, loss) in enumerate(rows, 1))
        messages.append(f"wrote {path}")
    return messages


# One step of a training on this rank, timed.


def one_step(trainer: Trainer, world: World, step: int) -> tuple[float, float]:
    """Wall-clock seconds of a step on this rank, and CPU seconds of this process in it, to which neither waiting nor
    other processes add; all ranks begin together, with their tokens on the device."""
    # Data on the device, ranks aligned and the device idle: none of it is part of the step.
    batch = trainer.batch(step)
    world.align()
    world.device.synchronize()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    trainer.step(*batch)
    world.device.synchronize()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s


# Steps under torch's profiler, one trace per rank, after the timed ones.

STEPS = 2
WARMUP = 1
"""Steps that the profiler records and drops: its own first calls are slow."""
ENDING = ".trace.json.gz"
QUIET = "6"
"""KINETO_LOG_LEVEL above USDT, the highest of Kineto's severities (libkineto/include/ILoggerObserver.h). On a CPU Kineto
only logs that it starts and stops; on a GPU it may log errors, so the level stays."""


def silence_profiler(kind: str) -> None:
    """Let a processor's profiler log nothing."""
    if kind == "cpu":
        os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)


def trace_path(folder: Path, name: str, rank: int) -> Path:
    """The file of a rank."""
    return folder / f"{name}_rank{rank}{ENDING}"


def trace_steps(trainer: Trainer, world: World, first: int, path: Path) -> None:
    """Run WARMUP + STEPS steps from number ``first`` on and write their trace, shapes included.

    Raises ExportError for a file that cannot be written.
    """
    activities = [ProfilerActivity.CPU]
    if world.device.kind == "cuda":
        activities.append(ProfilerActivity.CUDA)
    silence_profiler(world.device.kind)
    window = schedule(wait=0, warmup=WARMUP, active=STEPS, repeat=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {error.strerror}") from error
    with (
        atomic_path(path) as temporary,
        profile(
            activities=activities,
            schedule=window,
            record_shapes=True,
            on_trace_ready=lambda trace: trace.export_chrome_trace(str(temporary)),
        ) as profiler,
    ):
        for step in range(first, first + WARMUP + STEPS):
            one_step(trainer, world, step)
            profiler.step()


# A training run: read the task, build the model, warm up, time every step, summarise.

HARMLESS = (r"FSDP2-wrapped module .* returned a view tensor",)
"""Warnings of torch's about in-place changes of outputs, which this trainer never makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Options of a training run: the request, steps of warm-up and timed steps, the longest wait of one rank for
    another, the files to write; ``trace`` is the folder of the traces, ``metrics`` the file of the state after each step."""

    request: TrainRequest
    device: str = "auto"
    steps: int = 10
    warmup: int = 3
    timeout_s: float = 120.0
    json: Path | TextIO | None = None
    results: Path | None = None
    trace: Path | None = None
    metrics: Path | None = None
    say: Callable[[str], object] = print


def run_training(options: TrainOptions, layout: RankLayout) -> list[str]:
    """The summary lines of a training run on all ranks; empty on ranks other than 0.

    Raises UserError for a request that cannot be run, RankFailedError for a rank that cannot go on.
    """
    device = choose_device(options.device, layout)
    tasks: list[TrainTask] = []

    def first(world: World) -> None:
        world.begin("reading the config and the plan")
        tasks.append(agree(world, lambda: read_task(options.request, device, layout.size)))
        agree(world, lambda: check_results(options) if world.leads else None)
        check_same(world, repr(tasks[0].training), "the config or the command line")

    # The task is read before the process groups open, so that a wrong option is reported at once.
    world = open_world(layout, device, timeout_s=options.timeout_s, first=first)
    task = tasks[0]
    if world.leads:
        options.say(heading(task, device.name))
    install_abort_hook(world)
    try:
        with warnings.catch_warnings():
            for message in HARMLESS:
                warnings.filterwarnings("ignore", message)
            measured = measure(options, task, world)
    except BaseException as error:
        report_failure(world, error)
        raise
    messages = agree(world, lambda: write(measured, options.json, options.results) if world.leads else [])
    world.close()
    if options.trace is not None:
        messages.append(f"wrote {trace_path(options.trace, measured.name, 0)}, and of the other ranks")
    return [*assumption_lines(task.training.model), *lines(measured), *messages] if world.leads else []


def check_results(options: TrainOptions) -> None:
    """Raises ConfigError for result files that could not be written when the steps are done."""
    json_path = options.json if isinstance(options.json, Path) else None
    inputs = {"--config": options.request.config}
    check_outputs({"--json": json_path, "--metrics": options.metrics}, folders={}, inputs=inputs)


def measure(options: TrainOptions, task: TrainTask, world: World) -> TrainingResult:
    """The result of building the model and running every step, the same on all ranks."""
    device = world.device
    with guard_step(world, "building the model"):
        attention = attention_kernel(task.training, device.torch_device)
        trainer = Trainer(task.training, device.torch_device)
    steps: list[tuple[float, float]] = []
    losses: list[float] = []
    in_file = options.metrics if world.leads else None
    metrics = RunMetrics(path=in_file, run=file_name(task), what="step") if in_file else None
    for step in range(options.warmup + options.steps):
        timed = step >= options.warmup
        name = f"step {step - options.warmup + 1}" if timed else f"step {step + 1} of warm-up"
        # Peaks of the first step are higher: it compiles, and libraries allocate workspaces.
        if step == options.warmup and device.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(device.index)
        compiles = task.training.compiled and not timed
        with guard_step(world, name), world.compiling() if compiles else nullcontext():
            step_seconds = one_step(trainer, world, step)
            loss = trainer.loss_share()
        if timed:
            if metrics is not None:
                metrics.add(step_seconds[0])
            steps.append(step_seconds)
            losses.append(loss)
    memory = asdict(peak_memory_of(device))
    if options.trace is not None:
        path = trace_path(options.trace, file_name(task), world.rank)
        with guard_step(world, "the steps of the trace"):
            trace_steps(trainer, world, options.warmup + options.steps, path)
    gathered = [json.loads(word) for word in world.gather(json.dumps([steps, losses, memory]))]
    of_ranks = list(zip(*(rank_steps for rank_steps, _, _ in gathered), strict=True))
    # A step takes as long as its slowest rank; the loss of the batch is the sum of the ranks' shares.
    return TrainingResult(
        task=task,
        device=device.name,
        warmup=options.warmup,
        steps_s=tuple(max(wall_s for wall_s, _ in step) for step in of_ranks),
        steps_cpu_s=tuple(max(cpu_s for _, cpu_s in step) for step in of_ranks),
        losses=tuple(map(sum, zip(*(shares for _, shares, _ in gathered), strict=True))),
        memory=peak_memory([Memory(**each) for _, _, each in gathered]),
        attention=attention,
    )


def attention_kernel(training: TrainingConfig, device: torch.device) -> str:
    """Returns the operator that torch chooses for causal attention of the model's heads (flash_attention,
    cudnn_attention, attention_math), "" where no layer has attention; few tokens of one group of heads show it."""
    mixer = next((run.block.mixer for run in training.model.blocks if isinstance(run.block.mixer, AttentionSpec)), None)
    if mixer is None:
        return ""
    heads = (mixer.num_heads // mixer.num_kv_heads, 1, 1)
    query, key, value = (
        torch.ones(1, number, PROBED_TOKENS, dim, dtype=training.compute, device=device, requires_grad=True)
        for number, dim in zip(heads, (mixer.qk_dim, mixer.qk_dim, mixer.v_dim), strict=True)
    )
    silence_profiler(device.type)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        causal_attention(query, key, value, None)
    names = (event.key for event in seen.key_averages())
    chosen = (name.removeprefix(CHOSEN_ATTENTION) for name in names if name.startswith(CHOSEN_ATTENTION))
    return next((name for name in chosen if name != "attention"), "")


def peak_memory_of(device: Device) -> Memory:
    """Peaks of this rank."""
    on_gpu = device.kind == "cuda"
    return Memory(
        allocated_bytes=torch.cuda.max_memory_allocated(device.index) if on_gpu else None,
        reserved_bytes=torch.cuda.max_memory_reserved(device.index) if on_gpu else None,
        resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
