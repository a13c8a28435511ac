"""What a model config says: a model, and the parallel plan and job it was written with, if any."""

from dataclasses import dataclass, field

from spec.model import ModelSpec
from spec.settings.plan import WrittenPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenJob:
    """What a file says of its training job beside the plan; None where it does not."""

    overlap_sync_grad: bool | None = None
    overlap_sync_param: bool | None = None
    weight_overlap: bool | None = None
    reduce_bucket_size: int | None = None
    """Elements of one gradient bucket."""
    sequence_parallel: bool = False
    """The plan's strategy cuts the tokens between the linears."""
    use_flash_attn: bool | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """One config file. ``format`` is "internlm", "huggingface" or "toml"; ``seq_len`` is tokens per
    training sequence, None where the format does not hold one."""

    path: str
    format: str
    model: ModelSpec
    seq_len: int | None = None
    plan: WrittenPlan | None = None
    job: WrittenJob = field(default_factory=WrittenJob)
