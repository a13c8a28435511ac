"""What a framework cannot be told about a plan."""

from ops.strategies.launch import Launch
from solver.plans.plan_table import Plan
from spec.errors import ExportError


def refuse_unless(holds: bool, framework: str, what: str) -> None:
    """Raise ExportError naming what the framework has no setting for, unless ``holds``."""
    if not holds:
        raise ExportError(f"{framework} has no setting for {what}")


def same_framework(name: str, plan: Plan) -> None:
    """Raise ExportError for a plan priced as another framework runs it."""
    if plan.preset != name:
        raise ExportError(
            f"the plan is one of {plan.preset}: price it with --framework {name} to launch it there"
        )


def launch_of(framework: str, plan: Plan, title: str) -> Launch:
    """What ``framework`` is told of the plan's strategy; raises ExportError where it has no words for it."""
    launch = plan.sharding.launch(framework, plan.tp)
    if launch is None:
        raise ExportError(f"{title} has no setting for {plan.strategy} sharding")
    return launch
