"""Schedules of pipelines by the names that people write."""

import pytest

from benchmarks.accuracy_rows.clauses import Reading, readings
from benchmarks.accuracy_rows.row import RowError
from benchmarks.accuracy_rows.stated_schedules import INTERLEAVED, schedule_in
from tests.benchmarks.made_up_rows import plans, row


@pytest.mark.parametrize(
    ("notes", "name"),
    [
        ("schedule=interleaved_zero_bubble", "zb-interleaved"),
        ("pp_schedule=InterleavedZeroBubble", "zb-interleaved"),
        ("schedule: ZBV", "zb-v"),
        ("ZBVZeroBubble schedule", "zb-v"),
        ("zbv_zero_bubble", "zb-v"),
        ("ZB-H1", "zb-h1"),
        ("schedule=1f1b-interleaved", INTERLEAVED),
        ("pp_schedule=Interleaved1F1B", INTERLEAVED),
        ("interleaved schedule", INTERLEAVED),
        ("schedule=1F1B-I", INTERLEAVED),
        ("schedule=1F1B (interleaved)", INTERLEAVED),
        ("24 microbatches; Interleaved 1F1B", INTERLEAVED),
        ("schedule=1F1B", "1f1b"),
        ("LoopedBFS", "looped-bfs"),
        ("AFAB", "gpipe"),
        ("DualPipe", "dualpipe"),
        ("DualPipeV schedule", "dualpipe-v"),
        ("schedule not stated", ""),
        ("", ""),
    ],
)
def test_schedules_are_read_out_of_notes(notes: str, name: str) -> None:
    assert schedule_in(notes) == name
    clauses = [one for one in notes.split(";") if one]
    assert Reading.UNREAD not in {reading for reading, _ in readings(row(notes=notes))} or not clauses


def test_a_schedule_that_nobody_knows_is_refused() -> None:
    with pytest.raises(RowError, match="schedule must be"):
        plans(notes="schedule=foo")


def test_interleaved_means_chunks_where_layers_allow_them() -> None:
    """Eight layers on two stages, in one, two or four chunks; torchtitan's default is two."""
    cells = {"layers": "8", "vpp": ""}
    assert {plan.vpp for plan in plans(**cells)} == {1, 2, 4}
    assert {plan.vpp for plan in plans(notes="schedule=interleaved", **cells)} == {2, 4}
    assert {
        plan.vpp
        for plan in plans(framework="torchtitan", notes="schedule=Interleaved1F1B", zero_stage="0", **cells)
    } == {2}
