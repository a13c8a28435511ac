"""Kernels of NCCL that end a group of calls (batch_isend_irecv, which pipelines and rings send by): torch launches them
after the calls that say what they move, and Kineto links them to none (pytorch/pytorch issue 194693)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.traces.names import (
    BACKWARD_NAME,
    COLLECTIVE,
    COLLECTIVE_CALL,
    GLOO,
    NCCL,
    NCCL_FUNCTIONS,
    Call,
    collective_named,
    kernel_part,
    key_of_call,
    key_of_gloo,
    key_of_nccl,
    nccl_function,
    nest_calls,
    pairs_of,
)
from runner.traces.trace_file import BACKWARD, EXTERNAL, FORWARD, Event, Issued, Key, Launched, Part, Trace

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
    waiting = [one for one in recorded if one.args.get(EXTERNAL) not in linked and one.args.get("Group size") != 1]
    alone = [
        (launched[one.args.get(CORRELATION)], place)
        for place, one in enumerate(kernels)
        if COLLECTIVE not in one.args and one.args.get(EXTERNAL) not in by_id and one.args.get(CORRELATION) in launched
    ]
    result: dict[int, list[Event]] = {}
    for launch, place in sorted(alone, key=lambda pair: pair[0].start_s):
        group = [
            one
            for one in waiting
            if one.thread == launch.thread
            and one.start_s < launch.start_s
            and _fits(kernels[place].name, str(one.args[COLLECTIVE]))
        ]
        waiting = [one for one in waiting if one not in group]
        result[place] = group
    return result


def _fits(kernel: str, said: str) -> bool:
    """True if a kernel may be the recorded call; SendRecv is an exchange as well."""
    what, function = collective_named(said), nccl_function(kernel)
    if function == "SendRecv":
        return what in MESSAGES
    return what == NCCL_FUNCTIONS.get(function or "", what)


def split_kernel(kernel: Event, group: Sequence[Event]) -> Iterator[Launched]:
    """Launches of the calls of a group, each with its part of the kernel's seconds by its bytes, one after another."""
    keys = [key_of_nccl(kernel, one.args) for one in group]
    sizes = [key.size_bytes or 0 for key in keys]
    parts = [size / sum(sizes) if all(sizes) else 1 / len(sizes) for size in sizes]
    start_s = kernel.start_s
    for key, part in zip(keys, parts, strict=True):
        yield Launched(key=key, name=kernel.name, start_s=start_s, seconds=part * kernel.seconds)
        start_s += part * kernel.seconds


# Kernels of a device by the operation of the host that launched them.

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
SPLIT_SUM = "splitKreduce"


def device_launches(device: Sequence[Event], calls: Sequence[Call], events: Sequence[Event]) -> Iterator[Issued]:
    """Every kernel and copy of ``device``, those of one product or attention as one launch."""
    by_id = {call.event.args.get(EXTERNAL): call for call in calls if call.event.category == "cpu_op"}
    launched = runtime_calls(events)
    linked = [(one, by_id.get(one.args.get(EXTERNAL)) if EXTERNAL in one.args else None) for one in device]

    def issued_s(kernel: Event, call: Call | None) -> float:
        begun = call.event if call is not None else launched.get(kernel.args.get(CORRELATION), kernel)
        return begun.start_s

    nccl = [(one, call) for one, call in linked if NCCL.search(one.name)]
    groups = grouped_calls([one for one, _ in nccl], events, launched)
    for place, (one, call) in enumerate(nccl):
        if group := groups.get(place):
            yield from ((group[0].start_s, ran) for ran in split_kernel(one, group))
            continue
        metadata = one.args if COLLECTIVE in one.args else call.event.args if call is not None else {}
        yield issued_s(one, call), _ran(key_of_nccl(one, metadata, call), one)
    others = [(one, call) for one, call in linked if not NCCL.search(one.name)]
    unowned = [(issued_s(one, call), one, call) for one, call in others if _owner(call) is None]
    yield from _by_name(unowned)
    yield from _by_owner([(one, owner) for one, call in others if (owner := _owner(call)) is not None])


def _owner(call: Call | None) -> Call | None:
    """The product or the attention that launched a kernel."""
    owner = call.owner if call is not None else None
    return None if owner is None or owner.event.name.startswith(COLLECTIVE_CALL) else owner


def _by_owner(kernels: Sequence[tuple[Event, Call]]) -> Iterator[Issued]:
    grouped: dict[int, tuple[Call, list[Event]]] = {}
    for one, owner in kernels:
        grouped.setdefault(id(owner), (owner, []))[1].append(one)
    for owner, kernels_of_call in grouped.values():
        event = owner.event
        seconds = sum(one.seconds for one in kernels_of_call)
        ran = Launched(
            key=key_of_call(owner),
            name=event.name,
            start_s=kernels_of_call[0].start_s,
            seconds=seconds,
            pairs=pairs_of(event),
        )
        yield event.start_s, ran


def _by_name(kernels: Sequence[tuple[float, Event, Call | None]]) -> Iterator[Issued]:
    """Kernels that no operation of torch's launched by name. The sum of a product cut along k belongs to it, and to an
    attention all kernels of one call and direction (cuDNN's backward runs three)."""
    last: dict[Part, tuple[Issued, Call | None]] = {}
    for issued_s, one, call in kernels:
        made = _ran(_key_by_name(one, call), one)
        part = made.key.part
        if part not in (Part.PRODUCT, Part.ATTENTION):
            yield issued_s, made
            continue
        before, of = last.get(part, (None, None))
        if before is not None and _continues(made, before[1], call is not None and call is of):
            both_s = before[1].seconds + one.seconds
            last[part] = (before[0], replace(before[1], seconds=both_s)), of
            continue
        if before is not None:
            yield before
        last[part] = (issued_s, made), call
    yield from (before for before, _ in last.values())


def _continues(ran: Launched, before: Launched, same_call: bool) -> bool:
    if ran.key.part is Part.PRODUCT:
        return SPLIT_SUM in ran.name
    return same_call and ran.key.direction == before.key.direction


def _key_by_name(event: Event, call: Call | None) -> Key:
    """Key of a kernel that no operation of torch's launched by name."""
    if event.category != "kernel":
        return Key(part=Part.KERNEL, what=Part.KERNEL.value)
    part = Part.OPTIMIZER if call is not None and call.optimizer else kernel_part(event.name)
    direction = (BACKWARD if call.backward else FORWARD) if call is not None else None
    if part is Part.ATTENTION:
        direction = BACKWARD if BACKWARD_NAME.search(event.name) else FORWARD
    what = {Part.PRODUCT: "product", Part.ATTENTION: "attention"}.get(part, part.value)
    return Key(part=part, what=what, direction=direction if part in (Part.PRODUCT, Part.ATTENTION) else None)


def _ran(key: Key, event: Event) -> Launched:
    return Launched(key=key, name=event.name, start_s=event.start_s, seconds=event.seconds)


# Operations of a processor, where it is the device.

ATEN = "aten::"


def processor_launches(calls: Sequence[Call], events: Sequence[Event]) -> Iterator[Issued]:
    """Named operations whole, collectives by gloo's work, and of all other operations of ATen what they do
    themselves."""
    begun = {id(call.work) for call in calls}
    works = [one for one in events if one.name.startswith(GLOO) and id(one) not in begun]
    for call in sorted(calls, key=lambda one: one.event.start_s):
        event = call.event
        if call.named and not call.holds:
            if event.name.startswith(COLLECTIVE_CALL):
                work = call.work or next((one for one in works if one.start_s >= event.start_s), None)
                if work in works:
                    works.remove(work)
                yield event.start_s, _ran_on_host(key_of_gloo(call, work), work or event)
            elif not event.name.startswith(GLOO):
                yield event.start_s, _ran_on_host(key_of_call(call), event)
        elif event.name.startswith(ATEN) and call.owner is None and not call.wraps and call.self_s > 0:
            part = Part.OPTIMIZER if call.optimizer else Part.KERNEL
            key = Key(part=part, what=part.value)
            yield (
                event.start_s,
                Launched(key=key, name=event.name, start_s=event.start_s, seconds=call.self_s),
            )


def _ran_on_host(key: Key, event: Event) -> Launched:
    return Launched(key=key, name=event.name, start_s=event.start_s, seconds=event.seconds, pairs=pairs_of(event))


# Every launch of a trace's steps: kernels of a device by the operation that launched them, or, where a
# processor is the device, its operations themselves.

BARRIER = "barrier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Launches of the steps, by start; ``idle_s`` of a step in which no kernel ran (None on a processor)."""

    ran: Sequence[Launched]
    num_steps: int
    idle_s: float | None


def launches(trace: Trace, warmup: int = 0) -> Launches:
    """Launches of the steps after the first ``warmup`` of them."""
    steps = trace.steps[warmup:]
    calls = list(nest_calls(trace.events))
    device = [one for one in trace.events if one.category in ON_DEVICE]
    result = list(device_launches(device, calls, trace.events) if device else processor_launches(calls, trace.events))
    begin_s = [one.start_s for one in steps]
    ends_s = [one.end_s for one in steps]

    def counted(issued_s: float) -> bool:
        return any(low <= issued_s < high for low, high in zip(begin_s, ends_s, strict=True))

    kept = sorted(
        (one for issued_s, one in result if counted(issued_s) and one.key.what != BARRIER),
        key=lambda one: one.start_s,
    )
    idle_s = None
    if device and steps:
        whole_s = sum(one.seconds for one in steps)
        idle_s = max(0.0, whole_s - _covered_s(kept)) / len(steps)
    return Launches(ran=kept, num_steps=len(steps), idle_s=idle_s)


def _covered_s(ran: Sequence[Launched]) -> float:
    """Seconds in which at least one runs; ``ran`` by start."""
    covered_s, until_s = 0.0, float("-inf")
    for one in ran:
        end_s = one.start_s + one.seconds
        covered_s += max(0.0, end_s - max(one.start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
