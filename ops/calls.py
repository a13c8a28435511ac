"""What a device is asked for: the sizes and words of a product, experts' products, attention, a kernel.

Each is declared once, and seen in two ways. The array view holds a number for each of N plans or shapes:
operations (ops.op) and questions to a cost model (profdb.lookup.queries). The scalar view holds one
number: benchmark cases (profdb.cases). A view names what numbers are in it, ``AttentionCall[IntArray]`` or
``AttentionCall[int]``, and adds what only it has. A field that is written here is in all of them.

The numbers are the fields of type Count. A number may be 0 only where 0 is its default; the others are
sizes, and a call with one of 0 does nothing.
"""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Generic, TypeVar

Count = TypeVar("Count")
"""What a view holds for a number."""

BLOCK_SCALES = frozenset({"block", "mx"})
"""Recipes (``scale_recipe``) whose scales belong to blocks of a row."""

# Defaults, which every view holds as its own kind of number (arrays broadcast with them).
ZERO: Any = 0
ONE: Any = 1


@dataclass(frozen=True, kw_only=True)
class ProductCall(Generic[Count]):
    """C[m, n] = A[m, k] B[k, n], ``batch`` times.

    ``layout`` as BLAS: NN (B as k x n), NT (B as n x k, a torch Linear forward), TN (A as k x m, a
    weight gradient). A Linear of in_features i and out_features o on t tokens is: forward
    NT (m=t, k=i, n=o); input_grad NN (m=t, k=o, n=i); weight_grad TN (m=o, k=t, n=i).
    ``scale_recipe`` names the fp8 scaling ("" for none, "tensor", "row", "block", "mx": profiler.benchmarks.fp8).
    """

    __slots__ = ()  # the views hold the values

    batch: Count = ONE
    m: Count
    k: Count
    n: Count
    layout: str = "NT"
    scale_recipe: str = ""
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class GroupedProductCall(Generic[Count]):
    """``groups`` products of one (k, n) over ``m`` rows in total; words as in ProductCall."""

    __slots__ = ()

    groups: Count
    m: Count
    k: Count
    n: Count
    layout: str = "NT"
    scale_recipe: str = ""


@dataclass(frozen=True, kw_only=True)
class AttentionCall(Generic[Count]):
    """Scaled dot-product attention. ``mask``: causal, full, window, varlen (causal, packed).

    ``direction``: forward or backward (backward alone, without the forward). ``window`` counts keys
    for mask "window", else 0.
    """

    __slots__ = ()

    batch: Count = ONE
    q_len: Count
    kv_len: Count
    heads: Count
    kv_heads: Count
    qk_dim: Count
    v_dim: Count
    mask: str = "causal"
    window: Count = ZERO
    direction: str = "forward"
    kernel: str = "flash"
    dtype: str = "bf16"


@dataclass(frozen=True, kw_only=True)
class KernelCall(Generic[Count]):
    """A memory-bound kernel of ops.kernels over rows x width elements."""

    __slots__ = ()

    kernel: str
    rows: Count
    width: Count
    dtype: str = "bf16"


@cache
def number_names(call: type) -> tuple[str, ...]:
    """The numbers of a declaration, in order."""
    return tuple(field.name for field in fields(call) if field.type is Count)


@cache
def size_names(call: type) -> tuple[str, ...]:
    """The numbers that are never 0 in a call that does something."""
    return tuple(field.name for field in fields(call) if field.type is Count and field.default != 0)


@cache
def label_names(call: type) -> tuple[str, ...]:
    """The words of a declaration, in order."""
    return tuple(field.name for field in fields(call) if field.type is str)


@cache
def flag_names(call: type) -> tuple[str, ...]:
    """The flags of a declaration, in order."""
    return tuple(field.name for field in fields(call) if field.type is bool)


def declared(call: type, view: object) -> dict[str, Any]:
    """The fields of a declaration with a view's values, to make another view of them."""
    return {name: getattr(view, name) for name in _names(call)}


@cache
def _names(call: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(call))
