"""Every launch of a trace's steps: kernels of a device by the operation that launched them, or, where a
processor is the device, its operations themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.traces.nesting import nested
from runner.traces.on_device import ON_DEVICE, on_device
from runner.traces.on_processor import on_processor
from runner.traces.ran import Ran
from runner.traces.trace_file import Trace

BARRIER = "barrier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What ran in the steps, by start; ``idle_s`` of a step in which no kernel ran (None on a processor)."""

    ran: Sequence[Ran]
    num_steps: int
    idle_s: float | None


def launches(trace: Trace, warmup: int = 0) -> Launches:
    """Of the steps after the first ``warmup`` of them."""
    steps = trace.steps[warmup:]
    calls = list(nested(trace.events))
    device = [one for one in trace.events if one.category in ON_DEVICE]
    found = list(on_device(device, calls, trace.events) if device else on_processor(calls, trace.events))
    begin_s = [one.start_s for one in steps]
    ends_s = [one.end_s for one in steps]

    def counted(issued_s: float) -> bool:
        return any(low <= issued_s < high for low, high in zip(begin_s, ends_s, strict=True))

    kept = sorted(
        (one for issued_s, one in found if counted(issued_s) and one.key.what != BARRIER),
        key=lambda one: one.start_s,
    )
    idle_s = None
    if device and steps:
        whole_s = sum(one.seconds for one in steps)
        idle_s = max(0.0, whole_s - _covered_s(kept)) / len(steps)
    return Launches(ran=kept, num_steps=len(steps), idle_s=idle_s)


def _covered_s(ran: Sequence[Ran]) -> float:
    """Seconds in which at least one runs; ``ran`` by start."""
    covered_s, until_s = 0.0, float("-inf")
    for one in ran:
        end_s = one.start_s + one.seconds
        covered_s += max(0.0, end_s - max(one.start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
