"""Which operation of the host lies in which, by thread: who called whom."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from runner.traces.names import ATTENTION, OPTIMIZER, OPTIMIZER_STEP, PRODUCTS
from runner.traces.trace_file import Event

CALLS = ("cpu_op", "user_annotation")
BACKWARD_NODE = "autograd::engine::evaluate_function"
COLLECTIVE_CALL = "c10d::"
GLOO = "gloo:"
WORKS = (f"{GLOO}send", f"{GLOO}recv", "nccl:")
"""Annotations of works that go on beside what their thread does next (torch/csrc/distributed/c10d/Work.cpp
marks them as asynchronous): gloo's messages until they are through, other works of gloo on its own threads;
NCCL's as long as the call, but that of a group of calls ("nccl:coalesced") in older ones for ever."""


@dataclass(slots=True, kw_only=True)
class Call:
    """An operation of the host inside ``parent``. ``self_s`` are its seconds outside of what it calls;
    ``wraps``: it calls an operation of its own name (a DTensor's, on what this rank holds). ``work`` is the
    annotation of a work that began within."""

    event: Event
    parent: "Call | None"
    backward: bool
    optimizer: bool
    self_s: float
    wraps: bool = False
    holds: bool = field(default=False)
    work: Event | None = None

    @property
    def named(self) -> bool:
        """Whether it is a product, an attention, a collective or gloo's work for one by name."""
        name = self.event.name
        return (
            name in PRODUCTS or name.startswith((COLLECTIVE_CALL, GLOO)) or ATTENTION.search(name) is not None
        )

    @property
    def owner(self) -> "Call | None":
        """The nearest named operation around it, itself included."""
        call: Call | None = self
        while call is not None and not call.named:
            call = call.parent
        return call


def nested(events: Iterable[Event]) -> Iterator[Call]:
    """The calls of every thread, by start. ``holds`` says that a named operation lies within."""
    threads: dict[object, list[Event]] = {}
    for one in events:
        if one.category in CALLS:
            threads.setdefault(one.thread, []).append(one)
    for held in threads.values():
        yield from _thread(sorted(held, key=lambda one: (one.start_s, -one.seconds)))


def _thread(events: Iterable[Event]) -> list[Call]:
    calls: list[Call] = []
    open_calls: list[Call] = []
    for event in events:
        while open_calls and open_calls[-1].event.end_s <= event.start_s:
            open_calls.pop()
        parent = open_calls[-1] if open_calls else None
        if event.name.startswith(WORKS):
            if parent is not None:
                parent.work = event
            continue
        optimizer = OPTIMIZER_STEP.search(event.name) or OPTIMIZER.match(event.name)
        call = Call(
            event=event,
            parent=parent,
            backward=(parent is not None and parent.backward) or event.name.startswith(BACKWARD_NODE),
            optimizer=(parent is not None and parent.optimizer) or optimizer is not None,
            self_s=event.seconds,
        )
        if parent is not None:
            parent.self_s -= event.seconds
            parent.wraps = parent.wraps or parent.event.name == event.name
            _tell(call, parent)
        calls.append(call)
        open_calls.append(call)
    return calls


def _tell(call: Call, parent: Call | None) -> None:
    """Mark what lies around a named operation."""
    if not call.named:
        return
    while parent is not None and not parent.holds:
        parent.holds = True
        parent = parent.parent
