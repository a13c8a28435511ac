"""What the rows of a sweep are ranked by, and the goodput and cost of each."""

from dataclasses import dataclass
from math import inf

from solver.decision.goodput import Goodput, Reliability, goodput_of
from solver.decision.run_cost import RunCost, Terms, run_cost
from solver.decision.sweep import SweepRow, tokens_per_s

RANKED_BY = ("step", "goodput", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A row of a sweep with its goodput where a reliability was stated, and what a run takes where tokens
    were; ``held_gpus`` train or are spare."""

    row: SweepRow
    goodput: Goodput | None
    cost: RunCost | None
    held_gpus: int


def judged(row: SweepRow, reliability: Reliability | None, terms: Terms | None) -> Judged:
    """Goodput and cost of a row's best plan."""
    question = row.opened.question
    goodput = None if reliability is None else goodput_of(question.model, question.job, reliability)
    spares = 0 if reliability is None else reliability.spare_nodes or 0
    held = question.job.world_size + spares * question.cluster.gpus_per_node
    cost = None
    if terms is not None and row.answer is not None:
        cost = run_cost(question.job, question.cluster, row.answer.step_s, terms, goodput)
    return Judged(row=row, goodput=goodput, cost=cost, held_gpus=held)


def ranked(rows: list[Judged], by: str) -> list[Judged]:
    """Rows from best to worst by ``step`` (seconds), ``goodput`` (tokens trained per second of wall clock) or
    ``cost`` (money, or GPU-hours where no price was given, per token); those without a plan last."""
    return sorted(rows, key=lambda one: _order(one, by))


def _order(one: Judged, by: str) -> float:
    if one.row.answer is None:
        return inf
    effective = one.goodput.effective if one.goodput else 1.0
    if by == "step":
        return one.row.answer.step_s
    if by == "goodput":
        return -tokens_per_s(one.row) * effective
    if one.cost is not None:
        held = one.cost.price if one.cost.price is not None else one.cost.gpu_hours
        return held / one.cost.tokens
    return one.held_gpus / (tokens_per_s(one.row) * effective) if effective else inf
