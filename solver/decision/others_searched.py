"""The best plan that has what a few keys say: the others are searched."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from solver.answer.answer import Answer
from solver.plans.space import full_space
from solver.question import Question
from solver.search import search
from spec.errors import NoFeasiblePlanError
from spec.settings.constraints import Constraints, bounded_settings, constraints_of


def are_searched(said: Mapping[str, Any]) -> bool:
    """Whether a search chooses each of these keys; none does a layout, or a number of layers that run again."""
    return bool(said) and said.keys() <= bounded_settings().keys()


def best_with(said: Mapping[str, Any], question: Question, constraints: Constraints) -> Answer | None:
    """The fastest plan that fits, has the keys as ``said``, and keeps the ``constraints`` on others; None
    where there is none. The keys are_searched."""
    others = tuple(bound for bound in constraints.bounds if bound.key not in said)
    both = replace(constraints, bounds=(*others, *constraints_of({"fix": said}).bounds))
    try:
        return search(question, full_space(question.model, question.job, both), top_k=1).best[0]
    except NoFeasiblePlanError:
        return None
