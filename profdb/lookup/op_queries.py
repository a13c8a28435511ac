"""The question that an operation of one rank puts to a book of times: shapes and words, never a price.

Collectives are not here: their groups follow from a plan's layout, which only a pricer knows.
"""

from dataclasses import replace

import numpy as np

from ops.calls import AttentionCall, GroupedProductCall, KernelCall, ProductCall, declared
from ops.op import Attention, BatchedGemm, GroupedGemm, MemoryBound, Op, Update
from profdb.curvebook import Book
from profdb.lookup.priced import Priced
from profdb.lookup.queries import (
    AttentionQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
)
from spec.origin import Origin


def own_s(book: Book, op: Op) -> Priced | None:
    """The book's times (seconds, one for each shape of ``op``) for work that a rank does alone; None for
    a collective. MissingCurveError as the book raises it."""
    match op:
        case BatchedGemm(dtype="tf32"):
            return _of_two(book.linear_s(linear_query(replace(op, dtype="bf16"))))
        case BatchedGemm():
            return book.linear_s(linear_query(op))
        case GroupedGemm():
            return book.grouped_linear_s(grouped_query(op))
        case Attention():
            return book.attention_s(attention_query(op))
        case MemoryBound():
            return book.memory_bound_s(kernel_query(op))
        case Update():
            return book.optimizer_s(OptimizerQuery(elements=op.elements))
        case _:
            return None


def _of_two(one: Priced) -> Priced:
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
