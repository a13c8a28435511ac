from dataclasses import replace

import pytest

from runner.groups.degrees import Degrees
from runner.replay.program import Program, check_stages
from tests.runner.replay.test_program import collective, message, program
from workload.findings import WorkloadError

PIPE = Degrees(tp=2, pp=2)


def stages(first: list[str], last: list[str]) -> list[Program]:
    sides = [[message(word) for word in words] for words in (first, last)]
    return [program(*rows, stage=stage, degrees=PIPE) for stage, rows in enumerate(sides)]


def test_1f1b_of_two_stages_fits_together() -> None:
    # A send that waited for its receiver would stop here: both stages send before they receive.
    first = ["send_next", "send_next", "recv_next", "send_next", "recv_next", "recv_next"]
    last = ["recv_prev", "send_prev", "recv_prev", "send_prev", "recv_prev", "send_prev"]
    check_stages(stages(first, last))


def test_stages_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(
        WorkloadError, match=r"iteration 1 would wait for ever: stage 0 in irecv .*; stage 1 in irecv"
    ):
        check_stages(stages(["recv_next", "send_next"], ["recv_prev", "send_prev"]))


def test_a_message_that_nobody_receives_is_named() -> None:
    with pytest.raises(WorkloadError, match="stage 1 never receives isend of 64 bytes"):
        check_stages(stages(["send_next", "send_next"], ["recv_prev"]))


def test_a_message_of_another_size_is_named() -> None:
    sent = program(message("send_next"), degrees=PIPE)
    taken = program(replace(message("recv_prev"), msg_size=32), stage=1, degrees=PIPE)
    with pytest.raises(WorkloadError, match="meets a message of 64 bytes, row 2"):
        check_stages([sent, taken])


def test_collectives_over_stages_meet() -> None:
    shared = collective(group="pp_group")
    check_stages([program(shared, degrees=PIPE), program(collective(), shared, stage=1, degrees=PIPE)])
    other = replace(shared, msg_size=32)
    with pytest.raises(WorkloadError, match="stage 0 in all_reduce of 64 bytes over pp_group"):
        check_stages([program(shared, degrees=PIPE), program(other, stage=1, degrees=PIPE)])


def test_the_middle_stages_have_no_part_in_the_embedding() -> None:
    degrees = Degrees(pp=3)
    tied = collective(group="embedding_group")
    ends = [program(tied, degrees=degrees), program(degrees=degrees), program(tied, stage=2, degrees=degrees)]
    check_stages([replace(one, stage=stage) for stage, one in enumerate(ends)])


def test_files_of_other_lengths_are_refused() -> None:
    one = program(collective(), degrees=PIPE)
    with pytest.raises(WorkloadError, match="have 1, 2 iterations"):
        check_stages([one, replace(one, iterations=one.iterations * 2)])
