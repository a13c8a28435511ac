"""Search every plan: enumerate, drop what does not fit in memory, price the rest, rank."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.recompute.layers import Recompute
from solver.contest import Contest, Entrants, costs
from solver.estimate import Estimate, StepTime, estimate_memory
from solver.interval import calibrated_interval, causes_of, interval_of, relative_std
from solver.memory.device_memory import limit_bytes, usable_bytes
from solver.memory.memory_cost import MemoryCost
from solver.memory.shortfall import needs_words
from solver.model_flops import mfu, tokens_per_gpu_per_s
from solver.plans.plan_table import PlanTable
from solver.plans.space import Space, enumerate_block
from solver.question import Question
from solver.question_cost import cost_under
from solver.refinements.dealt_anew import dealt_anew
from solver.refinements.eased import eased
from solver.refinements.entering import chosen, entered, laid_out
from solver.refinements.tight import Fallen
from solver.result import Answer, answer_of, slowest_stage
from spec.arrays import FloatArray, IntArray, ints
from spec.errors import NoFeasiblePlanError

OUT_OF_MEMORY = "does not fit in memory"
OVER_LIMIT = "fits, but needs more memory than is asked for"


Found = tuple[int, dict[str, int], str, float]
"""Plans seen, how many fell for each reason, the nearest miss, and when the search began (time.perf_counter)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer to a search.

    ``best`` the top plans by step time, of those that differ in zero_size alone one (solver.result);
    ``best_of_mode`` the fastest of each strategy; ``pareto`` the plans no other beats in both step time and
    memory; ``num_seen`` plans looked at, ``num_priced`` of them priced; ``rejected`` maps a reason to a
    number of plans; ``nearest_miss`` the plan that came closest to fitting, in words; ``seconds`` of search.
    """

    best: tuple[Answer, ...]
    best_of_mode: dict[str, Answer]
    pareto: tuple[Answer, ...]
    num_seen: int
    num_priced: int
    rejected: dict[str, int]
    nearest_miss: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedTable:
    """Plans with their cost and the memory of their worst stages."""

    table: Estimate
    cost: StepTime
    memory: MemoryCost


def search(
    question: Question,
    space: Space,
    *,
    top_k: int = 10,
    tick: Callable[[], object] = lambda: None,
    everything: bool = False,
) -> SearchResult:
    """Every plan of the space, ranked by step time. ``tick`` is called after each block. With ``everything`` also
    pipelines are replayed that a bound keeps out of the answer (solver.contest), which changes no answer.

    Raises NoFeasiblePlanError when no plan is left, with the reasons and the nearest miss.
    """
    return _answered(question, *contested(question, space, top_k=top_k, tick=tick, everything=everything))


def contested(
    question: Question,
    space: Space,
    *,
    top_k: int = 10,
    tick: Callable[[], object] = lambda: None,
    everything: bool = False,
) -> tuple[Contest, Found]:
    """The plans of the space that fit, with what is priced of them, and what was found on the way; as ``search``."""
    began = time.perf_counter()
    entrants: list[Entrants] = []
    short: list[tuple[Estimate, IntArray]] = []
    rejected: dict[str, int] = {}
    limit = limit_bytes(question.cluster, space.constraints)
    seen, miss = 0, _Miss(needed_bytes=float("inf"), words="none came as far as memory")
    last: Estimate | None = None
    for block in space.blocks:
        drafted = enumerate_block(question.model, question.job, question.cluster, space, block)
        seen += drafted.seen
        fallen = [drafted.rejected]
        if len(drafted.plans):
            # Plans that differ in their recompute mode alone share their stages and most of their layers.
            last = laid_out(question, drafted.plans, last)
            split = _fit(question, last, limit)
            miss = min(miss, split.miss, key=lambda one: one.needed_bytes)
            fallen.append(split.rejected)
            if split.fitting is not None:
                entrants.append(entered(question, split.fitting))
            if split.short.size and drafted.plans.recompute is Recompute.NONE:
                short.append((last, split.short))
        for reason, count in (item for counted in fallen for item in counted.items()):
            rejected[reason] = rejected.get(reason, 0) + count
        tick()
    contest = Contest(entrants, top_k, everything=everything)
    contest.decide()
    known = Fallen(fitting=entrants, short=short, limit_bytes=limit)
    more, tight = eased(question, space.constraints, known, contest.best_s)
    contest = contest.joined(more)
    known = replace(known, fitting=contest.entrants)
    dealt = dealt_anew(question, space.constraints, (known, tight), contest.best_s)
    contest = contest.joined(dealt)
    if not contest.entrants:
        raise NoFeasiblePlanError(rejected=rejected, nearest_miss=miss.words)
    seen += sum(len(one.needed_bytes) for one in (*more, *dealt))
    return contest, (seen, rejected, miss.words, began)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Miss:
    """The plan that came closest to fitting."""

    needed_bytes: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """The plans of a block that fit, the rows of those that do not, how many those are by reason, and the
    closest of them.
    """

    fitting: Estimate | None
    short: IntArray
    rejected: dict[str, int]
    miss: _Miss


def _fit(question: Question, table: Estimate, limit: float) -> _Split:
    """Told apart by what the worst stage needs: at most ``limit`` bytes, or more."""
    needed = table.needed_bytes
    fits = needed <= limit
    on_device = needed <= usable_bytes(question.cluster)
    counts = {OUT_OF_MEMORY: ~fits & ~on_device, OVER_LIMIT: ~fits & on_device}
    miss = _Miss(needed_bytes=float("inf"), words="")
    if not fits.all():
        row = int(np.argmin(np.where(fits, np.inf, needed)))
        miss = _Miss(
            needed_bytes=float(needed[row]),
            words=f"{table.plans.plan(row).label()} {needs_words(float(needed[row]), limit)}",
        )
    return _Split(
        fitting=chosen(question, table, ints(np.flatnonzero(fits))) if fits.any() else None,
        short=ints(np.flatnonzero(~fits)),
        rejected={reason: int(np.count_nonzero(rows)) for reason, rows in counts.items() if rows.any()},
        miss=miss,
    )


def price_plan(question: Question, plans: PlanTable) -> tuple[Answer, ...]:
    """Answers for the rows of a table, whether they fit or not."""
    table = estimate_memory(question.model, question.job, plans, question.cluster)
    priced = PricedTable(table=table, cost=cost_under(question, table), memory=table.memory)
    used = mfu(question.model, question.job, question.cluster, priced.cost.step_s)
    return tuple(_answer(question, priced, row, float(used[row])) for row in range(len(plans)))


def _answer(question: Question, priced: PricedTable, row: int, used: float) -> Answer:
    """The answer of a row, whose model-FLOP utilisation is ``used``."""
    one = np.array([row], dtype=np.int64)
    cost = priced.cost.take(one)
    plan = priced.table.plans.plan(row)
    return answer_of(
        plan,
        cost,
        priced.memory.take(one),
        used=(
            float(tokens_per_gpu_per_s(question.job, cost.step_s)[0]),
            used,
        ),
        slowest=slowest_stage(question.model, priced.table.stages, int(cost.stage[0]), plan.pp),
        interval_s=interval_s(question, cost),
    )


def interval_s(question: Question, cost: StepTime) -> tuple[FloatArray, FloatArray]:
    """The 80 % interval of the steps (solver.interval)."""
    if question.calibration:
        return calibrated_interval(cost.step_s, question.calibration.residual_std)
    return interval_of(cost.step_s, relative_std(causes_of(question.job, cost)))


def _answered(question: Question, contest: Contest, found: Found) -> SearchResult:
    """The answers of what was decided."""
    seen, rejected, miss, began = found
    ranked, groups = contest.ranked(), contest.groups()
    modes = contest.modes[ranked]
    best = {str(mode): int(ranked[modes == mode][0]) for mode in dict.fromkeys(modes.tolist())}
    leaders = [int(ranked[group.place]) for group in groups]
    front = [int(number) for number in contest.front()]
    answers = _answers(question, contest, [*leaders, *best.values(), *front])
    return SearchResult(
        best=tuple(
            replace(
                answers[number],
                also_zero_sizes=tuple(one.zero_size for one in group.others),
                also_zero_stages=tuple(one.zero_stage for one in group.others),
            )
            for number, group in zip(leaders, groups, strict=True)
        ),
        best_of_mode={mode: answers[number] for mode, number in best.items()},
        pareto=tuple(answers[number] for number in front),
        num_seen=seen,
        num_priced=len(contest.row),
        rejected=rejected,
        nearest_miss=miss,
        seconds=time.perf_counter() - began,
    )


def _answers(question: Question, contest: Contest, numbers: Sequence[int]) -> dict[int, Answer]:
    """Those plans' answers by number."""
    shown = np.zeros(len(contest.row), dtype=np.bool_)
    shown[numbers] = True
    chosen = [np.flatnonzero(shown & (contest.owner == index)) for index in range(len(contest.entrants))]
    asked = [
        (one, ints(contest.row[of_one]))
        for one, of_one in zip(contest.entrants, chosen, strict=True)
        if of_one.size
    ]
    used = mfu(question.model, question.job, question.cluster, contest.step_s)
    found: dict[int, Answer] = {}
    for (one, rows), cost, of_one in zip(asked, costs(asked), filter(np.size, chosen), strict=True):
        priced = PricedTable(table=one.table, cost=cost, memory=one.table.memory)
        for number, row in zip(of_one.tolist(), rows.tolist(), strict=True):
            found[number] = _answer(question, priced, row, float(used[number]))
    return found
