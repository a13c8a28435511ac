"""The question that an operation of one rank puts to a cost model: shapes and words, never a price.

Collectives are not here: their groups follow from a plan's layout, which only a pricer knows.
"""

from dataclasses import replace

import numpy as np

from ops.op import (
    Attention,
    AttentionCall,
    BatchedGemm,
    GroupedGemm,
    GroupedProductCall,
    KernelCall,
    MemoryBound,
    Op,
    ProductCall,
    Update,
    declared,
)
from profdb.cost_model import CostModel
from profdb.lookup.priced import TimeEstimate
from profdb.lookup.queries import (
    AttentionQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
)
from spec.origin import Origin


def kernel_s(cost_model: CostModel, op: Op) -> TimeEstimate | None:
    """The cost model's times (seconds, one for each shape of ``op``) for work that a rank does alone; None for
    a collective. MissingCurveError as the cost model raises it."""
    match op:
        case BatchedGemm(dtype="tf32"):
            return _of_two(cost_model.linear_s(linear_query(replace(op, dtype="bf16"))))
        case BatchedGemm():
            return cost_model.linear_s(linear_query(op))
        case GroupedGemm():
            return cost_model.grouped_linear_s(grouped_query(op))
        case Attention():
            return cost_model.attention_s(attention_query(op))
        case MemoryBound():
            return cost_model.memory_bound_s(kernel_query(op))
        case Update():
            return cost_model.optimizer_s(OptimizerQuery(elements=op.elements))
        case _:
            return None


def _of_two(one: TimeEstimate) -> TimeEstimate:
    """A product in TF32 from ``one`` of 16 bits: half the rate (docs/clusters.md; the sheets' peaks, A100 156
    of 312 TFLOP/s, H100 494.7 of 989.4, B200 1,125 of 2,250) and twice the bytes. No profile has such
    products."""
    origin = np.where(one.origin < int(Origin.MODELLED), int(Origin.DERIVED), one.origin)
    return replace(one, seconds=2.0 * one.seconds, origin=origin)


def linear_query(op: BatchedGemm) -> LinearQuery:
    """A product's sizes, layout and type."""
    return LinearQuery(**declared(ProductCall, op), dtype=op.dtype)


def grouped_query(op: GroupedGemm) -> GroupedLinearQuery:
    """The experts' products, evenly spread."""
    return GroupedLinearQuery(**declared(GroupedProductCall, op), dtype=op.dtype)


def attention_query(op: Attention) -> AttentionQuery:
    """An attention call as it is."""
    return AttentionQuery(**declared(AttentionCall, op))


def kernel_query(op: MemoryBound) -> MemoryBoundQuery:
    """A memory-bound kernel by name, direction and size."""
    direction = "backward" if op.backward else "forward"
    return MemoryBoundQuery(**declared(KernelCall, op), direction=direction)
