"""The layers of a plan table: one row for all plans whose layers are the same."""

from dataclasses import dataclass, replace

import numpy as np

from ops.block import BareOps, ModelOps
from ops.host_work.forward_hooks import runs_hooks
from ops.layout import Layout, unique_rows
from ops.op import Piece
from ops.recompute.layers import Recompute
from solver.layers.layer_bytes import LayerBytes
from solver.layers.written_layers import Again, WrittenLayers
from solver.plans.plan_table import PlanTable
from spec.arrays import IntArray
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DistinctLayers:
    """The layers of a plan table, ``written`` down once per distinct layer layout.

    ``row[i]`` is the layer row of plan i; ``again`` are the recompute mode, the modules that run again and those on the host.
    """

    written: WrittenLayers
    row: IntArray
    again: Again

    @property
    def layout(self) -> Layout:
        """One row per distinct layout."""
        return self.written.layout

    @property
    def bare(self) -> BareOps:
        """The operations before any of them runs again."""
        return self.written.bare

    @property
    def ops(self) -> ModelOps:
        """All operations."""
        return self.written.ops(self.again)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Every block kind, then the embedding, then the head."""
        return (*self.ops.blocks, self.ops.embedding, self.ops.head)

    @property
    def bytes(self) -> list[LayerBytes]:
        """Of every piece; runs of equal blocks share one."""
        return self.written.bytes(self.again)

    def of_plans(self, rows: IntArray) -> "DistinctLayers":
        """Of these plans alone, though layouts may be left that none of them has."""
        return replace(self, row=self.row[rows])

    def running_again(self, recompute: Recompute, modules: tuple[str, ...] = ()) -> "DistinctLayers":
        """Under another recompute mode, or with other ``modules`` run again."""
        return replace(self, again=self.again._replace(mode=recompute, modules=modules))


def distinct_layers(
    model: ModelSpec, job: JobSpec, plans: PlanTable, like: DistinctLayers | None = None
) -> DistinctLayers:
    """The layers of the plans; those of ``like`` where these have all the plans' layouts under the same strategy."""
    if like is not None and like.written.sharding is plans.sharding:
        row = rows_among(job, like.layout, plans.layout)
        if row is not None and (row >= 0).all():
            return replace(like, row=row, again=again_of(plans))
    first, row = unique_rows(layer_keys(job, plans.layout))
    written = WrittenLayers(model, job, plans.layout.take(first), plans.strategy)
    return DistinctLayers(written=written, row=row, again=again_of(plans))


def again_of(plans: PlanTable) -> Again:
    """What the plans run again, and what of layers waits on the host."""
    return Again(plans.recompute, plans.recompute_modules, plans.offload_modules)


def rows_among(job: JobSpec, held: Layout, asked: Layout) -> IntArray | None:
    """Which row of ``held``, all distinct, has the layers of each row asked for, -1 where none has; None for
    another world.
    """
    if held.world_size != asked.world_size:
        return None
    both = zip(layer_keys(job, held), layer_keys(job, asked), strict=True)
    first, inverse = unique_rows(tuple(np.concatenate(one) for one in both))
    row = first[inverse[len(held) :]]
    return np.where(row < len(held), row, -1).astype(np.int64)


def layer_keys(job: JobSpec, layout: Layout) -> tuple[IntArray, ...]:
    """What layers of equal layouts have in common.

    Only tp, cp, ep, etp, wp, the micro-batch, what is sharded from stage 2 on and which layers are offloaded
    change what a layer runs and where; a tied head owns weights only where pp > 1, and the host calls hooks of
    gathers where the optimizer is sharded. Of weights that are cast once a step a micro-batch has a share that
    depends on dp (ops.quantize)."""
    several = (layout.pp > 1).astype(np.int64)
    stage = np.where((layout.zero_stage >= 2) | runs_hooks(job), layout.zero_stage, 0)
    groups = np.where(layout.zero_stage >= 2, layout.zero_size * (layout.world_size + 1) + layout.dp, 0)
    sizes = (layout.tp, layout.cp, layout.ep, layout.etp, layout.wp, layout.micro_batch)
    copies = layout.dp if job.precision.casts_once_a_step else layout.constant(0)
    return (*sizes, several, stage, groups, layout.offloaded_layers, copies)
