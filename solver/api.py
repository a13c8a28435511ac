"""The solver from Python: ``ask`` with the words of the command line as arguments, and the session that answers.

What a question does not need is not imported: pricing a plan loads no search.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required, TypedDict, Unpack

from solver.analysis.named_plans import obstacles, price_requested
from solver.problem.loading import LoadedProblem, load_problem
from solver.problem.request import Request
from solver.problem.result import Answer, check_believable
from spec.errors import ConfigError
from spec.files import shipped_folder
from spec.settings.plan import PlanSettings, plan_option_settings
from spec.settings.setting import parse_settings, setting_text

if TYPE_CHECKING:
    from solver.analysis.explanation import Explanation
    from solver.analysis.sweep import SweepRow
    from solver.search import Result


PlanText = str | Mapping[str, Any] | PlanSettings | Answer
"""A plan: ``"tp=8,pp=4"``, ``{"tp": 8, "pp": 4}``, one that a config writes, or that of an answer."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """The question, with the times that answer it; they remember the shapes that they priced."""

    inputs: LoadedProblem

    @cached_property
    def best(self) -> Answer:
        """Returns the fastest plan that fits; NoFeasiblePlanError as ``search``."""
        return self.search().best[0]

    def search(self, *, top_k: int = 10, tick: Callable[[], object] = lambda: None) -> "Result":
        """Returns every plan that keeps the constraints, the ``top_k`` fastest shown; ``tick`` is called now and then.

        Raises NoFeasiblePlanError with the reasons, the nearest miss and the cheapest change; ProfileError
        for times that no machine could take.
        """
        from solver.analysis.best_plans import best_plans

        result = best_plans(self.inputs.problem, self.inputs.constraints, top_k=top_k, tick=tick)
        shown = (*result.best, *result.best_of_mode.values(), *result.pareto)
        check_believable(shown, self.inputs.source)
        return result

    def price(self, plan: PlanText, *, where: str = "plan") -> Answer:
        """Returns what a plan takes, whatever it breaks (``obstacles`` says what). Raises ConfigError for what is no
        plan of this world, naming ``where`` it is written."""
        if isinstance(plan, Answer):
            return plan
        settings = plan if isinstance(plan, PlanSettings) else PlanSettings(**plan_keys(plan, where))
        answer = price_requested(settings, self.inputs.problem, where)
        check_believable((answer,), self.inputs.source)
        return answer

    def obstacles(self, plan: PlanText) -> tuple[str, ...]:
        """Returns why a plan cannot run: rules and constraints that it breaks, and memory; () for one that can."""
        return obstacles(self.inputs.problem, self.price(plan), self.inputs.constraints)

    def explain(self, plan: PlanText) -> "Explanation":
        """Returns a plan taken apart: operations, how the step is put together, memory by stage; before any
        calibration."""
        from solver.analysis.explanation import explain_plan

        return explain_plan(self.inputs.problem, self.price(plan).plan)

    def every_plan(self, *, tick: Callable[[], object] = lambda: None) -> dict[str, list[Any]]:
        """Returns every plan that fits and keeps the constraints, by column, fastest first
        (solver.analysis.best_plans)."""
        from solver.analysis.best_plans import every_plan

        return every_plan(self.inputs.problem, self.inputs.constraints, tick)


def plan_keys(plan: str | Mapping[str, Any] | PlanSettings, where: str) -> dict[str, Any]:
    """Returns the keys that a plan specifies, with their values, of a PlanSettings those that are not as where nothing
    is written; ConfigError as written_plan."""
    known = plan_option_settings()
    if isinstance(plan, PlanSettings):
        nothing = PlanSettings()
        return {key: getattr(plan, key) for key in known if getattr(plan, key) != getattr(nothing, key)}
    if isinstance(plan, str):
        return parse_settings(plan, known, where)
    words = [f"{key}={setting_text(value) if key in known else value}" for key, value in plan.items()]
    return parse_settings(",".join(words), known, where)


SIZES = ("world_size", "global_batch_tokens", "seq_len", "framework", "precision")
"""Keys of a job that a request holds by themselves; the others are settings of the job (docs/configs.md)."""


class Asking(TypedDict, total=False):
    """The arguments of a question.

    ``model``: the path of a config, or the name of a shipped one. ``job``: world_size (GPUs),
    global_batch_tokens, seq_len (tokens), framework, precision, and any setting of a job by its key.
    ``cluster``: the name or path of a sheet; without it the machine of the profile. ``constraints`` as a
    config holds them: {"fix": {"tp": 8}, "max": {...}, "modes": [...], "headroom": 0.1}. ``profile``: a file,
    by default prof_data/data.pt. ``missing``, ``transfer`` and ``calibration`` as on the command line.
    """

    model: Required[str | Path]
    job: Required[Mapping[str, Any]]
    cluster: str | Path | None
    constraints: Mapping[str, Any]
    profile: str | Path | None
    missing: str
    transfer: bool
    calibration: str | Path | None


def ask(**asking: Unpack[Asking]) -> Session:
    """Reads and checks the question, and open the times that answer it: ``ask(model=..., job=...)``, with the
    words of Asking.

    Raises ConfigError or ProfileError, in one line, for whatever does not fit together.
    """
    return Session(inputs=load_problem(request_of(**asking)))


def sweep(over: Mapping[str, Sequence[object]], **asking: Unpack[Asking]) -> "tuple[SweepRow, ...]":
    """Returns the best plan for every combination of the lists ``over`` (cluster, framework, seq_len,
    global_batch_tokens, micro_batch, world_size), which take the places of what is asked otherwise. A
    question without a feasible plan is a row that says so.

    Raises ConfigError or ProfileError, before anything is priced, for a question that cannot be asked.
    """
    from solver.analysis.sweep import AXES, run_sweep, sweep_requests

    for axis in over:
        if axis not in AXES:
            raise ConfigError(where="sweep", key=axis, value=over[axis], allowed=f"lists of {', '.join(AXES)}")
    rows = run_sweep(sweep_requests(request_of(**asking), over))
    for row in rows:
        if row.answer is not None:
            check_believable((row.answer,), row.inputs.source)
    return rows


def request_of(**asking: Unpack[Asking]) -> Request:
    """Returns the request; TypeError for a word that is none of Asking's, ConfigError for values of a wrong kind."""
    for word in asking.keys() - Asking.__annotations__.keys():
        raise TypeError(f"unexpected keyword {word!r}; known are {', '.join(Asking.__annotations__)}")
    for word in sorted(Asking.__required_keys__ - asking.keys()):
        raise TypeError(f"the keyword {word!r} is missing")
    job = dict(asking["job"])
    sizes = {key: job.pop(key) for key in SIZES if key in job}
    for key in SIZES[:3]:
        if key in sizes and type(sizes[key]) is not int:
            raise ConfigError(where="job", key=key, value=sizes[key], allowed="a whole number")
    cluster, missing = asking.get("cluster"), asking.get("missing", "error")
    if missing not in ("error", "modelled"):
        raise ConfigError(where="ask", key="missing", value=missing, allowed="error or modelled")
    return Request(
        root=shipped_folder(),
        config=Path(asking["model"]),
        cluster=None if cluster is None else str(cluster),
        profile=_path(asking.get("profile")),
        calibration=_path(asking.get("calibration")),
        missing=missing,
        transfer=asking.get("transfer", False),
        constraints=asking.get("constraints", {}),
        job=job,
        **sizes,
    )


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
