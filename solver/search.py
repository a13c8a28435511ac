"""The search for the best plans of a problem: every plan its framework can run, ranked by step time.

Read from top to bottom it is the algorithm:

    enumerate     the degrees of every strategy, recompute mode and schedule, less what a rule rejects (solver.plans)
    -> memory     what the worst stage of each plan needs; plans that do not fit wait for less recomputation
    -> bound      a step that no schedule of the plan's pipeline is faster than
    -> simulate   the pipelines of plans that a bound cannot keep out of the answer (solver.candidates.candidates)
    -> relax      less recomputation where memory is short, and other layers on stages, of plans that could still win
    -> rank       by step time; plans alike but for their ZeRO shards stand for each other
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.recompute import Recompute
from solver.candidates.candidates import CandidatePool, Candidates, candidates_of, costs, with_own_layers
from solver.candidates.layer_partition import repartition
from solver.candidates.recompute_search import MemorySplit, relax_recompute, relaxed_on_stages
from solver.estimate import Estimate, estimate_memory
from solver.memory.device import limit_bytes, needs_words, usable_bytes
from solver.plans.space import Space, enumerate_block
from solver.problem.price import answers_of
from solver.problem.problem import Problem
from solver.problem.result import Answer
from spec.arrays import BoolArray, IntArray, ints
from spec.errors import NoFeasiblePlanError

OUT_OF_MEMORY = "does not fit in memory"
OVER_LIMIT = "fits, but needs more memory than allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer to a search.

    ``best`` the top plans by step time, of those that differ in zero_size alone one (solver.candidates.candidates);
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


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a search counts on its way: plans ``seen``, how many were ``rejected`` for each reason, and the bytes and
    words of the plan that came closest to fitting."""

    began: float
    seen: int = 0
    rejected: dict[str, int]
    miss_bytes: float = float("inf")
    miss: str = "none came as far as memory"

    def reject(self, reason: str, count: int) -> None:
        """Count plans that fall for a reason."""
        if count:
            self.rejected[reason] = self.rejected.get(reason, 0) + count


def search(
    problem: Problem,
    space: Space,
    *,
    top_k: int = 10,
    tick: Callable[[], object] = lambda: None,
    everything: bool = False,
) -> Result:
    """Returns the plans of the space ranked by step time. ``tick`` is called after each block. With ``everything`` also
    pipelines are simulated that a bound keeps out of the answer (solver.candidates.candidates), which changes no
    answer.

    Raises NoFeasiblePlanError when no plan is left, with the reasons and the nearest miss.
    """
    pool, tally = candidate_pool(problem, space, top_k=top_k, tick=tick, everything=everything)
    return ranked_result(problem, pool, tally)


def candidate_pool(
    problem: Problem,
    space: Space,
    *,
    top_k: int = 10,
    tick: Callable[[], object] = lambda: None,
    everything: bool = False,
) -> tuple[CandidatePool, Tally]:
    """Returns the plans of the space that fit, those that could win simulated, and what was counted; as ``search``."""
    tally = Tally(began=time.perf_counter(), rejected={})
    fitting: list[Candidates] = []
    oom: list[tuple[Estimate, IntArray]] = []
    limit = limit_bytes(problem.cluster, space.constraints)
    table: Estimate | None = None
    for block in space.blocks:
        drafted = enumerate_block(problem.model, problem.job, problem.cluster, space, block)
        tally.seen += drafted.seen
        for reason, count in drafted.rejected.items():
            tally.reject(reason, count)
        if len(drafted.plans):
            # Plans that differ in their recompute mode alone share their stages and most of their layers.
            table = estimate_memory(problem.model, problem.job, drafted.plans, problem.cluster, like=table)
            fits = split_by_memory(problem, table, limit, tally)
            if fits.any():
                rows = ints(np.flatnonzero(fits))
                fitting.append(candidates_of(problem, with_own_layers(problem, table, rows)))
            if not fits.all() and drafted.plans.recompute is Recompute.NONE:
                oom.append((table, ints(np.flatnonzero(~fits))))
        tick()
    pool = CandidatePool(fitting, top_k, everything=everything)
    pool.simulate_contenders()
    split = MemorySplit(fitting=fitting, oom=oom, limit_bytes=limit)
    relaxed, short = relax_recompute(problem, space.constraints, split, pool.incumbent_s)
    pool = pool.merge(relaxed)
    moved = repartition(
        problem,
        [*pool.candidates, *short],
        (limit, pool.incumbent_s),
        lambda plain: relaxed_on_stages(problem, space.constraints, plain, limit),
    )
    pool = pool.merge(moved)
    if not pool.candidates:
        raise NoFeasiblePlanError(rejected=tally.rejected, nearest_miss=tally.miss)
    tally.seen += sum(len(one.needed_bytes) for one in (*relaxed, *moved))
    return pool, tally


def split_by_memory(problem: Problem, table: Estimate, limit: float, tally: Tally) -> BoolArray:
    """Returns which plans need at most ``limit`` bytes on their worst stage; the others are counted, the nearest of
    them kept."""
    needed = table.needed_bytes
    fits = np.asarray(needed <= limit, dtype=np.bool_)
    on_device = needed <= usable_bytes(problem.cluster)
    tally.reject(OUT_OF_MEMORY, int(np.count_nonzero(~fits & ~on_device)))
    tally.reject(OVER_LIMIT, int(np.count_nonzero(~fits & on_device)))
    nearest = int(np.argmin(np.where(fits, np.inf, needed)))
    if not fits.all() and needed[nearest] < tally.miss_bytes:
        tally.miss_bytes = float(needed[nearest])
        tally.miss = f"{table.plans.plan(nearest).label()} {needs_words(tally.miss_bytes, limit)}"
    return fits


def ranked_result(problem: Problem, pool: CandidatePool, tally: Tally) -> Result:
    """Returns the plans shown: the leaders of groups of plans alike, the best of each strategy, the Pareto front."""
    ranked, groups = pool.ranked(), pool.groups()
    modes = pool.modes[ranked]
    best = {str(mode): int(ranked[modes == mode][0]) for mode in dict.fromkeys(modes.tolist())}
    leaders = [int(ranked[group.place]) for group in groups]
    front = [int(number) for number in pool.front()]
    answers = _answers(problem, pool, [*leaders, *best.values(), *front])
    return Result(
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
        num_seen=tally.seen,
        num_priced=len(pool.row),
        rejected=tally.rejected,
        nearest_miss=tally.miss,
        seconds=time.perf_counter() - tally.began,
    )


def _answers(problem: Problem, pool: CandidatePool, numbers: Sequence[int]) -> dict[int, Answer]:
    """The answers of those plans of the pool, by number."""
    shown = np.zeros(len(pool.row), dtype=np.bool_)
    shown[numbers] = True
    selected = [np.flatnonzero(shown & (pool.owner == index)) for index in range(len(pool.candidates))]
    wanted = [
        (one, ints(pool.row[of_one])) for one, of_one in zip(pool.candidates, selected, strict=True) if of_one.size
    ]
    answers: dict[int, Answer] = {}
    for (one, rows), cost, of_one in zip(wanted, costs(wanted), filter(np.size, selected), strict=True):
        memory = one.table.memory.take(rows)
        result = answers_of(problem, one.table, rows.tolist(), cost.take(rows), memory)
        answers |= dict(zip(of_one.tolist(), result, strict=True))
    return answers
