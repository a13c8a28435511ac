from dataclasses import replace

import pytest

from runner.logs.analysis import Spread, rows_by_size, summary_lines
from runner.logs.log import Log, ended, logged
from tests.runner.replay.test_program import collective

TIMES_MS = [1.0, 2.0, 3.0, 4.0, 10.0]


def test_a_spread() -> None:
    one = Spread.of(TIMES_MS)
    # 90 % between the fourth and fifth of five: 4 + 0.6 * 6; variance (9 + 4 + 1 + 0 + 36) / 5 = 10
    assert (one.count, one.mean_ms, one.min_ms, one.max_ms) == (5, 4.0, 1.0, 10.0)
    assert (one.p90_ms, one.std_ms) == (pytest.approx(7.6), pytest.approx(10**0.5))
    assert one.jitter == pytest.approx(10**0.5 / 4)


def test_operations_of_a_kind_group_and_size_are_one_row() -> None:
    items = [logged(collective(), each * 1e-3) for each in TIMES_MS]
    items += [logged(replace(collective(), msg_size=128), 1e-3), logged(collective(kind="barrier"), 1e-3)]
    rows = rows_by_size(items)
    assert [(row.kind, row.size_bytes, row.spread.count) for row in rows] == [
        ("all_reduce", 64, 5),
        ("all_reduce", 128, 1),
        ("barrier", 64, 1),
    ]


def test_initialisation_stands_apart() -> None:
    log = Log.of(
        [logged(collective(), 9.0), ended(9.0), logged(collective(), 1e-3), ended(2e-3), ended(4e-3)]
    )
    text = "\n".join(summary_lines(log))
    assert text.index("9000.000") < text.index("train stage") < text.index("init time: 9000.000 ms")
    assert "iteration time over 2: mean 3.000 ms, min 2.000, max 4.000" in text
    assert "std 1.000, jitter 33.3 % of the mean" in text
