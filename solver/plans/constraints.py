"""Constraints of a user as rules of the search: each rejects plans under its own words.

A bound on a column is checked once the column exists; one on what a block shares (strategy, schedule, recompute) with
the first column. Values that no search tries by itself are added to the degrees (``degrees_under``)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ops.layout import group_of
from ops.op import Axis
from ops.recompute import Recompute
from solver.plans.plan_columns import PlanColumns
from solver.plans.rules import Rule
from solver.plans.schedules import Schedule
from spec.arrays import BoolArray, bools
from spec.errors import ConfigError
from spec.settings.constraints import Bound, Constraints

CONSTRAINT = "constraint: "
# The first column of every search, after which what all plans of a block share can be checked.
FIRST_COLUMN = "etp"
# Numbers that follow from other columns, and the column after which they do.
DERIVED_AFTER = {"dp": "tp", "num_micro": "micro_batch"}
BLOCK_VALUES: dict[str, Callable[[PlanColumns], object]] = {
    "strategy": lambda plans: plans.strategy,
    "schedule": lambda plans: plans.schedule.value,
    "recompute": lambda plans: "full" if plans.recompute is Recompute.BLOCK else plans.recompute.value,
    "recompute_modules": lambda plans: plans.recompute_modules,
    "offload_modules": lambda plans: plans.offload_modules,
}


# Keys of module names, which all plans of a search share: recomputed ones, and those offloaded to the host.
MODULE_KEYS = ("recompute_modules", "offload_modules")


def constraint_rules(constraints: Constraints) -> tuple[Rule, ...]:
    """Returns one rule a constraint; those on memory are the search's own (solver.search)."""
    rules = [
        Rule(CONSTRAINT + bound.words(), _column_after(bound.key), partial(_keeps, bound))
        for bound in constraints.bounds
    ]
    rules += [
        Rule(
            CONSTRAINT + bound.words(),
            FIRST_COLUMN,
            # recompute = none also excludes recomputed modules, unless they are requested by name.
            lambda plans: not plans.recompute_modules,
        )
        for bound in constraints.bounds
        if bound.key == "recompute" and bound.among == ("none",) and not modules_under(constraints, "recompute_modules")
    ]
    if constraints.keep_tp_in_node:
        rules.append(
            Rule(
                CONSTRAINT + "tp inside a node",
                "tp",
                lambda plans: group_of(Axis.TP, plans.layout, plans.cluster.server_ranks).inter == 1,
            )
        )
    return tuple(rules)


def degrees_under(constraints: Constraints, degrees: dict[str, tuple[float, ...]]) -> dict[str, Any]:
    """Returns the degrees with the values that constraints name; 0, which stands for a whole group, is no degree."""
    values: dict[str, Any] = {}
    for bound in constraints.bounds:
        if bound.key in degrees and bound.among is not None:
            choices = {value for value in bound.among if value or bound.key not in STANDS_FOR_ALL}
            values[bound.key] = tuple(sorted({*degrees[bound.key], *choices}))
    return values


def check_schedules(constraints: Constraints) -> None:
    """Raises ConfigError for a schedule that does not exist."""
    for bound in constraints.bounds:
        for name in (bound.among or ()) if bound.key == "schedule" else ():
            if name not in set(Schedule):
                allowed = f"one of {', '.join(Schedule)}"
                raise ConfigError(where="constraints", key="schedule", value=name, allowed=allowed)


def modules_under(constraints: Constraints, key: str) -> tuple[str, ...]:
    """Returns the modules that constraints name under a ``key`` of MODULE_KEYS."""
    choices = [bound.among for bound in constraints.bounds if bound.key == key]
    return tuple(choices[0][0]) if choices and choices[0] else ()


def _column_after(key: str) -> str:
    return FIRST_COLUMN if key in BLOCK_VALUES else DERIVED_AFTER.get(key, key)


def _keeps(bound: Bound, plans: PlanColumns) -> BoolArray:
    """Returns which rows a bound allows."""
    if bound.key in BLOCK_VALUES:
        return bools(bound.among is None or BLOCK_VALUES[bound.key](plans) in bound.among)
    value = _value(bound.key, plans)
    keep = bools((value >= bound.least) & (value <= bound.most))
    if bound.among is None:
        return keep
    is_among = np.isin(value, bound.among)
    if 0 in bound.among and bound.key in STANDS_FOR_ALL:
        is_among |= value == STANDS_FOR_ALL[bound.key](plans)
    return bools(keep & is_among)


def _value(key: str, plans: PlanColumns) -> Any:
    if key == "dp":
        return plans.dp
    if key == "num_micro":
        return plans.num_micro
    return plans.columns[key]


def _whole_group(plans: PlanColumns) -> Any:
    """Returns the ranks that hold the same weights of linear layers."""
    return plans.copies(plans.sharding.traits.copies.linear_owner)


def _expert_ranks(plans: PlanColumns) -> Any:
    """Returns the largest ep that experts and a stage's ranks allow."""
    return np.gcd(max(plans.experts, 1), plans.stage_ranks)


STANDS_FOR_ALL: dict[str, Callable[[PlanColumns], Any]] = {"zero_size": _whole_group, "ep": _expert_ranks}
"""Keys whose 0 means as many ranks as there are."""
