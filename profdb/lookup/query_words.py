"""Which curve a query asks for: its family, and the words and flags by which that family's curves are told apart."""

from collections.abc import Iterable

import numpy as np

from ops.op import (
    AttentionCall,
    GroupedProductCall,
    KernelCall,
    ProductCall,
    flag_names,
    label_names,
    size_names,
)
from profdb.cases import Family
from profdb.fits.memory_bound import moves_bytes
from profdb.lookup.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
    Query,
)
from spec.arrays import BoolArray, IntArray
from spec.collectives import Collective
from spec.dtypes import canonical_dtype


def curve_of(query: Query) -> tuple[Family, dict[str, str]]:
    """The family and the words of a query's curve; TypeError for a query of no family."""
    match query:
        case LinearQuery():
            return Family.GEMM, _words(ProductCall, query) | {"dtype_in": canonical_dtype(query.dtype)}
        case GroupedLinearQuery():
            words = _words(GroupedProductCall, query)
            return Family.GROUPED_GEMM, words | {"dtype_in": canonical_dtype(query.dtype)}
        case AttentionQuery():
            return Family.ATTENTION, _words(AttentionCall, query) | {"dtype": canonical_dtype(query.dtype)}
        case MemoryBoundQuery():
            words = _words(KernelCall, query) | {"direction": query.direction}
            return Family.MEMORY_BOUND, words | {"dtype": canonical_dtype(query.dtype)}
        case CollectiveQuery():
            return Family.COLLECTIVE, {"collective": str(query.collective)}
        case P2PQuery():
            return Family.COLLECTIVE, {"collective": str(Collective.P2P)}
        case OptimizerQuery():
            return Family.OPTIMIZER, {
                "kernel": query.kernel,
                "parameter_dtype": canonical_dtype(query.parameter_dtype),
                "gradient_dtype": canonical_dtype(query.gradient_dtype),
            }
    raise TypeError(f"no curves answer a {type(query).__name__}")


def busy_rows(query: Query) -> BoolArray:
    """Where there is something to do: no size is 0, a group has two ranks, a kernel moves bytes."""
    columns = query.columns()
    match query:
        case LinearQuery():
            return _positive(columns[name] for name in size_names(ProductCall))
        case GroupedLinearQuery():
            return _positive(columns[name] for name in size_names(GroupedProductCall))
        case AttentionQuery():
            return _positive(columns[name] for name in size_names(AttentionCall))
        case MemoryBoundQuery():
            moves = moves_bytes(query.kernel, query.direction, canonical_dtype(query.dtype))
            return _positive(columns[name] for name in size_names(KernelCall)) & moves
        case CollectiveQuery() | P2PQuery():
            several = columns["intra"] * columns["inter"] > 1
            return np.asarray((columns["size_bytes"] > 0) & several, dtype=np.bool_)
    return _positive(columns.values())


def _words(call: type, query: Query) -> dict[str, str]:
    """The words and flags that a call is declared with, as curves are keyed by them."""
    labels = {name: str(getattr(query, name)) for name in label_names(call)}
    return labels | {name: str(int(getattr(query, name))) for name in flag_names(call)}


def _positive(columns: Iterable[IntArray]) -> BoolArray:
    return np.asarray(np.all([column > 0 for column in columns], axis=0), dtype=np.bool_)
