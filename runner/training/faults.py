"""What a rank was doing when it failed or stood still, read from its stack: which operation of torch.distributed, on
which group, in which part of the model."""

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

import torch.distributed as dist
from torch import nn

from profiler.attempt import OOM, word_for
from profiler.ranks.meeting import RankFailedError
from profiler.ranks.world import World

MOST_RANKS = 8
MOST_LETTERS = 120
PLACE_IN_SOURCE = re.compile(r"^\[[^\]]*\] ")
"""Gloo's, before what it says."""
LOST = ("gloo", "connection", "socket", "broken pipe", "nccl", "timed out", "timeout", "store")
"""Words, in small letters, by which torch's backends say that another rank is gone. They raise plain RuntimeErrors."""
PLUMBING = ("wrapper", "inner", "_fn", "wait", "__call__", "decorate_context")
"""Functions in torch.distributed that stand around an operation."""


@contextmanager
def watched(world: World, doing: str) -> Iterator[None]:
    """For one thing that all ranks do: full memory and a lost rank become one line that names rank and operation.

    Raises RankFailedError for these; any other error keeps its traceback.
    """
    world.begin(doing)
    if world.watch is not None:
        world.watch.inside = standing_in(threading.main_thread().ident)
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's out of memory is a RuntimeError
        first = innermost(error)
        said = PLACE_IN_SOURCE.sub("", str(first).partition("\n")[0])[:MOST_LETTERS]
        where = place_of(frames_of(first.__traceback__))
        if isinstance(first, Exception) and word_for(first) == OOM:
            inside = f"{doing}, in {where}" if where else doing
            words = f"rank {world.rank}: out of memory in {inside} ({said})"
            raise RankFailedError(words, speaker=world.rank) from error
        if world.size > 1 and any(word in str(first).lower() for word in LOST):
            raise world.lost(f"{where}: {said}" if where else said) from error
        raise


def innermost(error: BaseException) -> BaseException:
    """The error that others were raised from: pipelines wrap those of their stages."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def standing_in(thread: int | None) -> Callable[[], str]:
    """What a thread is inside of, asked from another."""

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
    said = []
    operation = next((name for name in map(_operation, frames) if name), "")
    if operation:
        group = next((found for found in map(_group, frames) if found), "")
        said.append(f"{operation} over {group}" if group else operation)
    modules = [one for frame in frames if isinstance(one := frame.f_locals.get("self"), nn.Module)]
    part = next((str(one.place) for one in modules if hasattr(one, "place")), "")
    if part:
        said.append(f"{type(modules[0]).__name__} of {part}")
    elif any(frame.f_code.co_name == "_engine_run_backward" for frame in frames):
        said.append("the backward")
    return " in ".join(said)


def _operation(frame: FrameType) -> str:
    module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
    outer = module.startswith("torch.distributed") and name not in PLUMBING and not name.startswith("<")
    return name.strip("_") if outer else ""


def _group(frame: FrameType) -> str:
    for value in frame.f_locals.values():
        if isinstance(value, dist.ProcessGroup):
            try:
                ranks = dist.get_process_group_ranks(value)
            except KeyError:
                # being made or destroyed just now: torch knows it by no ranks
                continue
            shown = ", ".join(map(str, ranks[:MOST_RANKS])) + (", ..." if len(ranks) > MOST_RANKS else "")
            return f"{value.group_desc or 'all ranks'} (ranks {shown})"
    return ""
