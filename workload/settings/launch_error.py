"""What a framework cannot be told about a plan."""

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
