"""Every launch of a trace's steps: a device's kernels by the operation that launched them, or the operations themselves
where the CPU is the device."""

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
    collective_by_name,
    kernel_part,
    key_of_call,
    key_of_gloo,
    key_of_nccl,
    nccl_function,
    nest_calls,
    pairs_of,
)
from runner.traces.trace_file import BACKWARD, EXTERNAL, FORWARD, Event, Issued, Key, MeasuredLaunch, Part, Trace

RECORDED = "record_param_comms"
"""The event that ProcessGroupNCCL.cpp records around a collective or a message, with its sizes (RECORD_PARAM_COMMS_DATA)."""
CORRELATION = "correlation"
MESSAGES = ("p2p", "all2all")

# NCCL kernels of a group of calls (batch_isend_irecv, by which pipelines and rings send). torch launches the kernel after
# the calls that know what is sent, and Kineto links it to none of them (pytorch/pytorch issue 194693).


def runtime_calls(events: Sequence[Event]) -> dict[object, Event]:
    """The calls of CUDA's runtime and driver by correlation id, which a kernel shares with the call that launched it."""
    return {
        one.args[CORRELATION]: one
        for one in events
        if one.category in ("cuda_runtime", "cuda_driver") and CORRELATION in one.args
    }


def grouped_calls(
    kernels: Sequence[Event], events: Sequence[Event], runtime: Mapping[object, Event]
) -> dict[int, list[Event]]:
    """The calls of the group that each kernel ran, by the kernel's place in ``kernels`` (of NCCL); kernels that are linked
    to a call of their own are absent. A group's calls are the earlier calls of the launching thread that the kernel may
    run, that no kernel is linked to, and that no earlier group has taken."""
    recorded = [one for one in events if one.name == RECORDED and COLLECTIVE in one.args]
    by_id = {one.args.get(EXTERNAL): one for one in recorded}
    linked_ids = {one.args.get(EXTERNAL) for one in kernels}
    unlinked = [one for one in recorded if one.args.get(EXTERNAL) not in linked_ids and one.args.get("Group size") != 1]
    group_kernels = [
        (runtime[one.args.get(CORRELATION)], place)
        for place, one in enumerate(kernels)
        if COLLECTIVE not in one.args and one.args.get(EXTERNAL) not in by_id and one.args.get(CORRELATION) in runtime
    ]
    result: dict[int, list[Event]] = {}
    for launch, place in sorted(group_kernels, key=lambda pair: pair[0].start_s):
        group = [
            one
            for one in unlinked
            if one.thread == launch.thread
            and one.start_s < launch.start_s
            and _fits(kernels[place].name, str(one.args[COLLECTIVE]))
        ]
        unlinked = [one for one in unlinked if one not in group]
        result[place] = group
    return result


def _fits(kernel: str, call: str) -> bool:
    """True if a kernel may run the recorded call; SendRecv runs an all-to-all as well."""
    what, function = collective_by_name(call), nccl_function(kernel)
    if function == "SendRecv":
        return what in MESSAGES
    return what == NCCL_FUNCTIONS.get(function or "", what)


def split_kernel(kernel: Event, calls: Sequence[Event]) -> Iterator[MeasuredLaunch]:
    """A launch for each call of a group, one after another; the kernel's seconds are split by bytes."""
    keys = [key_of_nccl(kernel, one.args) for one in calls]
    sizes = [key.size_bytes or 0 for key in keys]
    parts = [size / sum(sizes) if all(sizes) else 1 / len(sizes) for size in sizes]
    start_s = kernel.start_s
    for key, part in zip(keys, parts, strict=True):
        yield MeasuredLaunch(key=key, name=kernel.name, start_s=start_s, seconds=part * kernel.seconds)
        start_s += part * kernel.seconds


# A device's kernels, by the host operation that launched them.

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
SPLIT_SUM = "splitKreduce"


def device_launches(device: Sequence[Event], calls: Sequence[Call], events: Sequence[Event]) -> Iterator[Issued]:
    """Every kernel and copy of the device; the kernels of one product or attention are one launch."""
    by_id = {call.event.args.get(EXTERNAL): call for call in calls if call.event.category == "cpu_op"}
    runtime = runtime_calls(events)
    linked = [(one, by_id.get(one.args.get(EXTERNAL)) if EXTERNAL in one.args else None) for one in device]

    def issued_s(kernel: Event, call: Call | None) -> float:
        event = call.event if call is not None else runtime.get(kernel.args.get(CORRELATION), kernel)
        return event.start_s

    nccl = [(one, call) for one, call in linked if NCCL.search(one.name)]
    groups = grouped_calls([one for one, _ in nccl], events, runtime)
    for place, (one, call) in enumerate(nccl):
        if group := groups.get(place):
            yield from ((group[0].start_s, ran) for ran in split_kernel(one, group))
            continue
        # Newer torch annotates the kernel itself; older ones annotate the call that launched it.
        metadata = one.args if COLLECTIVE in one.args else call.event.args if call is not None else {}
        yield issued_s(one, call), _launch_of(key_of_nccl(one, metadata, call), one)
    others = [(one, call) for one, call in linked if not NCCL.search(one.name)]
    unowned = [(issued_s(one, call), one, call) for one, call in others if _owner(call) is None]
    yield from _by_name(unowned)
    yield from _by_owner([(one, owner) for one, call in others if (owner := _owner(call)) is not None])


def _owner(call: Call | None) -> Call | None:
    """The product or attention that launched a kernel; None for others."""
    owner = call.owner if call is not None else None
    return None if owner is None or owner.event.name.startswith(COLLECTIVE_CALL) else owner


def _by_owner(kernels: Sequence[tuple[Event, Call]]) -> Iterator[Issued]:
    grouped: dict[int, tuple[Call, list[Event]]] = {}
    for one, owner in kernels:
        grouped.setdefault(id(owner), (owner, []))[1].append(one)
    for owner, kernels_of_call in grouped.values():
        event = owner.event
        seconds = sum(one.seconds for one in kernels_of_call)
        launch = MeasuredLaunch(
            key=key_of_call(owner),
            name=event.name,
            start_s=kernels_of_call[0].start_s,
            seconds=seconds,
            pairs=pairs_of(event),
        )
        yield event.start_s, launch


def _by_name(kernels: Sequence[tuple[float, Event, Call | None]]) -> Iterator[Issued]:
    """Launches of kernels that belong to no named operation of torch. Some of them take several kernels: the reduction of
    a split-k product belongs to the product before it, and all kernels of one call and direction are one attention
    (cuDNN's backward runs three)."""
    last: dict[Part, tuple[Issued, Call | None]] = {}
    for issued_s, one, call in kernels:
        launch = _launch_of(_key_by_name(one, call), one)
        part = launch.key.part
        if part not in (Part.PRODUCT, Part.ATTENTION):
            yield issued_s, launch
            continue
        previous, of = last.get(part, (None, None))
        if previous is not None and _continues(launch, previous[1], call is not None and call is of):
            both_s = previous[1].seconds + one.seconds
            last[part] = (previous[0], replace(previous[1], seconds=both_s)), of
            continue
        if previous is not None:
            yield previous
        last[part] = (issued_s, launch), call
    yield from (previous for previous, _ in last.values())


def _continues(launch: MeasuredLaunch, previous: MeasuredLaunch, same_call: bool) -> bool:
    if launch.key.part is Part.PRODUCT:
        return SPLIT_SUM in launch.name
    return same_call and launch.key.direction == previous.key.direction


def _key_by_name(event: Event, call: Call | None) -> Key:
    """The key of a kernel that belongs to no named operation of torch."""
    if event.category != "kernel":
        return Key(part=Part.KERNEL, what=Part.KERNEL.value)
    part = Part.OPTIMIZER if call is not None and call.optimizer else kernel_part(event.name)
    direction = (BACKWARD if call.backward else FORWARD) if call is not None else None
    if part is Part.ATTENTION:
        direction = BACKWARD if BACKWARD_NAME.search(event.name) else FORWARD
    what = {Part.PRODUCT: "product", Part.ATTENTION: "attention"}.get(part, part.value)
    return Key(part=part, what=what, direction=direction if part in (Part.PRODUCT, Part.ATTENTION) else None)


def _launch_of(key: Key, event: Event) -> MeasuredLaunch:
    return MeasuredLaunch(key=key, name=event.name, start_s=event.start_s, seconds=event.seconds)


# Operations of the CPU, where it is the device.

ATEN = "aten::"


def cpu_launches(calls: Sequence[Call], events: Sequence[Event]) -> Iterator[Issued]:
    """Named operations as a whole, collectives by gloo's work, and other ATen operations by the time outside of what they
    call."""
    own_works = {id(call.work) for call in calls}
    works = [one for one in events if one.name.startswith(GLOO) and id(one) not in own_works]
    for call in sorted(calls, key=lambda one: one.event.start_s):
        event = call.event
        if call.named and not call.contains_named:
            if event.name.startswith(COLLECTIVE_CALL):
                # gloo runs the work on a thread of its own: the next work that starts is this call's.
                work = call.work or next((one for one in works if one.start_s >= event.start_s), None)
                if work in works:
                    works.remove(work)
                yield event.start_s, _host_launch(key_of_gloo(call, work), work or event)
            elif not event.name.startswith(GLOO):
                yield event.start_s, _host_launch(key_of_call(call), event)
        elif event.name.startswith(ATEN) and call.owner is None and not call.calls_same and call.self_s > 0:
            part = Part.OPTIMIZER if call.optimizer else Part.KERNEL
            key = Key(part=part, what=part.value)
            yield (event.start_s, MeasuredLaunch(key=key, name=event.name, start_s=event.start_s, seconds=call.self_s))


def _host_launch(key: Key, event: Event) -> MeasuredLaunch:
    return MeasuredLaunch(key=key, name=event.name, start_s=event.start_s, seconds=event.seconds, pairs=pairs_of(event))


# The launches of a trace's steps.

BARRIER = "barrier"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaunches:
    """Launches of the steps, by start; ``idle_s`` of a step in which no kernel ran (None on a CPU)."""

    launches: Sequence[MeasuredLaunch]
    num_steps: int
    idle_s: float | None


def step_launches(trace: Trace, warmup: int = 0) -> StepLaunches:
    """The launches of the steps after the first ``warmup``."""
    steps = trace.steps[warmup:]
    calls = list(nest_calls(trace.events))
    device = [one for one in trace.events if one.category in DEVICE_CATEGORIES]
    issued = list(device_launches(device, calls, trace.events) if device else cpu_launches(calls, trace.events))
    begin_s = [one.start_s for one in steps]
    ends_s = [one.end_s for one in steps]

    # A launch belongs to the step in which the host issued it, although the device may run it later.
    def is_counted(issued_s: float) -> bool:
        return any(low <= issued_s < high for low, high in zip(begin_s, ends_s, strict=True))

    in_steps = sorted(
        (one for issued_s, one in issued if is_counted(issued_s) and one.key.what != BARRIER),
        key=lambda one: one.start_s,
    )
    idle_s = None
    if device and steps:
        total_s = sum(one.seconds for one in steps)
        idle_s = max(0.0, total_s - _covered_s(in_steps)) / len(steps)
    return StepLaunches(launches=in_steps, num_steps=len(steps), idle_s=idle_s)


def _covered_s(launches: Sequence[MeasuredLaunch]) -> float:
    """Seconds in which at least one launch runs; ``launches`` are sorted by start."""
    covered_s, until_s = 0.0, float("-inf")
    for one in launches:
        end_s = one.start_s + one.seconds
        covered_s += max(0.0, end_s - max(one.start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
