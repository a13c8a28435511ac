"""The settings of a training job: every switch that a formula reads, by the key under which a user sets it.

Keys are the fields of JobSpec, of its Precision (``precision.gradient``) and of the framework preset's groups
(``tensor_parallel.overlap``); ``precision.recipe`` names what the other formats start from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from typing import Any

from spec.cluster.cluster import ArchitectureSpec
from spec.errors import ConfigError
from spec.frameworks import FrameworkPreset, framework_preset
from spec.job import HighPrecision, JobSpec, Precision, precision_of
from spec.program.kinds import Word
from spec.settings.setting import Setting, Settings, keys_near, settings_of

# Named precisions: how the products of linear layers run in low precision, as in the libraries that do so.
#
# Parameters, activations and optimizer state keep their formats; only the operands of the linears' products, their
# scales and the casts before them change, and, where a framework's own recipes say so (``data_parallel.low_precision_weights``,
# ``casts_shards``), the format in which weights are stored and gathered. Sources, read 2026-11:
#
# - fp8-tensor, fp8-rowwise: torchao ``float8/config.py``, recipes "tensorwise" and "rowwise" (scales of the tensor at
#   hand; inputs and weights saved in 16 bits and cast again in the backward).
# - fp8-current, fp8-delayed: Transformer Engine ``common/recipe``, Float8CurrentScaling and DelayedScaling (Megatron-Core
#   --fp8-recipe tensorwise and delayed).
# - fp8-blockwise: DeepSeek-V3, arXiv 2412.19437 sec. 3.3.2, 1 x 128 of activations and 128 x 128 of weights;
#   Transformer Engine's Float8BlockScaling (--fp8-recipe blockwise).
# - mxfp8, nvfp4: Transformer Engine, MXFP8BlockScaling and NVFP4BlockScaling (scales of 32 and of 16 numbers). Where a framework's
#   MXFP8 is torchao's (``layers.recasts_operands``; ``prototype/mx_formats/mx_linear.py``, mx_mm), it casts as torchao does.
HIGH_PRECISION: tuple[HighPrecision, ...] = ("bf16", "fp16")
LOW_PRECISION: Mapping[str, Mapping[str, Any]] = {
    "fp8-tensor": {"linear": "fp8", "scale_recipe": "tensor", "scaling": "dynamic", "casts_every_forward": True},
    "fp8-current": {"linear": "fp8", "scale_recipe": "tensor", "scaling": "current"},
    "fp8-delayed": {"linear": "fp8", "scale_recipe": "tensor", "scaling": "delayed"},
    "fp8-rowwise": {"linear": "fp8", "scale_recipe": "row", "scaling": "row", "casts_every_forward": True},
    "fp8-blockwise": {"linear": "fp8", "scale_recipe": "block", "scaling": "block"},
    "mxfp8": {"linear": "fp8", "scale_recipe": "mx", "scaling": "block"},
    "nvfp4": {"linear": "fp4", "scale_recipe": "block", "scaling": "block"},
}
PRECISIONS: tuple[str, ...] = (*HIGH_PRECISION, *LOW_PRECISION)


def recipe_precision(name: str, preset: FrameworkPreset) -> Precision:
    """Returns the precision of that name (one of PRECISIONS) as the framework trains with it."""
    for compute in HIGH_PRECISION:
        if name == compute:
            return precision_of(preset, compute)
    recipe, choices = dict(LOW_PRECISION[name]), preset.data_parallel
    scales = recipe["scale_recipe"]
    # Some frameworks store weights in the format of the products, and gather what they store; others cast shards first.
    recipe["low_precision_parameters"] = scales in choices.low_precision_weights
    if scales == "tensor" and (recipe["low_precision_parameters"] or choices.casts_shards):
        recipe["parameter_gather"] = recipe["linear"]
    if scales == "mx" and preset.layers.recasts_operands:
        recipe |= {"scaling": "dynamic", "casts_every_forward": True}
    return replace(precision_of(preset), **recipe)


DEFAULT_FRAMEWORK = "megatron"
RECIPE = Setting(
    key="precision.recipe",
    kind=Word(PRECISIONS),
    words="The named precision that the formats below start from (--precision).",
    default="bf16",
)


@cache
def job_settings() -> Settings:
    """Returns every key of a job."""
    result = {key.removeprefix("preset."): one for key, one in settings_of(JobSpec).items()}
    return {RECIPE.key: RECIPE} | {key: replace(one, key=key) for key, one in result.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A requested job: sizes, the framework whose preset is the default, and values of the job's settings by key.
    ``where`` names their origin in errors."""

    world_size: int
    seq_len: int
    global_batch_tokens: int
    framework: str = DEFAULT_FRAMEWORK
    settings: Mapping[str, object] = field(default_factory=dict)
    where: str = "--job"


def job_of(request: JobRequest, architecture: ArchitectureSpec | None = None) -> JobSpec:
    """Returns the job: the framework's preset with the requested choices, its named precision on GPUs of the
    ``architecture``, and then the requested formats and other settings.

    Raises ConfigError for an unknown framework or key or a value that a key does not take.
    """
    table = job_settings()
    values: dict[str, Any] = {}
    for key, value in request.settings.items():
        if key not in table:
            allowed = f"a key of {keys_near(key, table)}"
            raise ConfigError(where=request.where, key=key, value=value, allowed=allowed)
        values[key] = table[key].accept(value, request.where)
    preset = framework_preset(request.framework)
    recipe = values.pop(RECIPE.key, RECIPE.default)
    groups = {key for key in values if "." in key and not key.startswith("precision.")}
    preset = preset.changed({key: values.pop(key) for key in sorted(groups)})
    formats = {key.removeprefix("precision."): values.pop(key) for key in list(values) if key.startswith("precision.")}
    job = JobSpec(
        world_size=request.world_size,
        seq_len=request.seq_len,
        global_batch_tokens=request.global_batch_tokens,
        preset=preset,
        precision=recipe_precision(recipe, preset),
        **values,
    )
    job = job.on(architecture) if architecture is not None else job
    return replace(job, precision=replace(job.precision, **formats))


def non_default_settings(
    job: JobSpec, architecture: ArchitectureSpec | None = None, *, recipe: str = "bf16"
) -> dict[str, object]:
    """Returns the settings by which a job on GPUs of the ``architecture`` differs from its framework's default job in the
    named precision ``recipe``, by key."""
    default = JobRequest(
        world_size=job.world_size,
        seq_len=job.seq_len,
        global_batch_tokens=job.global_batch_tokens,
        framework=job.preset.name,
        settings={RECIPE.key: recipe},
    )
    return differing_settings(job, job_of(default, architecture))


def differing_settings(job: JobSpec, other: JobSpec) -> dict[str, object]:
    """Returns the settings by which a job differs from another of the same framework, by key."""
    result: dict[str, object] = {}
    for key in job_settings():
        if key == RECIPE.key:
            continue
        # The groups of a framework's preset are keys by themselves (job_settings).
        value_of = attrgetter(f"preset.{key}" if "." in key and not key.startswith("precision.") else key)
        if value_of(job) != value_of(other):
            result[key] = value_of(job)
    return result
