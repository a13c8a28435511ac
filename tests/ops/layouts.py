"""Contexts for tests of the operations."""

from ops.block import ModelOps, model_ops
from ops.context import LayerContext
from ops.data_parallel.step import RankParameters, step_ops
from ops.layout import Layout
from ops.op import Ops, Pass
from ops.recompute import Recompute
from spec.arrays import bools
from spec.frameworks import FrameworkPreset, framework_preset
from spec.job import JobSpec, precision_of
from spec.model import ModelSpec
from tests.solver.questions import small_model

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


def step_on(asked: JobSpec, layout: Layout, dense: int, *, expert: int = 0, mirrored: bool = False) -> Ops:
    """The operations of the step of a rank with so many elements in every row of the layout."""
    none = layout.constant(0)
    on_rank = RankParameters(dense=none + dense, weight=none, expert=none + expert)
    return step_ops(
        LayerContext(model=small_model(), job=asked, layout=layout), on_rank, bools(none), mirrored=mirrored
    )


def saved_bytes(piece: Pass) -> float:
    """Bytes that the first row of a layer, embedding or head keeps for its backward."""
    return float(sum(op.saved_bytes[0] for op in piece.forward))


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
