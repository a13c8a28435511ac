"""Every launch of a trace's steps: kernels of a device by the operation that launched them, or, where a processor is the
device, its operations themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.traces.names import BACKWARD_NAME, NCCL, kernel_part
from runner.traces.nesting import COLLECTIVE_CALL, GLOO, Call, nested
from runner.traces.ran import BACKWARD, FORWARD, Key, Part, Ran
from runner.traces.shapes import key_of_call, key_of_gloo, key_of_nccl
from runner.traces.trace_file import Event, Trace

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ATEN = "aten::"
BARRIER = "barrier"
EXTERNAL = "External id"
SPLIT_SUM = "splitKreduce"


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
    found = list(_on_device(device, calls, trace) if device else _on_processor(calls, trace))
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


Issued = Iterator[tuple[float, Ran]]
"""When the host issued a launch, and the launch."""


def _on_device(events: Sequence[Event], calls: Sequence[Call], trace: Trace) -> Issued:
    """Kernels, those of one product or attention as one launch."""
    by_id = {call.event.args.get(EXTERNAL): call for call in calls if call.event.category == "cpu_op"}
    grouped: dict[int, tuple[Call, list[Event]]] = {}
    last: tuple[float, Ran] | None = None
    for one in events:
        call = by_id.get(one.args.get(EXTERNAL)) if EXTERNAL in one.args else None
        issued_s = call.event.start_s if call is not None else one.start_s
        owner = call.owner if call is not None else None
        if NCCL.search(one.name):
            yield issued_s, _ran(key_of_nccl(one, call.event if call else None), one)
        elif owner is not None and not owner.event.name.startswith(COLLECTIVE_CALL):
            grouped.setdefault(id(owner), (owner, []))[1].append(one)
        elif SPLIT_SUM in one.name and last is not None:
            before = last[1]
            both_s = before.seconds + one.seconds
            last = last[0], Ran(key=before.key, name=before.name, start_s=before.start_s, seconds=both_s)
        else:
            made = issued_s, _ran(_key_by_name(one, call), one)
            if made[1].key.part is Part.PRODUCT:
                if last is not None:
                    yield last
                last = made
            else:
                yield made
    if last is not None:
        yield last
    for owner, kernels in grouped.values():
        seconds = sum(one.seconds for one in kernels)
        start_s = kernels[0].start_s
        yield (
            owner.event.start_s,
            Ran(key=key_of_call(owner), name=owner.event.name, start_s=start_s, seconds=seconds),
        )


def _key_by_name(event: Event, call: Call | None) -> Key:
    """Of a kernel that no operation of torch's launched by name."""
    if event.category != "kernel":
        return Key(part=Part.KERNEL, what=Part.KERNEL.value)
    part = Part.OPTIMIZER if call is not None and call.optimizer else kernel_part(event.name)
    direction = (BACKWARD if call.backward else FORWARD) if call is not None else None
    if part is Part.ATTENTION:
        direction = BACKWARD if BACKWARD_NAME.search(event.name) else FORWARD
    what = {Part.PRODUCT: "product", Part.ATTENTION: "attention"}.get(part, part.value)
    return Key(part=part, what=what, direction=direction if part in (Part.PRODUCT, Part.ATTENTION) else None)


def _on_processor(calls: Sequence[Call], trace: Trace) -> Issued:
    """Named operations whole, collectives by gloo's work, and of all other operations of ATen what they do
    themselves."""
    works = [one for one in trace.events if one.name.startswith(GLOO)]
    for call in sorted(calls, key=lambda one: one.event.start_s):
        event = call.event
        if call.named and not call.holds:
            if event.name.startswith(COLLECTIVE_CALL):
                work = next((one for one in works if one.start_s >= event.start_s), None)
                if work is not None:
                    works.remove(work)
                yield event.start_s, _ran(key_of_gloo(call, work), work or event)
            elif not event.name.startswith(GLOO):
                yield event.start_s, _ran(key_of_call(call), event)
        elif event.name.startswith(ATEN) and call.owner is None and not call.wraps and call.self_s > 0:
            part = Part.OPTIMIZER if call.optimizer else Part.KERNEL
            key = Key(part=part, what=part.value)
            yield event.start_s, Ran(key=key, name=event.name, start_s=event.start_s, seconds=call.self_s)


def _ran(key: Key, event: Event) -> Ran:
    return Ran(key=key, name=event.name, start_s=event.start_s, seconds=event.seconds)


def _covered_s(ran: Sequence[Ran]) -> float:
    """Seconds in which at least one runs; ``ran`` by start."""
    covered_s, until_s = 0.0, float("-inf")
    for one in ran:
        end_s = one.start_s + one.seconds
        covered_s += max(0.0, end_s - max(one.start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
