"""A plan typed with the dp that follows from its other degrees: ``tp=2,dp=2``."""

import re

from solver.plans.plan_table import Plan
from solver.typed_plan import parse_plan
from spec.errors import ConfigError
from spec.settings.plan import WrittenPlan

DP = re.compile(r"dp=([1-9][0-9]{0,6})")
PLAN = "--plan"


def plan_and_dp(text: str) -> tuple[WrittenPlan, int | None]:
    """The plan, and the dp that was typed with it (None: not said).

    Raises ConfigError for a dp that is no number or said twice, and as parse_plan.
    """
    words = [word.strip() for word in text.split(",")]
    said = [word for word in words if word.startswith("dp=")]
    if not said:
        return parse_plan(text), None
    found = DP.fullmatch(said[0])
    if found is None or len(said) > 1:
        raise ConfigError(where=PLAN, key="dp", value=",".join(said), allowed="dp=N once, a whole number")
    rest = ",".join(word for word in words if word not in said)
    return (parse_plan(rest) if rest else WrittenPlan()), int(found[1])


def check_dp(plan: Plan, dp: int | None) -> None:
    """Raise ConfigError where the typed dp is not that of the plan."""
    if dp is not None and plan.dp != dp:
        split = f"tp {plan.tp} x pp {plan.pp} x cp {plan.cp}"
        allowed = f"{plan.dp}, what {split} leave of {plan.world_size} processes"
        raise ConfigError(where=PLAN, key="dp", value=dp, allowed=allowed)
