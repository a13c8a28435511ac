"""Kernels of NCCL that end a group of calls (batch_isend_irecv, which pipelines and rings send by): torch launches them
after the calls that say what they move, and Kineto links them to none (pytorch/pytorch issue 194693)."""

from collections.abc import Iterator, Mapping, Sequence

from runner.traces.names import NCCL_FUNCTIONS, collective_named, nccl_function
from runner.traces.ran import Ran
from runner.traces.shapes import COLLECTIVE, key_of_nccl
from runner.traces.trace_file import EXTERNAL, Event

RECORDED = "record_param_comms"
"""What ProcessGroupNCCL.cpp calls around a collective or a message, with what it moves (RECORD_PARAM_COMMS_DATA)."""
CORRELATION = "correlation"
MESSAGES = ("p2p", "all2all")


def runtime_calls(events: Sequence[Event]) -> dict[object, Event]:
    """The calls of CUDA's runtime and driver by the number that a kernel shares with the one that launched it."""
    return {
        one.args[CORRELATION]: one
        for one in events
        if one.category in ("cuda_runtime", "cuda_driver") and CORRELATION in one.args
    }


def grouped_calls(
    kernels: Sequence[Event], events: Sequence[Event], launched: Mapping[object, Event]
) -> dict[int, list[Event]]:
    """By place among ``kernels`` of NCCL, the calls of the group that a kernel ended; empty for one that is
    linked to its own. A group's calls are those of its thread since the last kernel of their kind that no
    kernel is linked to."""
    recorded = [one for one in events if one.name == RECORDED and COLLECTIVE in one.args]
    by_id = {one.args.get(EXTERNAL): one for one in recorded}
    linked = {one.args.get(EXTERNAL) for one in kernels}
    waiting = [
        one for one in recorded if one.args.get(EXTERNAL) not in linked and one.args.get("Group size") != 1
    ]
    alone = [
        (launched[one.args.get(CORRELATION)], place)
        for place, one in enumerate(kernels)
        if COLLECTIVE not in one.args
        and one.args.get(EXTERNAL) not in by_id
        and one.args.get(CORRELATION) in launched
    ]
    found: dict[int, list[Event]] = {}
    for launch, place in sorted(alone, key=lambda pair: pair[0].start_s):
        group = [
            one
            for one in waiting
            if one.thread == launch.thread
            and one.start_s < launch.start_s
            and _fits(kernels[place].name, str(one.args[COLLECTIVE]))
        ]
        waiting = [one for one in waiting if one not in group]
        found[place] = group
    return found


def _fits(kernel: str, said: str) -> bool:
    """Whether a kernel may be what was said; SendRecv is an exchange as well."""
    what, function = collective_named(said), nccl_function(kernel)
    if function == "SendRecv":
        return what in MESSAGES
    return what == NCCL_FUNCTIONS.get(function or "", what)


def shared(kernel: Event, group: Sequence[Event]) -> Iterator[Ran]:
    """What the calls of a group moved, each with its part of the kernel's seconds by its bytes, one after another."""
    keys = [key_of_nccl(kernel, one.args) for one in group]
    sizes = [key.size_bytes or 0 for key in keys]
    parts = [size / sum(sizes) if all(sizes) else 1 / len(sizes) for size in sizes]
    start_s = kernel.start_s
    for key, part in zip(keys, parts, strict=True):
        yield Ran(key=key, name=kernel.name, start_s=start_s, seconds=part * kernel.seconds)
        start_s += part * kernel.seconds
