"""The page of a log: what its sections say, what its pictures draw."""

import re
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.figure import Figure

from runner.logs import pictures
from runner.logs.log import Log, epoch_end, with_time
from runner.logs.page import bandwidths, log_page, log_sections, milliseconds_by_kind, pieces_of
from runner.logs.pictures import Piece, bandwidth_picture, steps_picture, timeline_picture
from solver.report.html import page_text
from solver.report.sections import Picture
from solver.report.themed_svg import STYLE
from tests.runner.replay.test_program import collective
from workload.aicb.csv_workload import COMPUTATION, GeneralItem


def operation(kind: str, group: str, ms: float, size: int = 2**20, stage: str = "forward.x") -> GeneralItem:
    return with_time(replace(collective(kind=kind, stage=stage), comm_group=group, msg_size=size), ms * 1e-3)


def iteration(gather_ms: float) -> list[GeneralItem]:
    product = with_time(
        GeneralItem(comm_type=COMPUTATION, stage="backward.mlp.up", shapes=((2, 2), (2, 2))), 4.0 * 1e-3
    )
    return [operation("all_gather", "tp_group", gather_ms), product, operation("all_reduce", "dp_group", 1.0)]


TIMES_MS = [6.0] * 7 + [60.0]
LOG = Log.of([epoch_end(1.0)] + [row for ms in TIMES_MS for row in (*iteration(ms - 5.0), epoch_end(ms * 1e-3))])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The wide figure of each picture that a test makes."""
    figures: list[Figure] = []

    def picture(name: str, draw: Any, *, heights: tuple[int, int], words: tuple[str, str]) -> Picture:
        import matplotlib as mpl

        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(10, heights[0] / 72), layout="constrained")
            draw(figure)
            figure.canvas.draw()
        figures.append(figure)
        return Picture(wide="", narrow="", alt=words[0], caption=words[1])

    monkeypatch.setattr(pictures, "picture", picture)
    return figures


def test_a_page_has_every_section_of_a_log() -> None:
    page = log_page("<b>run", LOG, [])
    assert [one.anchor for one in page.sections] == [
        *("steps", "shares", "timeline", "bandwidth", "outliers", "operations")
    ]
    tiles = {tile.label: (tile.value, tile.note) for tile in page.tiles}
    assert tiles["iteration"][0] == "6 ms"
    # 7 x (1 + 1) + (55 + 1) of 7 x 6 + 60 ms.
    assert tiles["communication"][0] == "68.6 %"
    assert tiles["drift"][0] == "none"
    assert tiles["outliers"][0] == "1"
    text = page_text(page)
    assert "&lt;b&gt;run" in text
    assert "<b>" not in text
    assert "Times are measured." in text
    assert "predicted" not in text
    assert text.count("<svg") == 8  # four pictures, wide and narrow


def test_tables_of_a_page_are_by_operation_group_and_size() -> None:
    sections = {one.anchor: one for one in log_page("run", LOG, []).sections}
    (table,) = sections["operations"].tables
    rows = {row[0]: list(row[1:]) for row in table.rows}
    assert rows["all_reduce"][:5] == ["dp", "2", "1.0 MB", "8", "1"]
    assert rows["all_gather"][9] == "62"  # 7 x 1 + 55 ms in all
    assert rows[COMPUTATION][:3] == ["", "", ""]
    (outliers,) = sections["outliers"].tables
    assert outliers.rows == [["all_gather forward.x", "tp", "8", "1", "55", "1", "55.00"]]
    assert not outliers.folded


def test_drift_stands_on_the_page() -> None:
    slower = Log.of([epoch_end(1.0)] + [epoch_end((10.0 + at) * 1e-3) for at in range(30)])
    (section,) = log_sections(slower)
    (line,) = section.paragraphs
    assert line.startswith("drift: the last third of 30 iterations takes")


def test_an_iteration_is_by_kind_and_one_operation_after_another() -> None:
    items = iteration(3.0)
    assert milliseconds_by_kind(items) == {
        f"backward {COMPUTATION}": 4.0,
        "all_gather tp": pytest.approx(3.0),
        "all_reduce dp": 1.0,
    }
    assert [(one.row, one.start_ms, one.ms) for one in pieces_of(items)] == [
        *(("tp", 0.0, 3.0), (COMPUTATION, 3.0, 4.0), ("dp", 7.0, 1.0))
    ]


def test_bandwidths_are_the_middle_of_each_size() -> None:
    items = [replace(operation("all_gather", "tp_group", 1.0), busbw=float(rate)) for rate in range(1, 12)]
    assert bandwidths(items) == {"all_gather tp": [(2**20, 2.0, 6.0, 10.0)]}


def test_steps_are_drawn_against_their_interval(drawn: list[Figure]) -> None:
    made = steps_picture([5.0, 7.0, 6.0], "step", (3.0, 4.0, 5.5))
    (axes,) = drawn[0].axes
    lines = {str(line.get_label()): list(line.get_ydata()) for line in axes.lines}
    assert lines == {"predicted": [4.0, 4.0], "median": [6.0, 6.0], "step": [5.0, 7.0, 6.0]}
    (band,) = axes.patches
    assert (band.get_y(), band.get_height()) == (3.0, 2.5)  # type: ignore[attr-defined]
    assert "median 6 ms, from 5 to 7 ms, predicted 4 ms" in made.alt
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_a_time_line_has_a_row_for_each_group(drawn: list[Figure], monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [Piece("tp", "all_gather tp", 2.0, 1.0), Piece("dp", "all_reduce dp", 5.0, 3.0)]
    made = timeline_picture(pieces, "step 1")
    (axes,) = drawn[0].axes
    boxes = [patch.get_path().get_extents().bounds for patch in axes.patches]  # type: ignore[attr-defined]
    assert [(x, width) for x, _, width, _ in boxes] == [(0.0, 1.0), (3.0, 3.0)]
    assert [y for _, y, _, _ in boxes] == pytest.approx([-0.3, 0.7])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["tp", "dp"]
    assert "in 6 ms, 67 % of it busy" in made.alt
    monkeypatch.setattr(pictures, "MOST_PIECES", 1)
    assert "The first 1 of 2 operations." in timeline_picture(pieces, "step 1").caption


def test_bandwidth_is_drawn_over_size_measured_and_predicted(drawn: list[Figure]) -> None:
    made = bandwidth_picture({"a": [(2**20, 1.0, 2.0, 4.0)]}, {"a": [(2**20, 8.0)]}, "GB/s")
    (axes,) = drawn[0].axes
    measured, predicted = axes.lines
    assert (list(measured.get_ydata()), list(predicted.get_ydata())) == ([2.0], [8.0])
    assert "1.0 MB" in [label.get_text() for label in axes.get_xticklabels()]
    assert re.search(r"fastest reaches 4 GB/s", made.alt)
    assert "open marks are predicted" in made.caption
