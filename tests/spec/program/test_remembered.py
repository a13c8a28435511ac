"""Things made once of the very same objects."""

from spec.program.remembered import Remembered


def test_objects_that_are_only_equal_are_others() -> None:
    first, second, third = [1], [1], [2]
    known = Remembered()
    made = [known.once(held, object) for held in ((first, third), (second, third), (first, second))]
    assert len(set(map(id, made))) == 3
    assert known.once((first, third), object) is made[0]


def test_what_things_are_made_of_keeps_its_identity() -> None:
    known = Remembered()
    assert [known.once(([number],), lambda number=number: number) for number in range(100)] == list(
        range(100)
    )
