"""Agreement of all ranks on what may fail on some of them."""

from collections.abc import Callable
from typing import TypeVar

from profiler.distributed.rendezvous import RankFailedError, rank_names
from profiler.distributed.world import World
from spec.errors import UserError

Value = TypeVar("Value")
NO_ERROR = ""


class NotAgreedError(RankFailedError):
    """Raised on all ranks at the same point; the world stays usable for other work."""


def agree(world: World, action: Callable[[], Value]) -> Value:
    """The result of ``action`` on this rank, if it succeeded on all ranks.

    Raises NotAgreedError, reported once, with the ranks on which it raised a UserError and the error's text.
    """
    result: list[Value] = []
    message = NO_ERROR
    try:
        result.append(action())
    except UserError as error:
        message = str(error) or type(error).__name__
    messages = world.gather(message)
    failed = [rank for rank, other in enumerate(messages) if other != NO_ERROR]
    if not failed:
        return result[0]
    first = messages[failed[0]]
    alike = [rank for rank in failed if messages[rank] == first]
    who = "" if len(alike) == world.size else f"{rank_names(alike)}: "
    raise NotAgreedError(f"{who}{first}")


def check_same(world: World, word: str, what: str) -> None:
    """Raises NotAgreedError naming the ranks whose ``word`` is not rank 0's; ``what`` differs on them, in rank 0's words,
    whichever rank reports it."""
    words = world.gather(word)
    others = [rank for rank, other in enumerate(words) if other != words[0]]
    if others:
        what = world.gather(what)[0]
        raise NotAgreedError(f"{rank_names(others)}: {what} differs from rank 0's: use the same on all nodes")
