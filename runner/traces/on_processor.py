"""Operations of a processor, where it is the device."""

from collections.abc import Iterator, Sequence

from runner.traces.attended import pairs_of
from runner.traces.nesting import COLLECTIVE_CALL, GLOO, Call
from runner.traces.ran import Issued, Key, Part, Ran
from runner.traces.shapes import key_of_call, key_of_gloo
from runner.traces.trace_file import Event

ATEN = "aten::"


def on_processor(calls: Sequence[Call], events: Sequence[Event]) -> Iterator[Issued]:
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
                yield event.start_s, _ran(key_of_gloo(call, work), work or event)
            elif not event.name.startswith(GLOO):
                yield event.start_s, _ran(key_of_call(call), event)
        elif event.name.startswith(ATEN) and call.owner is None and not call.wraps and call.self_s > 0:
            part = Part.OPTIMIZER if call.optimizer else Part.KERNEL
            key = Key(part=part, what=part.value)
            yield event.start_s, Ran(key=key, name=event.name, start_s=event.start_s, seconds=call.self_s)


def _ran(key: Key, event: Event) -> Ran:
    return Ran(key=key, name=event.name, start_s=event.start_s, seconds=event.seconds, pairs=pairs_of(event))
