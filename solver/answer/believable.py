"""No answer is printed that no machine could give."""

from collections.abc import Iterable
from math import isfinite

from solver.answer.answer import Answer
from spec.errors import ProfileError


def check_believable(answers: Iterable[Answer], source: str) -> None:
    """Raises ProfileError, which names the times' ``source``, for a step that takes no finite time, an interval
    that is not finite, or more than the GPUs' peak FLOP/s."""
    for answer in answers:
        finite = (
            isfinite(answer.step_s) and isfinite(answer.interval_low_s) and isfinite(answer.interval_high_s)
        )
        if not finite or answer.step_s <= 0.0:
            raise ProfileError(
                f"{source}: its times give {answer.plan.label()} a step of {answer.step_s:g} s, "
                f"{answer.interval_low_s:g} to {answer.interval_high_s:g}: no time that can be; "
                "look at it with python -m profdb show"
            )
        if answer.mfu > 1.0:
            raise ProfileError(
                f"{source}: its times give {answer.plan.label()} {100 * answer.mfu:.0f} % of the GPUs' peak FLOP/s, "
                "which no GPU reaches: they are of another GPU or damaged; look at it with python -m profdb show"
            )
