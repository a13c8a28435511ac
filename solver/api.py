"""The solver from Python: ``ask`` takes the options of the command line as arguments and returns a Session.

    session = ask(model="70B_llama3.py", job={"world_size": 512, "global_batch_tokens": 4_194_304, "seq_len": 8192})
    session.best.plan.label()
    session.price("tp=8,pp=4").step_s

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
"""A plan: ``"tp=8,pp=4"``, ``{"tp": 8, "pp": 4}``, the settings of a config, or an answer, which has one."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A problem that is read and checked, with the times that answer questions about it; they are cached by shape."""

    inputs: LoadedProblem

    @cached_property
    def best(self) -> Answer:
        """Returns the fastest plan that fits; NoFeasiblePlanError as ``search``."""
        return self.search().best[0]

    def search(self, *, top_k: int = 10, tick: Callable[[], object] = lambda: None) -> "Result":
        """Returns the result of a search under the constraints, with the ``top_k`` fastest plans; ``tick`` is called
        now and then.

        Raises NoFeasiblePlanError with the reasons, the nearest miss and the cheapest change; ProfileError
        for times that no machine could take.
        """
        from solver.analysis.best_plans import best_plans

        result = best_plans(self.inputs.problem, self.inputs.constraints, top_k=top_k, tick=tick)
        check_believable((*result.best, *result.best_of_mode.values(), *result.pareto), self.inputs.source)
        return result

    def price(self, plan: PlanText, *, where: str = "plan") -> Answer:
        """Returns the answer for a plan, although it may break rules (``obstacles`` says which). Raises ConfigError for
        what is no plan of this world; ``where`` names the source of the plan in the message."""
        if isinstance(plan, Answer):
            return plan
        settings = plan if isinstance(plan, PlanSettings) else PlanSettings(**plan_keys(plan, where))
        answer = price_requested(settings, self.inputs.problem, where)
        check_believable((answer,), self.inputs.source)
        return answer

    def obstacles(self, plan: PlanText) -> tuple[str, ...]:
        """Returns why a plan cannot run: rules and constraints that it breaks, and memory that it lacks; () if it
        can."""
        return obstacles(self.inputs.problem, self.price(plan), self.inputs.constraints)

    def explain(self, plan: PlanText) -> "Explanation":
        """Returns the operations of a plan, the sum of its step, and its memory by stage; before any calibration."""
        from solver.analysis.explanation import explain_plan

        return explain_plan(self.inputs.problem, self.price(plan).plan)

    def every_plan(self, *, tick: Callable[[], object] = lambda: None) -> dict[str, list[Any]]:
        """Returns every plan that fits and meets the constraints, by column, fastest first
        (solver.analysis.best_plans)."""
        from solver.analysis.best_plans import every_plan

        return every_plan(self.inputs.problem, self.inputs.constraints, tick)


def plan_keys(plan: str | Mapping[str, Any] | PlanSettings, where: str) -> dict[str, Any]:
    """Returns the keys that a plan specifies, with their values; of a PlanSettings those that differ from its defaults.
    Raises ConfigError for unknown keys and values that they do not take."""
    settings = plan_option_settings()
    if isinstance(plan, PlanSettings):
        default = PlanSettings()
        return {key: getattr(plan, key) for key in settings if getattr(plan, key) != getattr(default, key)}
    if isinstance(plan, str):
        return parse_settings(plan, settings, where)
    # One parser for both forms: a mapping is written out first. Unknown keys are left for it to refuse.
    words = [f"{key}={setting_text(value) if key in settings else value}" for key, value in plan.items()]
    return parse_settings(",".join(words), settings, where)


SIZES = ("world_size", "global_batch_tokens", "seq_len", "framework", "precision")
"""Keys of a job that are fields of a request; the others are settings of the job (docs/configs.md)."""


class AskArguments(TypedDict, total=False):
    """The arguments of ``ask``.

    ``model``: the path of a config, or the name of a shipped one. ``job``: world_size (GPUs), global_batch_tokens,
    seq_len (tokens), framework, precision, and any setting of a job by its key. ``cluster``: the name or path of a
    hardware spec; by default the machine of the profile. ``constraints`` as in a config: {"fix": {"tp": 8}, "max":
    {...}, "modes": [...], "headroom": 0.1}. ``profile``: a file, by default that of the cluster in prof_data/. ``missing``,
    ``transfer`` and ``calibration`` as on the command line."""

    model: Required[str | Path]
    job: Required[Mapping[str, Any]]
    cluster: str | Path | None
    constraints: Mapping[str, Any]
    profile: str | Path | None
    missing: str
    transfer: bool
    calibration: str | Path | None


def ask(**arguments: Unpack[AskArguments]) -> Session:
    """Reads and checks model, job, cluster and profile, and returns a Session for questions about them.

    Raises ConfigError or ProfileError, in one line, for whatever does not fit together.
    """
    return Session(inputs=load_problem(request_of(**arguments)))


def sweep(
    over: Mapping[str, Sequence[object]], *, workers: str | int | None = None, **arguments: Unpack[AskArguments]
) -> "tuple[SweepRow, ...]":
    """Returns the best plan for every combination of the lists ``over`` (model, cluster, framework,
    seq_len, global_batch_tokens, micro_batch, world_size), whose values replace those of the other arguments. A combination
    without a feasible plan is a row that says so. ``workers`` answer (solver.analysis.workers): those of a Dask scheduler
    at this address, or so many processes; by default this one does.

    Raises ConfigError or ProfileError, before any search, for a combination that is not valid.
    """
    from solver.analysis.sweep import AXES, run_sweep, sweep_requests

    for axis in over:
        if axis not in AXES:
            raise ConfigError(where="sweep", key=axis, value=over[axis], allowed=f"lists of {', '.join(AXES)}")
    return run_sweep(sweep_requests(request_of(**arguments), over), workers=workers)


def request_of(**arguments: Unpack[AskArguments]) -> Request:
    """Returns the request; TypeError for unknown and missing arguments, ConfigError for values of a wrong kind."""
    for word in arguments.keys() - AskArguments.__annotations__.keys():
        raise TypeError(f"unexpected keyword {word!r}; known are {', '.join(AskArguments.__annotations__)}")
    for word in sorted(AskArguments.__required_keys__ - arguments.keys()):
        raise TypeError(f"the keyword {word!r} is missing")
    job = dict(arguments["job"])
    sizes = {key: job.pop(key) for key in SIZES if key in job}
    for key in SIZES[:3]:
        if key in sizes and type(sizes[key]) is not int:
            raise ConfigError(where="job", key=key, value=sizes[key], allowed="a whole number")
    cluster, missing = arguments.get("cluster"), arguments.get("missing", "error")
    if missing not in ("error", "modelled"):
        raise ConfigError(where="ask", key="missing", value=missing, allowed="error or modelled")
    return Request(
        root=shipped_folder(),
        config=Path(arguments["model"]),
        cluster=None if cluster is None else str(cluster),
        profile=_path(arguments.get("profile")),
        calibration=_path(arguments.get("calibration")),
        missing=missing,
        transfer=arguments.get("transfer", False),
        constraints=arguments.get("constraints", {}),
        job=job,
        **sizes,
    )


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
