"""The keys of the database: one benchmark case, complete enough never to need a change.

A case is what was *launched*: the scalar view of ops.calls where an operation asks for it. Cases are
compared and hashed by value. A field more is a new key for every sample: it wants a new SCHEMA_VERSION.
"""

from dataclasses import dataclass
from enum import StrEnum

from ops.calls import AttentionCall, GroupedProductCall, KernelCall, ProductCall
from spec.collectives import Collective
from spec.dtypes import dtype_bytes


class Family(StrEnum):
    """Kinds of benchmark; each has its own case class and its own curves."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped_gemm"
    ATTENTION = "attention"
    MEMORY_BOUND = "memory_bound"
    OPTIMIZER = "optimizer"
    COLLECTIVE = "collective"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCase(ProductCall[int]):
    """Equal matrix products."""

    dtype_in: str = "bf16"
    dtype_accumulate: str = "fp32"
    dtype_out: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemmCase(GroupedProductCall[int]):
    """Products of experts, their rows evenly spread unless said."""

    dtype_in: str = "bf16"
    dtype_accumulate: str = "fp32"
    dtype_out: str = "bf16"
    spread: str = "even"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase(AttentionCall[int]):
    """One attention call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBoundCase(KernelCall[int]):
    """A memory-bound kernel, forward or backward."""

    direction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCase:
    """One AdamW step over ``elements`` parameters; ``tensors`` says how many pieces."""

    elements: int
    tensors: int = 1
    kernel: str = "adamw"
    parameter_dtype: str = "fp32"
    gradient_dtype: str = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCase:
    """One collective over groups of ``intra`` ranks in each of ``inter`` scale-up domains, with
    ``siblings`` such groups per domain running at once. ``size_bytes`` as in spec.collectives.
    p2p is intra=2, inter=1 inside a domain, intra=1, inter=2 between two."""

    collective: Collective
    size_bytes: int
    intra: int
    inter: int
    siblings: int = 1
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCase:
    """Host-side cost: ``kind`` launch (one kernel), layer, micro_batch."""

    kind: str


Case = (
    GemmCase | GroupedGemmCase | AttentionCase | MemoryBoundCase | OptimizerCase | CollectiveCase | HostCase
)

FAMILY_OF: dict[type, Family] = {
    GemmCase: Family.GEMM,
    GroupedGemmCase: Family.GROUPED_GEMM,
    AttentionCase: Family.ATTENTION,
    MemoryBoundCase: Family.MEMORY_BOUND,
    OptimizerCase: Family.OPTIMIZER,
    CollectiveCase: Family.COLLECTIVE,
    HostCase: Family.HOST,
}

CASE_OF: dict[Family, type] = {family: case for case, family in FAMILY_OF.items()}


def product_dtypes(dtype: str) -> dict[str, str]:
    """Formats of a product's operands and result: narrow operands give bf16."""
    return {"dtype_in": dtype, "dtype_out": dtype if dtype_bytes(dtype) >= 2.0 else "bf16"}
