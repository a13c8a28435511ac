"""What a model config says: a model, and the parallel plan it was written with, if any."""

from dataclasses import dataclass

from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPlan:
    """The plan as the file writes it; None means that the file does not say.

    ``strategy`` is mtp, msp, fsp or isp; ``tp``, ``pp``, ``cp``, ``vpp``, ``ep``, ``etp`` and ``wp``
    are ranks (``ep`` 0: as many as experts and data-parallel ranks allow); ``zero_size`` ranks share
    one set of optimizer states (0: the whole data-parallel group); ``micro_batch`` is sequences per
    micro-batch and ``num_micro`` micro-batches per step; ``recompute`` is "none", "selective" or "full",
    of ``recompute_layers`` layers of every chunk of a stage where that is said, and ``recompute_modules``
    (JobSpec) beside it; ``schedule`` is a name of
    solver.schedules.registry.
    ``reduce_bucket_size`` counts elements of one gradient bucket. ``prefetch`` is the unit of weight
    prefetch ("module" or "layer"); ``preset`` names the framework preset that runs the plan;
    ``optimizer_offload`` and ``offloaded_layers`` as in JobSpec;
    ``stage_layout`` says what each stage holds (spec.pipeline_layout), "" that layers are dealt evenly.
    """

    strategy: str | None = None
    tp: int | None = None
    pp: int | None = None
    wp: int | None = None
    cp: int = 1
    vpp: int = 1
    ep: int | None = None
    etp: int | None = None
    zero_stage: int | None = None
    zero_size: int | None = None
    micro_batch: int | None = None
    num_micro: int | None = None
    recompute: str | None = None
    recompute_layers: int | None = None
    recompute_modules: tuple[str, ...] = ()
    schedule: str | None = None
    overlap_sync_grad: bool | None = None
    overlap_sync_param: bool | None = None
    reduce_bucket_size: int | None = None
    weight_overlap: bool | None = None
    memory_pool: bool | None = None
    prefetch: str | None = None
    use_flash_attn: bool | None = None
    dtype: str | None = None
    preset: str | None = None
    stage_layout: str = ""
    optimizer_offload: float = 0.0
    offloaded_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """One config file. ``format`` is "internlm", "huggingface" or "toml"; ``seq_len`` is tokens per
    training sequence, None where the format does not hold one."""

    path: str
    format: str
    model: ModelSpec
    seq_len: int | None = None
    plan: WrittenPlan | None = None
