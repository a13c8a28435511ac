"""Search every plan: enumerate, drop what does not fit in memory, price the rest, rank."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ops.recompute.layers import Recompute
from solver.answer.alike import grouped
from solver.answer.answer import Answer, answer_of
from solver.answer.mfu import mfu, tokens_per_gpu_per_s
from solver.answer.slowest_stage import slowest_stage
from solver.calibration import calibrated_cost
from solver.memory.device_memory import limit_bytes, usable_bytes
from solver.memory.shortfall import needs_words
from solver.plans.partial_recompute import least_recomputed
from solver.plans.plan_table import PlanTable
from solver.plans.space import Space, enumerate_block
from solver.price import Sized, StepCost, price, sized
from solver.question import Question
from spec.arrays import FloatArray, IntArray, bools
from spec.errors import NoFeasiblePlanError

OUT_OF_MEMORY = "does not fit in memory"
OVER_LIMIT = "fits, but needs more memory than is asked for"
# A recomputed forward is at most a quarter of forward, forward again and twice as much backward.
LEAST_SHARE = 0.75
# Assumption: a block's 300 fastest fully recomputed plans hold its fastest partly recomputed one.
MOST_PARTLY_RECOMPUTED = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer to a search.

    ``best`` the top plans by step time, of those that differ in zero_size alone one (solver.answer.alike); ``best_of_mode`` the fastest of each strategy; ``pareto`` the
    plans no other beats in both step time and memory; ``num_seen`` plans looked at, ``num_priced`` of
    them priced; ``rejected`` maps a reason to a number of plans; ``nearest_miss`` the plan that came
    closest to fitting, in words; ``seconds`` of search.
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
    """Plans of one block that fit, with their cost."""

    table: Sized
    cost: StepCost
    needed_bytes: FloatArray


def search(
    question: Question, space: Space, *, top_k: int = 10, tick: Callable[[], None] = lambda: None
) -> SearchResult:
    """Every plan of the space, ranked by step time. ``tick`` is called after each block.

    Raises NoFeasiblePlanError when no plan is left, with the reasons and the nearest miss.
    """
    began = time.perf_counter()
    priced: list[PricedTable] = []
    rejected: dict[str, int] = {}
    limit = limit_bytes(question.cluster, space.constraints)
    seen, miss = 0, _Miss(needed_bytes=float("inf"), words="none came as far as memory")
    for block in space.blocks:
        drafted = enumerate_block(question.model, question.job, question.cluster, space, block)
        seen += drafted.seen
        fallen = [drafted.rejected]
        if len(drafted.plans):
            fitting, dropped, block_miss = _fit(question, drafted.plans, limit)
            miss = min(miss, block_miss, key=lambda one: one.needed_bytes)
            fallen.append(dropped)
            if fitting is not None:
                priced.append(_priced(question, fitting))
        for reason, count in (item for counted in fallen for item in counted.items()):
            rejected[reason] = rejected.get(reason, 0) + count
        tick()
    if not priced:
        raise NoFeasiblePlanError(rejected=rejected, nearest_miss=miss.words)
    for partly in _partly_recomputed(question, priced, limit):
        priced.append(partly)
        seen += len(partly.needed_bytes)
    return _ranked(question, priced, top_k, (seen, rejected, miss.words, began))


def _partly_recomputed(question: Question, priced: list[PricedTable], limit: float) -> list[PricedTable]:
    """Plans between no recomputation, which does not fit, and all of it: for the fastest fully recomputed
    ones of each block that could still win, as no plan gains more than its recomputation takes."""
    if not question.job.preset.recomputation.partial:
        return []
    best_s = min(float(one.cost.step_s.min()) for one in priced)
    found: list[PricedTable] = []
    for one in priced:
        plans = one.table.plans
        if plans.recompute is not Recompute.FULL:
            continue
        order = np.argsort(one.cost.step_s, kind="stable")[:MOST_PARTLY_RECOMPUTED]
        rows = order[one.cost.step_s[order] * LEAST_SHARE < best_s].astype(np.int64)
        if not rows.size:
            continue
        partly = least_recomputed(
            plans.take(rows), question.model.num_layers, lambda p: bools(_needed(question, p) <= limit)
        )
        if partly is not None:
            found.append(_priced(question, partly))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Miss:
    """The plan that came closest to fitting."""

    needed_bytes: float
    words: str


def _needed(question: Question, plans: PlanTable) -> FloatArray:
    """Bytes that each plan's worst stage needs of a device."""
    return sized(question.model, question.job, plans, question.cluster).memory.needed_bytes


def _fit(
    question: Question, plans: PlanTable, limit: float
) -> tuple[PlanTable | None, dict[str, int], _Miss]:
    """The plans whose worst stage needs at most ``limit`` bytes, how many do not by reason, and the closest of those."""
    needed = _needed(question, plans)
    fits = needed <= limit
    on_device = needed <= usable_bytes(question.cluster)
    counts = {OUT_OF_MEMORY: ~fits & ~on_device, OVER_LIMIT: ~fits & on_device}
    miss = _Miss(needed_bytes=float("inf"), words="")
    if not fits.all():
        row = int(np.argmin(np.where(fits, np.inf, needed)))
        miss = _Miss(
            needed_bytes=float(needed[row]),
            words=f"{plans.plan(row).label()} {needs_words(float(needed[row]), limit)}",
        )
    kept = plans.take(np.flatnonzero(fits).astype(np.int64)) if fits.any() else None
    return kept, {reason: int(np.count_nonzero(rows)) for reason, rows in counts.items() if rows.any()}, miss


def _priced(question: Question, plans: PlanTable) -> PricedTable:
    table = sized(question.model, question.job, plans, question.cluster)
    cost = price(question.model, question.job, table, question.pricer)
    if question.calibration is not None:
        cost = calibrated_cost(
            question.model, question.job, table, question.pricer, cost, question.calibration
        )
    return PricedTable(table=table, cost=cost, needed_bytes=table.memory.needed_bytes)


def price_plan(question: Question, plans: PlanTable) -> tuple[Answer, ...]:
    """Answers for the rows of a table, whether they fit or not."""
    priced = _priced(question, plans)
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
        priced.table.memory.take(one),
        used=(
            float(tokens_per_gpu_per_s(question.job, cost.step_s)[0]),
            used,
        ),
        slowest=slowest_stage(question.model, priced.table.stages, int(cost.stage[0]), plan.pp),
        residual_std=question.calibration.residual_std if question.calibration else None,
    )


def _ranked(
    question: Question,
    priced: list[PricedTable],
    top_k: int,
    found: tuple[int, dict[str, int], str, float],
) -> SearchResult:
    """Order all blocks together; ties go to the plan that needs less memory."""
    seen, rejected, miss, began = found
    step_s = np.concatenate([one.cost.step_s for one in priced])
    device = np.concatenate([one.needed_bytes for one in priced])
    owner = np.concatenate([np.full(len(one.needed_bytes), i) for i, one in enumerate(priced)])
    row = np.concatenate([np.arange(len(one.needed_bytes)) for one in priced])
    order = np.lexsort((device, step_s))
    used = mfu(question.model, question.job, question.cluster, step_s)

    def answers(rows: IntArray) -> tuple[Answer, ...]:
        return tuple(_answer(question, priced[int(owner[i])], int(row[i]), float(used[i])) for i in rows)

    modes = np.array([one.table.plans.strategy for one in priced])[owner]
    best_of_mode = {
        str(mode): answers(order[modes[order] == mode][:1])[0] for mode in dict.fromkeys(modes.tolist())
    }
    ranked = (
        (place, float(step_s[i]), priced[int(owner[i])].table.plans.plan(int(row[i])))
        for place, i in enumerate(order)
    )
    groups = grouped(ranked, top_k)
    leaders = answers(order[[group.place for group in groups]])
    return SearchResult(
        best=tuple(
            replace(leader, also_zero_sizes=tuple(group.zero_sizes))
            for leader, group in zip(leaders, groups, strict=True)
        ),
        best_of_mode=best_of_mode,
        pareto=answers(_pareto(order, device)),
        num_seen=seen,
        num_priced=len(step_s),
        rejected=rejected,
        nearest_miss=miss,
        seconds=time.perf_counter() - began,
    )


def _pareto(order: IntArray, needed_bytes: FloatArray) -> IntArray:
    """Walking from fast to slow, the rows that need less memory than every faster one."""
    ordered = needed_bytes[order]
    lowest = np.minimum.accumulate(np.concatenate([[np.inf], ordered[:-1]]))
    front: IntArray = order[ordered < lowest].astype(np.int64)
    return front
