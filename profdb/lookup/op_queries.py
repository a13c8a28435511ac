"""The question that an operation of one rank puts to a book of times: shapes and words, never a price.

Collectives are not here: their groups follow from a plan's layout, which only a pricer knows.
"""

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
    return LinearQuery(
        batch=op.batch,
        m=op.m,
        k=op.k,
        n=op.n,
        layout=op.layout,
        dtype=op.dtype,
        scale_recipe=op.scale_recipe,
        bias=op.bias,
    )


def grouped_query(op: GroupedGemm) -> GroupedLinearQuery:
    """The experts' products, evenly spread."""
    return GroupedLinearQuery(
        groups=op.groups,
        m=op.m,
        k=op.k,
        n=op.n,
        layout=op.layout,
        dtype=op.dtype,
        scale_recipe=op.scale_recipe,
    )


def attention_query(op: Attention) -> AttentionQuery:
    """An attention call's sizes, mask, direction, kernel and type."""
    return AttentionQuery(
        batch=op.batch,
        q_len=op.q_len,
        kv_len=op.kv_len,
        heads=op.heads,
        kv_heads=op.kv_heads,
        qk_dim=op.qk_dim,
        v_dim=op.v_dim,
        mask=op.mask,
        window=op.window,
        direction=op.direction,
        kernel=op.kernel,
        dtype=op.dtype,
    )


def kernel_query(op: MemoryBound) -> MemoryBoundQuery:
    """A memory-bound kernel by name, direction and size."""
    return MemoryBoundQuery(
        kernel=op.kernel,
        direction="backward" if op.backward else "forward",
        rows=op.rows,
        width=op.width,
        dtype=op.dtype,
    )
