"""The best plans under constraints: a search and, where no plan is left, the cheapest change that lets one fit.

That is to give up the fewest constraints, by the least; an optimizer on the host; gradients in fewer bits; or more
GPUs."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from solver.candidates.candidates import Candidates, costs
from solver.estimate import StepTime, estimate_memory
from solver.memory.device import limit_bytes, usable_bytes
from solver.memory.terms import TERM_NAMES
from solver.plans.constraints import CONSTRAINT, MODULE_KEYS, constraint_rules
from solver.plans.plan_columns import plan_columns
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.rules import Rule
from solver.plans.space import enumerate_block, full_space
from solver.problem.interval import standard_errors_s
from solver.problem.model_flops import mfu, tokens_per_gpu_per_s
from solver.problem.price import interval_s, price_plan
from solver.problem.problem import Problem
from solver.problem.result import Answer
from solver.search import Result, candidate_pool, search
from spec.arrays import FloatArray
from spec.errors import NoFeasiblePlanError
from spec.settings.constraints import Bound, Constraints
from spec.units import bytes_to_gib, seconds_to_ms

MOST_CHANGES = 3
MOST_DOUBLINGS = 6
"""How often the number of GPUs is doubled to find one that fits: up to 64 times as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """A plan that fits the device. ``distance`` says how near it is: how many constraints it breaks, by how many
    doublings of their values, and the bytes that it needs. ``words`` say what would have to be given up."""

    distance: tuple[int, float, float]
    words: str
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to change so that a plan fits, in words, and the plan that then fits."""

    words: str
    answer: Answer

    def text(self) -> str:
        """Returns the change with its price and the plan."""
        return f"{self.words} ({seconds_to_ms(self.answer.step_s):,.0f} ms a step: {self.answer.plan.label()})"


def cheapest_changes(problem: Problem, constraints: Constraints) -> tuple[Change, ...]:
    """Returns up to MOST_CHANGES changes after which a plan fits, each alone: constraints, the fewest and by the least;
    the optimizer on the host; gradients in fewer bits; more GPUs. () where none of it helps."""
    changes = (_other_constraints, _host_optimizer, _narrow_gradients, _more_gpus)
    found = (change(problem, constraints) for change in changes)
    return tuple(islice(filter(None, found), MOST_CHANGES))


def best_of(problem: Problem, constraints: Constraints, *, relaxes: bool = True) -> Answer | None:
    """Returns the first plan of a search; None where none fits. ``relaxes`` as in solver.search."""
    try:
        return search(problem, full_space(problem.model, problem.job, constraints), top_k=1, relaxes=relaxes).best[0]
    except NoFeasiblePlanError:
        return None


def _changed(words: str, problem: Problem, constraints: Constraints) -> Change | None:
    answer = best_of(problem, constraints, relaxes=False)
    return None if answer is None else Change(words=words, answer=answer)


def _other_constraints(problem: Problem, constraints: Constraints) -> Change | None:
    nearest = _nearest(problem, constraints)
    if nearest is None or not nearest.words:
        return None
    return Change(words=nearest.words, answer=price_plan(problem, PlanTable.of(nearest.plan))[0])


def _host_optimizer(problem: Problem, constraints: Constraints) -> Change | None:
    """Returns the optimizer on the host, where the framework and the cluster have that and no constraint is on it."""
    key = "optimizer_offload"
    has_host = problem.job.preset.offload.optimizer and problem.cluster.host is not None
    if not has_host or any(bound.key == key for bound in constraints.bounds):
        return None
    on_host = replace(constraints, bounds=(*constraints.bounds, Bound(key=key, among=(1.0,))))
    return _changed(f"{key} = 1, the optimizer on the host", problem, on_host)


def _narrow_gradients(problem: Problem, constraints: Constraints) -> Change | None:
    """Returns gradients in 16 bits (Megatron-LM --grad-reduce-in-bf16, DeepSpeed data_types.grad_accum_dtype), where
    they are wider."""
    precision = problem.job.precision
    if precision.gradient != "fp32" or precision.compute != "bf16":
        return None
    narrow = replace(problem.job, precision=replace(precision, gradient="bf16", reduce="bf16"))
    words = "precision.gradient = bf16 and precision.reduce = bf16, gradients in 16 bits"
    return _changed(words, replace(problem, job=narrow), constraints)


def _more_gpus(problem: Problem, constraints: Constraints) -> Change | None:
    """Returns the fewest GPUs that a plan fits on: between two doublings of their number every number of nodes is
    tried, of many nodes every eighth of the doubling."""
    world, cluster = problem.job.world_size, problem.cluster

    def on(gpus: int) -> Change | None:
        larger = replace(problem, job=replace(problem.job, world_size=gpus))
        return _changed(f"{gpus:,} GPUs instead of {world:,}", larger, constraints)

    for doublings in range(1, MOST_DOUBLINGS + 1):
        most = world * 2**doublings
        if cluster.nodes_for(most) > cluster.max_nodes:
            return None
        change = on(most)
        if change is not None:
            step = cluster.gpus_per_node * max(most // 2 // cluster.gpus_per_node // 8, 1)
            fewer = range(most // 2 // step * step + step, most, step)
            return next(filter(None, map(on, fewer)), change)
    return None


def _nearest(problem: Problem, constraints: Constraints) -> Nearest | None:
    """Returns the plan that fits the device and is nearest to the constraints; None where none fits."""
    # Modules are no numbers: a plan cannot be near to a constraint on them, so it stays a constraint.
    shared = tuple(bound for bound in constraints.bounds if bound.key in MODULE_KEYS)
    space = replace(full_space(problem.model, problem.job, constraints), constraints=Constraints(bounds=shared))
    tables = (
        enumerate_block(problem.model, problem.job, problem.cluster, space, block).plans for block in space.blocks
    )
    result = (_nearest_of(problem, constraints, plans) for plans in tables if len(plans))
    return min(filter(None, result), key=lambda one: one.distance, default=None)


def _nearest_of(problem: Problem, constraints: Constraints, plans: PlanTable) -> Nearest | None:
    """Returns the nearest of a table's plans that fit the device, None where none does."""
    needed = estimate_memory(problem.model, problem.job, plans, problem.cluster).needed_bytes
    rows = np.flatnonzero(needed <= usable_bytes(problem.cluster)).astype(np.int64)
    if not rows.size:
        return None
    plans, needed = plans.take(rows), needed[rows]
    columns = plan_columns(problem.model, problem.job, problem.cluster, plans)
    rules = constraint_rules(constraints)
    # The first rules are those of the bounds, in their order; others (tp inside a node) have no bound.
    bounds: list[Bound | None] = [*constraints.bounds, *[None] * (len(rules) - len(constraints.bounds))]
    violations = [~rule.keeps(columns) for rule in rules]
    limit = limit_bytes(problem.cluster, constraints)
    # The user's limit on memory counts as one more constraint.
    over = needed > limit
    doublings = np.where(over, np.log2(needed / limit), 0.0)
    for bound, violates in zip(bounds, violations, strict=True):
        doublings = doublings + np.where(violates, _doublings(bound, plans), 0.0)
    count = np.sum([*violations, over], axis=0)
    best = int(np.lexsort((needed, doublings, count))[0])
    words = [
        _instead(plans.plan(best), bound, rule)
        for bound, rule, violates in zip(bounds, rules, violations, strict=True)
        if violates[best]
    ]
    if over[best] and constraints.memory_gib < np.inf:
        words.append(f"{_gib_up(needed[best])} GiB a device instead of {bytes_to_gib(limit):.1f}")
    elif over[best]:
        free = np.floor(100.0 * (1.0 - needed[best] / usable_bytes(problem.cluster)))
        words.append(f"headroom {free:.0f}% instead of {100 * constraints.headroom:g}%")
    return Nearest(
        distance=(int(count[best]), float(doublings[best]), float(needed[best])),
        words=" and ".join(words),
        plan=plans.plan(best),
    )


def _instead(plan: Plan, bound: Bound | None, rule: Rule) -> str:
    """Returns what the plan has instead of what a rule requests, in words."""
    key = bound.key if bound is not None else "tp"
    value = getattr(plan if key == "dp" else plan.settings, key)
    text = "+".join(value) or "none" if isinstance(value, tuple) else value
    return f"{key} = {text} instead of {rule.reason.removeprefix(CONSTRAINT)}"


def _doublings(bound: Bound | None, plans: PlanTable) -> FloatArray:
    """Returns how many times each plan's value would have to be doubled or halved to meet the bound; words, as of a
    schedule, are one doubling from each other."""
    columns = plans.columns
    if bound is None or bound.key not in columns:
        return np.ones(len(plans))
    # 0 counts as one half, so that its logarithm is finite.
    value = np.maximum(columns[bound.key].astype(np.float64), 0.5)
    ends = [end for end in (bound.least, bound.most) if abs(end) < np.inf]
    targets = bound.among if bound.among is not None else ends
    distances = [np.abs(np.log2(value / max(float(target), 0.5))) for target in targets]
    return np.asarray(np.min(distances, axis=0))


def _gib_up(size_bytes: float) -> str:
    """Returns GiB rounded up to a tenth, so that the plan fits within it as a limit."""
    return f"{np.ceil(10.0 * bytes_to_gib(size_bytes)) / 10.0:.1f}"


def best_plans(
    problem: Problem, constraints: Constraints, *, top_k: int = 10, tick: Callable[[], object] = lambda: None
) -> Result:
    """Returns the result of a search under the constraints. ``tick`` as in solver.search.

    Raises NoFeasiblePlanError with the reasons, the nearest miss and the cheapest changes.
    """
    space = full_space(problem.model, problem.job, constraints)
    try:
        return search(problem, space, top_k=top_k, tick=tick)
    except NoFeasiblePlanError as error:
        raise NoFeasiblePlanError(
            rejected=error.rejected,
            nearest_miss=error.nearest_miss,
            change="; or ".join(one.text() for one in cheapest_changes(problem, constraints)),
        ) from None


TOTALS = ("allocated_bytes", "reserved_bytes", "device_bytes", "needed_bytes")


def every_plan(
    problem: Problem, constraints: Constraints, tick: Callable[[], object] = lambda: None
) -> dict[str, list[Any]]:
    """Returns the values of every plan that fits by column, fastest plan first: the plan's keys and dp, seconds of the
    step and its parts, bytes by term, tokens per GPU and second, MFU; as solver.problem.result has them of one answer.
    ``tick`` as in solver.search.

    Raises NoFeasiblePlanError where no plan is left.
    """
    space = full_space(problem.model, problem.job, constraints)
    pool, _ = candidate_pool(problem, space, tick=tick, everything=True)
    all_costs = costs([(one, np.arange(len(one.simulated))) for one in pool.candidates])
    blocks = [_columns(problem, one, cost) for one, cost in zip(pool.candidates, all_costs, strict=True)]
    columns = {name: [value for block in blocks for value in block[name]] for name in blocks[0]}
    order = np.argsort(columns["step_s"], kind="stable")
    return {name: [values[row] for row in order] for name, values in columns.items()}


def _columns(problem: Problem, block: Candidates, cost: StepTime) -> dict[str, list[Any]]:
    """Returns the columns of a block's plans, all of them simulated."""
    plans = [block.table.plans.plan(row) for row in range(len(block.simulated))]
    settings = [asdict(plan.settings) for plan in plans]
    memory = block.table.memory
    low_s, high_s = interval_s(problem, cost, standard_errors_s(problem.job, cost.parts, cost.std_s))
    numbers = {
        "step_s": cost.step_s,
        "standard_error_s": cost.standard_error_s,
        "interval_low_s": low_s,
        "interval_high_s": high_s,
        **{f"{part}_s": value for part, value in cost.parts.items()},
        **{term: getattr(memory, term) for term in TERM_NAMES},
        **{total: getattr(memory, total) for total in TOTALS},
        "tgs": tokens_per_gpu_per_s(problem.job, cost.step_s),
        "mfu": mfu(problem.model, problem.job, problem.cluster, cost.step_s),
    }
    return {
        **{key: [one[key] for one in settings] for key in settings[0]},
        "dp": [plan.dp for plan in plans],
        **{name: values.tolist() for name, values in numbers.items()},
    }
