"""Choosing a plan: price every one from the curves, keep what fits, rank and explain. CPU only.

From Python (docs/api.md): ``ask`` and ``sweep``, and ``to_frame`` of what they find. They are imported when
they are first used, as a file of this package must not wait for all others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solver.analysis.explanation import Explanation
    from solver.analysis.sweep import SweepRow
    from solver.api import Session, ask, sweep
    from solver.problem.result import Answer
    from solver.report.frames import to_frame, write_parquet
    from solver.report.page import write_report
    from solver.search import Result
    from spec.errors import ConfigError, MissingCurveError, NoFeasiblePlanError, ProfileError, UserError

__all__ = [
    "Answer",
    "ConfigError",
    "Explanation",
    "MissingCurveError",
    "NoFeasiblePlanError",
    "ProfileError",
    "Result",
    "Session",
    "SweepRow",
    "UserError",
    "ask",
    "sweep",
    "to_frame",
    "write_parquet",
    "write_report",
]

_HOMES = {
    "solver.problem.result": ("Answer",),
    "solver.analysis.explanation": ("Explanation",),
    "solver.analysis.sweep": ("SweepRow",),
    "solver.report.page": ("write_report",),
    "solver.report.frames": ("to_frame", "write_parquet"),
    "solver.search": ("Result",),
    "solver.api": ("Session", "ask", "sweep"),
    "spec.errors": ("ConfigError", "MissingCurveError", "NoFeasiblePlanError", "ProfileError", "UserError"),
}


def __getattr__(name: str) -> Any:
    """A name of ``__all__``, from where it is made."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
