"""Kernels of a device by the operation of the host that launched them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.traces.attended import pairs_of
from runner.traces.coalesced import CORRELATION, grouped_calls, runtime_calls, shared
from runner.traces.names import BACKWARD_NAME, NCCL, kernel_part
from runner.traces.nesting import COLLECTIVE_CALL, Call
from runner.traces.ran import BACKWARD, FORWARD, Issued, Key, Part, Ran
from runner.traces.shapes import COLLECTIVE, key_of_call, key_of_nccl
from runner.traces.trace_file import EXTERNAL, Event

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
SPLIT_SUM = "splitKreduce"


def on_device(device: Sequence[Event], calls: Sequence[Call], events: Sequence[Event]) -> Iterator[Issued]:
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
            yield from ((group[0].start_s, ran) for ran in shared(one, group))
            continue
        told = one.args if COLLECTIVE in one.args else call.event.args if call is not None else {}
        yield issued_s(one, call), _ran(key_of_nccl(one, told, call), one)
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
    for owner, held in grouped.values():
        event = owner.event
        seconds = sum(one.seconds for one in held)
        ran = Ran(
            key=key_of_call(owner),
            name=event.name,
            start_s=held[0].start_s,
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


def _continues(ran: Ran, before: Ran, same_call: bool) -> bool:
    if ran.key.part is Part.PRODUCT:
        return SPLIT_SUM in ran.name
    return same_call and ran.key.direction == before.key.direction


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


def _ran(key: Key, event: Event) -> Ran:
    return Ran(key=key, name=event.name, start_s=event.start_s, seconds=event.seconds)
