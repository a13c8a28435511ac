"""Contexts for tests of the operations."""

from ops.block import ModelOps, model_ops
from ops.layout import Layout
from ops.recompute import Recompute
from spec.frameworks import FrameworkPreset, framework_preset
from spec.job import JobSpec, precision_of
from spec.model import ModelSpec

MEGATRON = framework_preset("megatron")


def job(*, seq_len: int = 2048, world_size: int = 8, preset: FrameworkPreset = MEGATRON, **changes: object) -> JobSpec:
    """A job of one sequence per rank unless said."""
    return JobSpec(
        world_size=world_size,
        seq_len=seq_len,
        global_batch_tokens=seq_len * world_size,
        preset=preset,
        precision=precision_of(preset),
        **changes,
    )


def written(
    model: ModelSpec,
    asked: JobSpec,
    strategy: str,
    layout: Layout,
    recompute: str = "none",
    modules: tuple[str, ...] = (),
) -> ModelOps:
    """The operations of one rank."""
    return model_ops(model, asked, layout, strategy, Recompute(recompute), modules)
