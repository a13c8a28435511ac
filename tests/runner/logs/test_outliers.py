from runner.logs.analysis import outlier_lines, slow_operations
from runner.logs.log import Log, ended, logged
from tests.runner.replay.test_program import collective


def log(*times_ms: float) -> Log:
    rows = [ended(0.0)]
    for each in times_ms:
        rows += [logged(collective(stage="forward.x"), each * 1e-3), logged(collective(), 1e-3), ended(1.0)]
    return Log.of(rows)


def test_an_operation_far_above_its_like_is_named() -> None:
    (found,) = slow_operations(log(1.0, 1.1, 0.9, 1.0, 8.0, 1.05))
    assert (found.iteration, found.place, found.item.elapsed_ms) == (5, 1, 8.0)
    assert found.line() == (
        "outlier: iteration 5, operation 1: all_reduce of 64 B over tp_group (forward.x) took 8.000 ms, "
        "7.8 x the median"
    )


def test_even_times_and_a_quick_one_have_none() -> None:
    assert slow_operations(log(1.0, 1.1, 0.9, 1.0, 0.01, 1.05)) == []


def test_the_worst_are_named_and_the_rest_counted() -> None:
    lines = outlier_lines(log(*[1.0, 1.1] * 40, *(5.0 + each for each in range(12))))
    assert ("took 16.000 ms" in lines[0], lines[-1], len(lines)) == (True, "and 2 outliers more", 11)
