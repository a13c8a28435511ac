"""The search for the best plans of a problem: every plan its framework can run, ranked by step time.

Read from top to bottom it is the algorithm:

    enumerate     the degrees of every strategy, recompute mode and schedule, less what a rule rejects (solver.plans)
    -> memory     what the worst stage of each plan needs; plans that do not fit wait for less recomputation
    -> bound      a step that no schedule of the plan's pipeline is faster than
    -> simulate   the pipelines of plans that a bound cannot keep out of the answer (solver.candidates.candidates)
    -> relax      less recomputation where memory is short, and other layers on stages, of plans that could still win
    -> rank       by step time; plans alike but for their ZeRO shards stand for each other, and the simplest of the plans
                  that no prediction tells from the fastest comes first (solver.plans.simplicity)
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ops.recompute import Recompute
from solver.candidates.candidates import (
    ABOUT_AS_FAST,
    CandidatePool,
    Candidates,
    LeastSteps,
    candidates_of,
    costs,
    fastest_s,
    with_own_layers,
)
from solver.candidates.layer_partition import repartition
from solver.candidates.recompute_search import MemorySplit, relax_on_stages, relax_recompute
from solver.estimate import Estimate, estimate_memory
from solver.memory.device import limit_bytes, needs_words, usable_bytes
from solver.plans.space import Space, enumerate_block
from solver.problem.price import answers_of
from solver.problem.problem import Problem
from solver.problem.result import Answer, is_tie
from spec.arrays import BoolArray, IntArray, ints
from spec.errors import NoFeasiblePlanError
from spec.settings.constraints import Constraints

OUT_OF_MEMORY = "does not fit in memory"
OVER_LIMIT = "fits, but needs more memory than allowed"
LACKS_HEADROOM = "fits, but leaves less memory free than --headroom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer to a search.

    ``best`` are the top plans by step time, after the simplest of those that no prediction tells apart; one of those that differ in ZeRO shards alone
    (solver.candidates.candidates); ``best_of_mode`` the fastest of each strategy; ``pareto`` the plans that no other
    beats in both step time and memory; ``num_seen`` the plans enumerated, ``num_priced`` those of them that fit;
    ``with_all_memory`` the fastest of those that fit the device and are faster than all of the best, but leave too
    little memory free; ``rejected`` the number of plans by reason; ``nearest_miss`` the plan that came closest to fitting, in words;
    ``seconds`` the search took."""

    best: tuple[Answer, ...]
    best_of_mode: dict[str, Answer]
    pareto: tuple[Answer, ...]
    num_seen: int
    num_priced: int
    rejected: dict[str, int]
    nearest_miss: str
    seconds: float
    with_all_memory: Answer | None = None


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of a search: plans ``seen``, those ``rejected`` for each reason, the bytes and words of the plan that
    came closest to fitting, and the rows of plans that fit the device, but leave too little memory free (``tight``)."""

    began: float
    seen: int = 0
    rejected: dict[str, int]
    miss_bytes: float = float("inf")
    miss: str = "none came as far as memory"
    tight: list[tuple[Estimate, IntArray]] = field(default_factory=list)

    def reject(self, reason: str, count: int) -> None:
        """Counts plans that are rejected for a reason."""
        if count:
            self.rejected[reason] = self.rejected.get(reason, 0) + count


def search(
    problem: Problem, space: Space, *, top_k: int = 10, tick: Callable[[], object] = lambda: None, relaxes: bool = True
) -> Result:
    """Returns the plans of the space ranked by step time. ``tick`` is called after each block. Without ``relaxes`` plans
    are as enumerated, and those left out that cannot be the first: a quick answer, whose step is at most that.

    Raises NoFeasiblePlanError when no plan is left, with the reasons and the nearest miss.
    """
    pool, tally = candidate_pool(problem, space, top_k=top_k, tick=tick, relaxes=relaxes)
    if not relaxes:
        # Of a quick answer the first plan alone is read.
        tally.tight.clear()
    return ranked_result(problem, pool, tally, space.constraints.rank_by)


def candidate_pool(
    problem: Problem,
    space: Space,
    *,
    top_k: int = 10,
    tick: Callable[[], object] = lambda: None,
    everything: bool = False,
    relaxes: bool = True,
) -> tuple[CandidatePool, Tally]:
    """Returns the plans of the space that fit, with those that could win simulated, and the counts; arguments and
    errors as of ``search``. With ``everything`` the pipelines that a bound keeps out of the result are simulated too,
    which changes no result."""
    tally = Tally(began=time.perf_counter(), rejected={})
    fitting: list[Candidates] = []
    oom: list[tuple[Estimate, IntArray]] = []
    limit = limit_bytes(problem.cluster, space.constraints)
    table: Estimate | None = None
    incumbent_s, least_steps_s = np.inf, LeastSteps(problem=problem)
    for block in space.blocks:
        enumeration = enumerate_block(problem.model, problem.job, problem.cluster, space, block)
        tally.seen += enumeration.seen
        for reason, count in enumeration.rejected.items():
            tally.reject(reason, count)
        plans = enumeration.plans
        if incumbent_s < np.inf and len(plans):
            # Plans about as fast as the first are in its group, or simpler.
            slowest_s = ABOUT_AS_FAST * incumbent_s
            plans = plans.take(ints(np.flatnonzero(least_steps_s.of(plans) <= slowest_s)))
        if len(plans):
            # Plans that differ in their recompute mode alone share their stages and most of their layers.
            table = estimate_memory(problem.model, problem.job, plans, problem.cluster, like=table)
            fits = split_by_memory(problem, space.constraints, table, tally)
            if fits.any():
                rows = ints(np.flatnonzero(fits))
                fitting.append(candidates_of(problem, with_own_layers(problem, table, rows)))
                if not relaxes:
                    incumbent_s = min(incumbent_s, fastest_s(fitting[-1]))
            # Plans that recompute nothing may fit with some recomputation, which is cheaper than all of it.
            if not fits.all() and plans.recompute is Recompute.NONE:
                oom.append((table, ints(np.flatnonzero(~fits))))
        tick()
    pool = CandidatePool(fitting, top_k, everything=everything, quick=not relaxes)
    pool.simulate_contenders()
    # From here on new plans are made, and only those whose bound is below the fastest plan so far.
    split = MemorySplit(fitting=fitting, oom=oom, limit_bytes=limit)
    relaxed: list[Candidates] = []
    repartitions: list[Candidates] = []
    if relaxes:
        relaxed, short = relax_recompute(problem, space.constraints, split, pool.incumbent_s)
        pool = pool.merge(relaxed)
        repartitions = repartition(
            problem,
            [*pool.candidates, *short],
            (limit, pool.incumbent_s),
            lambda plain: relax_on_stages(problem, space.constraints, plain, limit),
        )
        pool = pool.merge(repartitions)
    if not pool.candidates:
        raise NoFeasiblePlanError(rejected=tally.rejected, nearest_miss=tally.miss)
    tally.seen += sum(len(one.needed_bytes) for one in (*relaxed, *repartitions))
    return pool, tally


def split_by_memory(problem: Problem, constraints: Constraints, table: Estimate, tally: Tally) -> BoolArray:
    """Returns which plans the memory is enough for that constraints leave to their worst stage; the others are counted,
    and the one that is nearest to the limit is remembered."""
    limit = limit_bytes(problem.cluster, constraints)
    needed = table.needed_bytes
    fits = np.asarray(needed <= limit, dtype=np.bool_)
    # A user's limit may be below what the device has.
    on_device = needed <= usable_bytes(problem.cluster)
    tally.reject(OUT_OF_MEMORY, int(np.count_nonzero(~fits & ~on_device)))
    only_headroom = constraints.memory_gib == np.inf
    tally.reject(LACKS_HEADROOM if only_headroom else OVER_LIMIT, int(np.count_nonzero(~fits & on_device)))
    if only_headroom and (tight := np.flatnonzero(~fits & on_device)).size:
        tally.tight.append((table, ints(tight)))
    nearest = int(np.argmin(np.where(fits, np.inf, needed)))
    if not fits.all() and needed[nearest] < tally.miss_bytes:
        tally.miss_bytes = float(needed[nearest])
        tally.miss = f"{table.plans.plan(nearest).label()} {needs_words(tally.miss_bytes, limit)}"
    return fits


def ranked_result(problem: Problem, pool: CandidatePool, tally: Tally, rank_by: str) -> Result:
    """Returns the plans that a user sees: the leaders of groups of plans alike, the best of each strategy, and the
    Pareto front. Only these are taken apart into all parts of their step and memory. ``rank_by`` "simple" puts the
    simplest of the plans first that are within 1 % of the fastest and tied with it."""
    ranked, groups = pool.rank(), pool.groups()
    modes = pool.modes[ranked]
    # Plans go by their number in the pool from here on.
    best = {str(mode): int(ranked[modes == mode][0]) for mode in dict.fromkeys(modes.tolist())}
    front = [int(number) for number in pool.front()]
    near = pool.near_best() if rank_by == "simple" else []
    if near:
        groups = [one.led_by(one.simplest) for one in groups]
    shown = [int(ranked[group.place]) for group in (*groups, *near[:1])]
    answers = _answers(problem, pool, [int(ranked[0]), *shown, *best.values(), *front])
    fastest = answers[int(ranked[0])]
    for group in near:
        number = int(ranked[group.place])
        if number not in answers:
            answers |= _answers(problem, pool, [number])
        if is_tie(fastest, answers[number]):
            home = next((one for one in groups if group.place in {place for place, *_ in one.members}), group)
            others = (one for one in groups if one is not home)
            groups = [home.led_by(group.place), *others][: pool.top_k]
            break
    leaders = [int(ranked[group.place]) for group in groups]
    return Result(
        best=tuple(
            replace(
                answers[number],
                also_zero_sizes=tuple(one.zero_size for *_, one in group.others),
                also_zero_stages=tuple(one.zero_stage for *_, one in group.others),
            )
            for number, group in zip(leaders, groups, strict=True)
        ),
        best_of_mode={mode: answers[number] for mode, number in best.items()},
        pareto=tuple(answers[number] for number in front),
        num_seen=tally.seen,
        num_priced=len(pool.row),
        rejected=tally.rejected,
        nearest_miss=tally.miss,
        with_all_memory=fastest_tight(problem, tally, pool.incumbent_s),
        seconds=time.perf_counter() - tally.began,
    )


def fastest_tight(problem: Problem, tally: Tally, incumbent_s: float) -> Answer | None:
    """Returns the fastest of the plans that leave too little memory free, if it is faster than the incumbent."""
    fastest: tuple[Candidates, int] | None = None
    least_steps_s = LeastSteps(problem=problem)
    for table, tight in tally.tight:
        rows = tight[least_steps_s.of(table.plans.take(tight)) < incumbent_s]
        if not rows.size:
            continue
        one = candidates_of(problem, with_own_layers(problem, table, rows))
        while one.step_s.min() < incumbent_s:
            row = int(np.argmin(one.step_s))
            if one.simulated[row]:
                fastest, incumbent_s = (one, row), float(one.step_s[row])
            fastest_s(one)
    if fastest is None:
        return None
    one, row = fastest
    return answers_of(
        problem, one.table, [row], costs([(one, ints([row]))])[0].take(ints([row])), one.table.memory.take(ints([row]))
    )[0]


def _answers(problem: Problem, pool: CandidatePool, numbers: Sequence[int]) -> dict[int, Answer]:
    """Returns the answers of these plans of the pool, by number."""
    is_displayed = np.zeros(len(pool.row), dtype=np.bool_)
    is_displayed[numbers] = True
    # Block by block: the plans' numbers in the pool, and their rows in the block's table.
    by_block = [np.flatnonzero(is_displayed & (pool.owner == index)) for index in range(len(pool.candidates))]
    blocks = [
        (block, ints(pool.row[places])) for block, places in zip(pool.candidates, by_block, strict=True) if places.size
    ]
    answers: dict[int, Answer] = {}
    for (block, rows), cost, places in zip(blocks, costs(blocks), filter(np.size, by_block), strict=True):
        memory = block.table.memory.take(rows)
        result = answers_of(problem, block.table, rows.tolist(), cost.take(rows), memory)
        answers |= dict(zip(places.tolist(), result, strict=True))
    return answers
