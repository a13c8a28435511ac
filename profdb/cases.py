"""The keys of the database: one benchmark case, complete enough never to need a change.

A case is what was *launched*. Cases are compared and hashed by value.
"""

from dataclasses import dataclass
from enum import StrEnum

from spec.collectives import Collective


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
class GemmCase:
    """C[m, n] = A[m, k] B[k, n], ``batch`` times.

    ``layout`` as BLAS: NN (B as k x n), NT (B as n x k, a torch Linear forward), TN (A as k x m, a
    weight gradient). A Linear of in_features i and out_features o on t tokens is: forward
    NT (m=t, k=i, n=o); input_grad NN (m=t, k=o, n=i); weight_grad TN (m=o, k=t, n=i).
    ``scale_recipe`` names the fp8 scaling ("" for none, "tensor", "row", "block", "mx": profiler.benchmarks.fp8).
    """

    batch: int = 1
    m: int
    k: int
    n: int
    layout: str = "NT"
    dtype_in: str = "bf16"
    dtype_accumulate: str = "fp32"
    dtype_out: str = "bf16"
    scale_recipe: str = ""
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemmCase:
    """``groups`` products of one (k, n) over ``m`` rows in total, evenly spread unless said."""

    groups: int
    m: int
    k: int
    n: int
    layout: str = "NT"
    dtype_in: str = "bf16"
    dtype_accumulate: str = "fp32"
    dtype_out: str = "bf16"
    scale_recipe: str = ""
    spread: str = "even"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """Scaled dot-product attention. ``mask``: causal, full, window, varlen (causal, packed).

    ``direction``: forward or backward (backward alone, without the forward). ``window`` counts keys
    for mask "window", else 0.
    """

    batch: int
    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    mask: str = "causal"
    window: int = 0
    direction: str = "forward"
    kernel: str = "flash"
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBoundCase:
    """A kernel of ops.kernels over rows x width elements."""

    kernel: str
    direction: str
    rows: int
    width: int
    dtype: str = "bf16"


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
