"""Why a priced plan is none."""

from solver.answer.answer import Answer
from solver.memory.device_memory import limit_bytes
from solver.memory.shortfall import needs_words
from solver.plans.constraints import constraint_rules
from solver.plans.space import NO_CONSTRAINTS
from solver.question import Question
from solver.typed_plan import broken_rules
from spec.settings.constraints import Constraints


def obstacles(
    question: Question, answer: Answer, constraints: Constraints = NO_CONSTRAINTS
) -> tuple[str, ...]:
    """The rules and constraints that a priced plan breaks, and the memory that it lacks; () for one that can run."""
    limit = limit_bytes(question.cluster, constraints)
    short = needs_words(answer.needed_bytes, limit)
    broken = broken_rules(question, answer.plan, constraint_rules(constraints))
    return (*broken, *([short] if answer.needed_bytes > limit else []))
