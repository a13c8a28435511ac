"""The text of a launch file, and the settings that a framework lacks."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.errors import ExportError
from spec.settings.job import non_default_settings
from spec.settings.plan import plan_settings
from spec.settings.setting import setting_text


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchText:
    """``text`` is the whole file; ``notes`` say what was priced or belongs to the model and is not in it ("left
    out: ...") and what else a launch needs ("set ..."), one clause each, which the text repeats."""

    text: str
    notes: tuple[str, ...] = ()


def launch_text(plan: Plan, usage: str, notes: Iterable[str], lines: Iterable[str]) -> LaunchText:
    """Returns a file of ``lines`` below the plan, how it is run and the notes as comments."""
    clauses = tuple(notes)
    head = [f"# {line}" for line in (plan.label(), usage, *clauses)]
    return LaunchText(text="\n".join([*head, *lines]) + "\n", notes=clauses)


def with_warning(text: LaunchText, words: str) -> LaunchText:
    """Returns a file with a warning as its first line, where it has comments, and among its notes."""
    head = f"# WARNING: {words}\n" if text.text.startswith("#") else ""
    return LaunchText(text=head + text.text, notes=(f"WARNING: {words}", *text.notes))


def true_notes(notes: Mapping[str, bool]) -> tuple[str, ...]:
    """Returns the notes that hold."""
    return tuple(note for note, holds in notes.items() if holds)


# What a framework has no setting for, of a plan or a job.

EXPANDABLE_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def requirement(framework: str) -> Callable[[bool, str], None]:
    """Returns what raises ExportError naming what the framework has no setting for, unless a condition holds."""

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise ExportError(f"{framework} has no setting for {what}")

    return require


def same_framework(name: str, plan: Plan) -> None:
    """Raise ExportError for a plan priced as another framework runs it."""
    if plan.preset != name:
        raise ExportError(f"the plan is one of {plan.preset}: price it with --framework {name} to launch it there")


def refuse_other_keys(plan: Plan, keys: Collection[str], framework: str) -> None:
    """Raise ExportError for a key of the plan that is set and that the framework's settings do not say; every key
    that is not among ``keys`` must be as in a plan without it."""
    plain = Plan(strategy=plan.strategy, preset=plan.preset).settings
    for key in plan_settings():
        value = getattr(plan.settings, key)
        requirement(framework)(key in keys or value == getattr(plain, key), f"{key} = {setting_text(value)}")


# Settings that say which plans there may be, and change nothing about one that is.
PERMITS = frozenset(
    str.split(
        "data_parallel.zero_stages data_parallel.hybrid_zero tensor_parallel.strategies tensor_parallel.axes "
        "mfu pipeline.searched data_parallel.default_zero_stage tensor_parallel.default_strategy "
        "data_parallel.replicates_shards data_parallel.shards_over_cp data_parallel.shards_around_ep "
        "tensor_parallel.context_parallel tensor_parallel.kv_replication pipeline.schedules pipeline.interleaves pipeline.shards_weights "
        "pipeline.uneven_chunks pipeline.fills_pipeline recomputation.partial recomputation.layers "
        "recomputation.modules offload.activations"
    )
)
SIXTEEN_BITS = ("bf16", "fp16")


def setting_omissions(problem: Problem, keys: Collection[str]) -> tuple[str, ...]:
    """A clause for each setting of the job that is not the framework's own and not among ``keys``: it was priced,
    and a launch does not get it from here."""
    job = problem.job
    recipe = job.precision.compute if job.precision.compute in SIXTEEN_BITS else "bf16"
    apart = non_default_settings(job, problem.cluster.gpu.architecture, recipe=recipe)
    return tuple(
        f"left out: {key} = {setting_text(value)}" for key, value in apart.items() if key not in PERMITS | set(keys)
    )


def launch_of(framework: str, plan: Plan, title: str) -> dict[str, Any]:
    """Returns what ``framework`` sets for the plan's strategy; raises ExportError where it has no words for it."""
    settings = strategy_launch(framework, plan.strategy, plan.tp)
    if settings is None:
        raise ExportError(f"{title} has no setting for {plan.strategy} sharding")
    return settings


def strategy_launch(framework: str, strategy: str, tp: int) -> dict[str, Any] | None:
    """Returns how ``framework`` (a preset's name, or a launcher's: accelerate, torchtitan) runs a strategy over ``tp``
    ranks; None where it cannot. Keys of Megatron-LM, DeepSpeed's AutoTP (runtime/tensor_parallel/config.py),
    InternEvo's mode (its wp stands in a section of its own), accelerate's and torchtitan's degrees
    (parallelism_config.py; config/configs.py)."""
    megatron = {"--tensor-model-parallel-size": tp}
    settings: dict[tuple[str, str], dict[str, Any]] = {
        ("megatron", "mtp"): megatron,
        ("megatron", "fsp"): megatron | ({"--sequence-parallel": None} if tp > 1 else {}),
        ("deepspeed", "mtp"): {"tensor_parallel": {"autotp_size": tp}} if tp > 1 else {},
        ("deepspeed", "ulysses"): {"sequence_parallel_size": tp},
        ("accelerate", "mtp"): {"parallelism_config_tp_size": tp},
        ("torchtitan", "mtp"): {"tensor_parallel_degree": tp, "enable_sequence_parallel": False},
        ("torchtitan", "fsp"): {"tensor_parallel_degree": tp, "enable_sequence_parallel": tp > 1},
    }
    settings |= {("internevo", mode): {"size": tp, "mode": mode} for mode in ("mtp", "msp", "fsp", "isp")}
    return settings.get((framework, strategy))
