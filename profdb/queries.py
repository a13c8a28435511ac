"""Queries to a cost model, one frozen class per family, and its answer: times with their error and origin.

The fields of a query are those of a call in ops.op, as arrays. A numeric field takes a number or a 1-D array; after
construction each is a 1-D int64 array of the common length N, which ``columns()`` returns. Labels (layout, dtype,
kernel, ...) are one per query: they select the curve, and the numbers select the point on it.
"""

from dataclasses import dataclass, field, fields
from functools import cache
from typing import NamedTuple

import numpy as np

from ops.op import AttentionCall, Count, GroupedProductCall, KernelCall, ProductCall
from profdb.cases import Family
from profdb.fits.families import bytes_per_element
from spec.arrays import BoolArray, FloatArray, IntArray, ints
from spec.collectives import Collective
from spec.dtypes import canonical_dtype
from spec.errors import ConfigError

IntLike = int | IntArray

NOTHING_CARRIED: FloatArray = np.zeros(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """``seconds``, ``relative_std`` (standard error / seconds) and ``origin`` (values of spec.origin.Origin), each a
    1-D array, one element per shape. ``carried_std`` is the error of constants that were measured on another GPU or
    shape: all times that rest on such a constant err together."""

    seconds: FloatArray
    relative_std: FloatArray
    origin: IntArray
    carried_std: FloatArray = field(default_factory=NOTHING_CARRIED.copy)

    def where(self, chosen: BoolArray, other: "TimeEstimate") -> "TimeEstimate":
        """Returns these times where ``chosen``, those of ``other`` elsewhere; all of one length."""
        return TimeEstimate(
            seconds=np.where(chosen, self.seconds, other.seconds),
            relative_std=np.where(chosen, self.relative_std, other.relative_std),
            origin=np.where(chosen, self.origin, other.origin),
            carried_std=np.where(chosen, self.carried_std, other.carried_std),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Base class of the queries: broadcasting, length, and the typed columns."""

    def __post_init__(self) -> None:
        """Broadcasts the numeric fields; raises ConfigError for a length mismatch or a negative number."""
        kind: type = type(self)
        arrays: dict[str, IntArray] = {}
        size = 1
        for name in names_of(kind).numbers:
            # The common length is that of the first field whose length is not 1; others must match it or have length
            # 1.
            array = arrays[name] = ints(getattr(self, name))
            if len(array) not in (1, size) and size != 1:
                shapes = ", ".join(f"{name} {len(ints(getattr(self, name)))}" for name in names_of(kind).numbers)
                raise ConfigError(
                    where=type(self).__name__,
                    key="array lengths",
                    value=shapes,
                    allowed="every numeric field has length 1 or one common length",
                )
            size = len(array) if len(array) != 1 else size
        for name, array in arrays.items():
            if array.size and int(array.min()) < 0:
                raise ConfigError(where=type(self).__name__, key=name, value=int(array.min()), allowed="0 or more")
            object.__setattr__(self, name, array if len(array) == size else np.broadcast_to(array, (size,)))

    def columns(self) -> dict[str, IntArray]:
        """Returns the numeric fields by name, each a 1-D int64 array of length ``size``."""
        # Arrays since __post_init__, whatever they were given as.
        kind: type = type(self)
        columns: dict[str, IntArray] = {}
        for name in names_of(kind).numbers:
            columns[name] = getattr(self, name)
        return columns

    @property
    def size(self) -> int:
        """Returns the number of shapes in the query (N)."""
        kind: type = type(self)
        return len(getattr(self, names_of(kind).numbers[0]))


class Names(NamedTuple):
    """Field names of a query class, in order of declaration. ``sizes`` are the numbers whose default is not 0: such a
    number is never 0 in a call that does something. ``words`` are the labels."""

    numbers: tuple[str, ...]
    sizes: tuple[str, ...]
    words: tuple[str, ...]


@cache
def names_of(query: type) -> Names:
    """Returns the names of a query's fields."""
    numbers = tuple(one.name for one in fields(query) if one.type in (Count, IntLike))
    return Names(
        numbers=numbers,
        sizes=tuple(one.name for one in fields(query) if one.name in numbers and one.default != 0),
        words=tuple(one.name for one in fields(query) if one.name not in numbers),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearQuery(Query, ProductCall[IntLike]):
    """Equal matrix products."""

    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedLinearQuery(Query, GroupedProductCall[IntLike]):
    """Products of experts, their rows evenly spread."""

    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery(Query, AttentionCall[IntLike]):
    """Attention calls, forward or backward alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBoundQuery(Query, KernelCall[IntLike]):
    """A memory-bound kernel, forward or backward."""

    direction: str = "forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveQuery(Query):
    """One collective of ``size_bytes`` (whole array on one rank, spec.collectives) over groups of
    ``intra`` ranks in each of ``inter`` scale-up domains, ``siblings`` such groups per domain at once.

    On clusters of three domains also ``outer_intra`` ranks of the group in one second domain and
    ``outer_siblings`` groups there; 0 where there are two."""

    collective: Collective
    size_bytes: IntLike
    intra: IntLike
    inter: IntLike
    siblings: IntLike = 1
    outer_intra: IntLike = 0
    outer_siblings: IntLike = 0
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PQuery(Query):
    """One message between two ranks: intra=2, inter=1 inside a domain; intra=1, inter=2 between two;
    ``outer_intra`` and ``outer_siblings`` as in CollectiveQuery."""

    size_bytes: IntLike
    intra: IntLike
    inter: IntLike
    siblings: IntLike = 1
    outer_intra: IntLike = 0
    outer_siblings: IntLike = 0
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerQuery(Query):
    """One AdamW step over ``elements`` parameters held in ``tensors`` pieces."""

    elements: IntLike
    tensors: IntLike = 1
    kernel: str = "adamw"
    parameter_dtype: str = "fp32"
    gradient_dtype: str = "fp32"


FAMILY_OF: dict[type, Family] = {
    LinearQuery: Family.GEMM,
    GroupedLinearQuery: Family.GROUPED_GEMM,
    AttentionQuery: Family.ATTENTION,
    MemoryBoundQuery: Family.MEMORY_BOUND,
    CollectiveQuery: Family.COLLECTIVE,
    P2PQuery: Family.COLLECTIVE,
    OptimizerQuery: Family.OPTIMIZER,
}


def curve_of(query: Query) -> tuple[Family, dict[str, str]]:
    """Returns the family of a query and the labels and flags that select its curve; raises TypeError for a query of
    no family."""
    kind: type = type(query)
    family = FAMILY_OF.get(kind)
    if family is None:
        raise TypeError(f"no curves answer a {type(query).__name__}")
    # A collective's bytes determine its time, so neither dtype nor group is a label: groups are points of one curve.
    if family is Family.COLLECTIVE:
        return family, {"collective": str(getattr(query, "collective", Collective.P2P))}
    labels: dict[str, str] = {}
    for name in names_of(kind).words:
        word = getattr(query, name)
        if name.endswith("dtype"):
            word = canonical_dtype(word)
        # A product's case has three formats; the one of its operands is the label of its curves. Flags become "0" or
        # "1".
        product = name == "dtype" and family in (Family.GEMM, Family.GROUPED_GEMM)
        labels["dtype_in" if product else name] = str(int(word) if isinstance(word, bool) else word)
    return family, labels


def busy_rows(query: Query) -> BoolArray:
    """Returns a mask of the shapes that take time: no size is 0, the group has two ranks or more, the kernel moves
    bytes."""
    columns = query.columns()
    if isinstance(query, CollectiveQuery | P2PQuery):
        several = columns["intra"] * columns["inter"] > 1
        return np.asarray((columns["size_bytes"] > 0) & several, dtype=np.bool_)
    busy: BoolArray = np.ones(len(next(iter(columns.values()))), dtype=np.bool_)
    kind: type = type(query)
    for name in names_of(kind).sizes:
        busy &= columns[name] > 0
    if isinstance(query, MemoryBoundQuery):
        busy &= bytes_per_element(query.kernel, query.direction, canonical_dtype(query.dtype)) > 0.0
    return busy
