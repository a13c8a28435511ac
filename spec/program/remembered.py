"""What was made of the very same objects before."""

from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


class Remembered:
    """Things made once of the objects they are made of, which are known by themselves and not by their
    values. Those are held, so that no others can have their identity."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], tuple[tuple[object, ...], Any]] = {}

    def once(self, held: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """What ``make`` makes of ``held``, or has made of them before."""
        key = tuple(map(id, held))
        if key not in self._made:
            self._made[key] = (held, make())
        made: Made = self._made[key][1]
        return made
