"""The questions a cost model answers: one frozen query per family, vectorised over numbers.

What an operation asks for is declared in ops.op; these are its array views, open to plain numbers. Numeric
fields take a number or a 1-D array; after construction each is a 1-D int64 array of the common length N
(``columns()`` gives them typed so). Words (layout, dtype, kernel, ...) are one per query: they choose the
curve, the numbers choose the point on it.
"""

from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from ops.op import AttentionCall, Count, GroupedProductCall, KernelCall, ProductCall
from spec.arrays import IntArray, ints
from spec.collectives import Collective
from spec.errors import ConfigError

IntLike = int | IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What all queries share: broadcasting, length, and the typed columns."""

    def __post_init__(self) -> None:
        """Broadcast the numeric fields; ConfigError for a length mismatch or a negative number."""
        arrays = {name: ints(getattr(self, name)) for name in self.numeric_names()}
        lengths = {len(array) for array in arrays.values()}
        size = max(lengths - {1}, default=1)
        if lengths - {1, size}:
            shapes = ", ".join(f"{name} {array.shape[0]}" for name, array in arrays.items())
            raise ConfigError(
                where=type(self).__name__,
                key="array lengths",
                value=shapes,
                allowed="every numeric field has length 1 or one common length",
            )
        for name, array in arrays.items():
            if array.size and int(array.min()) < 0:
                raise ConfigError(
                    where=type(self).__name__, key=name, value=int(array.min()), allowed="0 or more"
                )
            object.__setattr__(self, name, array if len(array) == size else np.broadcast_to(array, (size,)))

    @classmethod
    def numeric_names(cls) -> tuple[str, ...]:
        """Names of the numeric fields, in order of declaration."""
        own: type = cls
        return _names(own)[0]

    @classmethod
    def word_names(cls) -> tuple[str, ...]:
        """Names of the other fields, in order of declaration."""
        own: type = cls
        return _names(own)[1]

    def columns(self) -> dict[str, IntArray]:
        """Numeric fields by name, each a 1-D int64 array of length ``size``."""
        # Arrays since __post_init__, whatever they were given as.
        return {name: getattr(self, name) for name in self.numeric_names()}

    @property
    def size(self) -> int:
        """How many shapes are asked for (N)."""
        return len(getattr(self, self.numeric_names()[0]))


@cache
def _names(query: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The numeric fields of a query, and the others."""
    numeric = tuple(field.name for field in fields(query) if field.type in (Count, IntLike))
    return numeric, tuple(field.name for field in fields(query) if field.name not in numeric)


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
