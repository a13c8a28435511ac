"""What stands beside the fastest plan: the fastest that leaves room in memory, and those that nobody can tell
from it.
"""

from collections.abc import Sequence

from solver.result import Answer

ROOMY_SHARE = 0.85
"""Of the usable memory: engineers leave about so much to fragmentation, longer sequences and one more communicator."""


def roomiest_fast(front: Sequence[Answer], usable_bytes: float, share: float = ROOMY_SHARE) -> Answer | None:
    """The fastest plan that needs at most ``share`` of the memory, of a whole Pareto ``front``: whatever is
    faster needs more, so it is on the front. None where every plan needs more."""
    fitting = [answer for answer in front if answer.needed_bytes <= share * usable_bytes]
    return min(fitting, key=lambda answer: answer.step_s, default=None)
