"""Constraints of a user as rules of the search: what they cut from a space, each counted under its own words."""

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
# The first column of every search, after which what all plans of a block share can be asked.
FIRST = "etp"
# Of numbers that degrees leave, the column after which they are known.
LEFT = {"dp": "tp", "num_micro": "micro_batch"}
OF_BLOCK: dict[str, Callable[[PlanColumns], object]] = {
    "strategy": lambda draft: draft.strategy,
    "schedule": lambda draft: draft.schedule.value,
    "recompute": lambda draft: "full" if draft.recompute is Recompute.BLOCK else draft.recompute.value,
    "recompute_modules": lambda draft: draft.recompute_modules,
    "offload_modules": lambda draft: draft.offload_modules,
}


# Parts of layers by name, which run again or wait on the host.
SHARED = ("recompute_modules", "offload_modules")


def constraint_rules(constraints: Constraints) -> tuple[Rule, ...]:
    """One rule a constraint; those on memory are the search's own (solver.search)."""
    rules = [
        Rule(CONSTRAINT + bound.words(), _known_after(bound.key), partial(_keeps, bound))
        for bound in constraints.bounds
    ]
    rules += [
        Rule(
            CONSTRAINT + bound.words(),
            FIRST,
            # Parts of layers neither, unless they are requested by name.
            lambda draft: not draft.recompute_modules,
        )
        for bound in constraints.bounds
        if bound.key == "recompute" and bound.among == ("none",) and not fixed_modules(constraints, "recompute_modules")
    ]
    if constraints.keep_tp_in_node:
        rules.append(
            Rule(
                CONSTRAINT + "tp inside a node",
                "tp",
                lambda draft: group_of(Axis.TP, draft.layout, draft.cluster.server_ranks).inter == 1,
            )
        )
    return tuple(rules)


def fixed_degrees(constraints: Constraints, degrees: dict[str, tuple[float, ...]]) -> dict[str, Any]:
    """The degrees with values asked for that no search tries by itself; 0, which stands for a whole group, is none."""
    values: dict[str, Any] = {}
    for bound in constraints.bounds:
        if bound.key in degrees and bound.among is not None:
            choices = {value for value in bound.among if value or bound.key not in STANDS_FOR_ALL}
            values[bound.key] = tuple(sorted({*degrees[bound.key], *choices}))
    return values


def check_schedules(constraints: Constraints) -> None:
    """Raise ConfigError for a schedule that nobody knows."""
    for bound in constraints.bounds:
        for name in (bound.among or ()) if bound.key == "schedule" else ():
            if name not in set(Schedule):
                allowed = f"one of {', '.join(Schedule)}"
                raise ConfigError(where="constraints", key="schedule", value=name, allowed=allowed)


def fixed_modules(constraints: Constraints, key: str) -> tuple[str, ...]:
    """The modules asked for under a ``key`` of SHARED, which all plans of a search share."""
    choices = [bound.among for bound in constraints.bounds if bound.key == key]
    return tuple(choices[0][0]) if choices and choices[0] else ()


def _known_after(key: str) -> str:
    return FIRST if key in OF_BLOCK else LEFT.get(key, key)


def _keeps(bound: Bound, draft: PlanColumns) -> BoolArray:
    """Rows that a bound allows."""
    if bound.key in OF_BLOCK:
        return bools(bound.among is None or OF_BLOCK[bound.key](draft) in bound.among)
    value = _value(bound.key, draft)
    keep = bools((value >= bound.least) & (value <= bound.most))
    if bound.among is None:
        return keep
    listed = np.isin(value, bound.among)
    if 0 in bound.among and bound.key in STANDS_FOR_ALL:
        listed |= value == STANDS_FOR_ALL[bound.key](draft)
    return bools(keep & listed)


def _value(key: str, draft: PlanColumns) -> Any:
    if key == "dp":
        return draft.dp
    if key == "num_micro":
        return draft.num_micro
    return draft.columns[key]


def _whole_group(draft: PlanColumns) -> Any:
    """All ranks that hold the same weights of linears."""
    return draft.copies(draft.sharding.traits.copies.linear_owner)


def _expert_ranks(draft: PlanColumns) -> Any:
    """As many as experts and a stage's ranks allow."""
    return np.gcd(max(draft.experts, 1), draft.stage_ranks)


STANDS_FOR_ALL: dict[str, Callable[[PlanColumns], Any]] = {"zero_size": _whole_group, "ep": _expert_ranks}
"""Keys whose 0 means as many ranks as there are."""
