"""The question that an operation of one rank puts to a book of times: shapes and words, never a price.

Collectives are not here: their groups follow from a plan's layout, which only a pricer knows.
"""

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


def own_s(book: Book, op: Op) -> Priced | None:
    """The book's times (seconds, one for each shape of ``op``) for work that a rank does alone; None for
    a collective. MissingCurveError as the book raises it."""
    match op:
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
