"""Activations that a stage holds where a micro-batch turns and passes it twice, or two copies of the model pass it."""

import numpy as np

from solver.layers.layer_bytes import LayerBytes
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray


def turning_bytes(
    plans: PlanTable, stages: StageTable, kinds: list[LayerBytes], layer_row: IntArray
) -> FloatArray:
    """Bytes of layers and embedding of every stage row at its peak. With P virtual stages and v before it a chunk
    holds P - v micro-batches, as the stages of 1F1B do: P + 1 over both chunks (arXiv 2412.19437 table 2)."""
    route, chunks = plans.schedule.route, stages.chunks
    plan = stages.plan[chunks.stage]
    row = layer_row[plan]
    pp, vpp = plans.layout.pp[plan], plans.vpp[plan]
    number = np.arange(len(plan)) - stages.chunk_starts[chunks.stage]
    place = route.place(stages.position[chunks.stage], number, pp, vpp)
    held = np.minimum(pp * vpp - place, plans.num_micro[plan] // route.ways)
    blocks = len(chunks.layers)
    saved = kinds[blocks].saved_bytes[row] * chunks.embedding
    for kind, layers in zip(kinds, chunks.layers, strict=False):
        saved = saved + kind.saved_bytes[row] * layers
    total: FloatArray = np.add.reduceat(saved * held, stages.chunk_starts)
    return total
