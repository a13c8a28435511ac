from dataclasses import replace
from pathlib import Path

from runner.logs.log import Log, ended, logged
from runner.logs.pictures import bandwidth, iterations, operations, page_text
from tests.runner.logs.test_log import ROWS
from tests.runner.replay.test_program import collective

LOG = Log.of(ROWS)


def test_iterations_are_drawn_without_initialisation() -> None:
    (line,) = iterations(LOG).axes[0].lines
    assert list(line.get_ydata()) == [6.0]


def test_operations_of_an_iteration_stand_upon_each_other() -> None:
    (bar,) = operations(LOG).axes[0].patches
    assert bar.get_height() == 5.0


def test_a_legend_covers_no_bar() -> None:
    figure = operations(LOG)
    figure.canvas.draw()
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1


def test_bandwidth_over_size() -> None:
    large = logged(replace(collective(), msg_size=2**30), 0.5)
    (points,) = bandwidth(Log.of([ended(1.0), large, ended(1.0)])).axes[0].lines
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([2**30], [2.0])


def test_a_page_holds_its_pictures_and_no_markup_of_names(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    picture.write_bytes(b"png")
    text = page_text("<b>", ["a < b"], [picture])
    assert "<b>" not in text
    assert "a &lt; b" in text
    assert 'src="data:image/png;base64,cG5n"' in text
    assert "<h2>p</h2>" in text
    assert "http" not in text
