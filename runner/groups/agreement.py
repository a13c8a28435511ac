"""What may fail on some ranks alone, made the same end for all."""

from collections.abc import Callable
from typing import TypeVar

from profiler.ranks.meeting import RankFailedError, ranks_named
from profiler.ranks.world import World
from spec.errors import UserError

Found = TypeVar("Found")
FINE = ""


class NotAgreedError(RankFailedError):
    """Raised on all ranks at the same place, which could go on with something else."""


def agreed(world: World, action: Callable[[], Found]) -> Found:
    """The result of ``action`` on this rank, when it went well on all.

    Raises NotAgreedError, said once, with the ranks on which it raised a UserError and what that was.
    """
    found: list[Found] = []
    word = FINE
    try:
        found.append(action())
    except UserError as error:
        word = str(error) or type(error).__name__
    words = world.gather(word)
    failed = [rank for rank, said in enumerate(words) if said != FINE]
    if not failed:
        return found[0]
    first = words[failed[0]]
    alike = [rank for rank in failed if words[rank] == first]
    who = "" if len(alike) == world.size else f"{ranks_named(alike)}: "
    raise NotAgreedError(f"{who}{first}", speaker=0)


def same_everywhere(world: World, word: str, what: str) -> None:
    """Raises NotAgreedError naming the ranks whose ``word`` is not rank 0's; ``what`` differs on them."""
    words = world.gather(word)
    others = [rank for rank, said in enumerate(words) if said != words[0]]
    if others:
        raise NotAgreedError(
            f"{ranks_named(others)}: {what} differs from rank 0's: put the same on every node", speaker=0
        )
