"""What a stage runs in turn, and where interleaved stages that wait for their messages run forwards first."""

import pytest

from solver.pipeline.program import BACKWARD, FORWARD, WHOLE_BACKWARD, program
from solver.schedules.registry import Schedule


def kinds_of_last_stage(shape: tuple[int, int, int], *, waited: bool) -> str:
    """F and B in the order the last stage runs them."""
    told = program(Schedule.ONE_F_ONE_B, shape, waited=waited)
    kinds = told.kind[told.stage == shape[0] - 1]
    assert set(kinds.tolist()) <= {FORWARD, BACKWARD, WHOLE_BACKWARD}
    return "".join("F" if kind == FORWARD else "B" for kind in kinds.tolist())


@pytest.mark.parametrize("num_micro", [2, 4, 8])
def test_plain_1f1b_takes_turns_whatever_the_micro_batches(num_micro: int) -> None:
    assert kinds_of_last_stage((4, 1, num_micro), waited=False) == "FB" * num_micro


def test_interleaved_stages_with_as_many_micro_batches_run_all_forwards_first() -> None:
    """Megatron-LM v2.5, schedules.py, all_warmup_microbatches; with messages beside compute, and with more
    micro-batches, not.
    """
    assert kinds_of_last_stage((4, 2, 4), waited=True) == "F" * 8 + "B" * 8
    assert kinds_of_last_stage((4, 2, 4), waited=False) != "F" * 8 + "B" * 8
    assert kinds_of_last_stage((4, 2, 8), waited=True) != "F" * 16 + "B" * 16
