from collections.abc import Sequence

from profiler.ranks.watch import Beat
from runner.groups.degrees import Degrees
from runner.replay.run import Blame, Place
from tests.runner.replay.test_program import collective, message, program

DEGREES = Degrees(tp=2, pp=2)
FIRST = program(collective(), message("send_next"), message("recv_next"), collective(), degrees=DEGREES)
LAST = program(message("recv_prev"), collective(), message("send_prev"), stage=1, degrees=DEGREES)
BLAME = Blame(programs=(FIRST, LAST), degrees=DEGREES)


def behind(*places: tuple[int, bool] | None) -> Sequence[int]:
    """By rank how many communications have begun, and whether it computes since."""
    beats = {}
    for rank, place in enumerate(places):
        word = ""
        if place is not None:
            word = Place(passes=2, part=1, begun=place[0], computes=place[1]).text()
        beats[rank] = Beat(1, 1, word)
    return BLAME.behind(beats)


def test_a_rank_that_computes_while_its_group_waits() -> None:
    # ranks 0 and 1 wait for the last stage's messages, rank 2 for rank 3 in their tp group
    assert behind((3, False), (3, False), (2, False), (1, True)) == [3]


def test_who_has_done_least_is_not_always_to_blame() -> None:
    # rank 0 hangs between its collective and its message; ranks 2 and then 3 and 1 wait for it
    assert behind((1, True), (3, False), (1, False), (2, False)) == [0]


def test_a_collective_that_does_not_end_is_named_for_those_who_wait_behind_it() -> None:
    assert behind((3, False), (3, False), (2, False), (2, False)) == [2, 3]
    assert behind((1, False), (1, False), (2, False), (2, False)) == [0, 1, 2, 3]


def test_a_message_under_way_blames_nobody() -> None:
    assert behind((2, False), (2, False), (1, False), (1, False)) == [0, 1, 2, 3]


def test_a_rank_that_has_not_come_to_the_pass() -> None:
    assert behind((1, False), None, (1, False), (1, False)) == [1]


def test_two_at_once() -> None:
    assert behind((0, True), (1, False), (2, False), (1, True)) == [0, 3]


def test_a_place_is_read_as_written() -> None:
    place = Place(passes=3, part=0, begun=7, computes=True)
    assert Place.read(place.text()) == place
    assert Place.read("") is None
