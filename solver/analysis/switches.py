"""Switches of a job that a user may turn (--try): a search with each, then with all that help together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import inf
from typing import Any

from solver.analysis.sensitivity import WhatIf, best_under
from solver.problem.loading import LoadedProblem
from solver.problem.request import ParsedRequest, Request, find_profile
from solver.problem.result import Answer
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.program.kinds import Flag, Word
from spec.settings.job import LOW_PRECISION, RECIPE, job_settings
from spec.settings.setting import keys_near, setting_text

AUTO = "auto"
PRECISION = "precision"
"""Stands for its named recipes."""
WITHOUT_EXPERTS = ("tensor_parallel.overlap", PRECISION)
WITH_EXPERTS = (*WITHOUT_EXPERTS, "overlap_expert_a2a", "overlap_shared_experts", "moe_dispatcher")
"""What --try auto tries: flags of a launch (--tp-comm-overlap, --fp8-recipe, --overlap-moe-expert-parallel-comm,
--moe-shared-expert-overlap, --moe-flex-dispatcher-backend of Megatron-LM, and what torchtitan has of them)."""

Values = Mapping[str, Any]


def tried_switches(text: str, parsed: ParsedRequest) -> tuple[Values, ...]:
    """Returns the settings to try for ``a,b`` or ``auto``, one after another: a flag turned, every other word of a
    choice, every low-precision recipe.

    Raises ConfigError for a key that is none of these.
    """
    names = [name.strip() for name in text.split(",")]
    if names == [AUTO]:
        has_experts = any(run.block.moe for run in parsed.config.model.blocks)
        names = list(WITH_EXPERTS if has_experts else WITHOUT_EXPERTS)
    settings = {key: one for key, one in job_settings().items() if isinstance(one.kind, Flag | Word)}
    result: list[Values] = []
    for name in names:
        if name in (PRECISION, RECIPE.key):
            result += [{RECIPE.key: recipe} for recipe in LOW_PRECISION]
            continue
        if name not in settings:
            allowed = (
                f"{AUTO}, {PRECISION}, or a setting of the job that is a flag or a choice: {keys_near(name, settings)}"
            )
            raise ConfigError(where="--try", key=name, value=None, allowed=allowed)
        kind, now = settings[name].kind, current_value(parsed.job, name)
        result += [{name: value} for value in (kind.words if isinstance(kind, Word) else (True, False)) if value != now]
    return tuple(result)


def current_value(job: JobSpec, key: str) -> object:
    """Returns the job's own value of a key; groups other than the precision's are the preset's."""
    group = job if "." not in key or key.startswith("precision.") else job.preset
    return reduce(getattr, key.split("."), group)


def words_of(values: Values) -> str:
    """Returns ``key=value,key=value``, as --job takes it."""
    return ",".join(f"{key}={setting_text(value)}" for key, value in values.items())


def try_switches(
    request: Request,
    parsed: ParsedRequest,
    inputs: LoadedProblem,
    switches: Sequence[Values],
    now: Answer,
    tick: Callable[[], object] = lambda: None,
) -> tuple[WhatIf, ...]:
    """Returns the best plan with each of the ``switches`` alone; then, where several make it faster than ``now``, with
    those together that each make it faster still, greatest gain first. ``tick`` is called after each."""
    file = parsed.file or find_profile(request)
    rows: list[tuple[Values, WhatIf]] = []
    for values in switches:
        one = best_under(words_of(values), _changed(request, values), file, inputs)
        # Recipes that the GPU has not are no answer to "precision".
        if one.answer is not None or RECIPE.key not in values:
            rows.append((values, one))
        tick()
    helping = [(one, values) for values, one in rows if one.answer and one.answer.step_s < now.step_s]
    if not helping:
        return tuple(row for _, row in rows)
    (best, together), *rest = sorted(helping, key=lambda row: _step_s(row[0]))
    for _, values in rest:
        # Of a choice one word alone.
        if not values.keys() & together.keys():
            several = {**together, **values}
            both = best_under(words_of(several), _changed(request, several), file, inputs)
            if _step_s(both) < _step_s(best):
                best, together = both, several
    combined = [] if any(best is row for _, row in rows) else [best]
    return (*(row for _, row in rows), *combined)


def _step_s(one: WhatIf) -> float:
    return inf if one.answer is None else one.answer.step_s


def _changed(request: Request, values: Values) -> Request:
    """Returns the request with these settings."""
    settings = dict(values)
    precision = settings.pop(RECIPE.key, request.precision)
    return replace(request, job={**request.job, **settings}, precision=precision)
