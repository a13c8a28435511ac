"""The content of a model config: a model, and the parallel plan and job in it, if any."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spec.model import ModelSpec
from spec.settings.plan import PlanSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """One config file. ``format`` is "internlm", "huggingface" or "toml"; ``seq_len`` is tokens per
    training sequence, None where the format does not hold one; ``max_seq_len`` the most that the model is made for, None
    where the file does not say."""

    path: str
    format: str
    model: ModelSpec
    seq_len: int | None = None
    max_seq_len: int | None = None
    plan: PlanSettings | None = None
    framework: str | None = None
    """The framework preset that the file is written for."""
    job: Mapping[str, object] = field(default_factory=dict)
    """Settings of the job (spec.settings.job) by key."""
    framework_job: Mapping[str, object] = field(default_factory=dict)
    """Settings of the job in terms of ``framework``, which do not apply to another one."""
    constraints: Mapping[str, object] = field(default_factory=dict)
    """Constraints on plans (spec.settings.constraints)."""
    sequence_parallel: bool = False
    """The file requests that the plan's strategy splits the tokens between the linears."""
