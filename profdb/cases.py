"""The keys of the database: one benchmark case, complete enough never to need a change.

A case is what was *launched*. Where an operation of a training step launches it, the case is the scalar view of a call in
ops.op. Cases are compared and hashed by value. Another field changes the key of every sample, so it needs a new
SCHEMA_VERSION.
"""

from dataclasses import dataclass
from enum import StrEnum

from ops.op import AttentionCall, GroupedProductCall, KernelCall, ProductCall
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
    # The families below have no curves: their samples are compared with the curves of the others.
    OVERLAP = "overlap"
    LAYER = "layer"
    HOST_COPY = "host_copy"
    EXPERT_EXCHANGE = "expert_exchange"
    SUSTAINED = "sustained"
    WARM = "warm"
    MODULE = "module"


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCase(ProductCall[int]):
    """Equal matrix products."""

    dtype_in: str = "bf16"
    dtype_accumulate: str = "fp32"
    dtype_out: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemmCase(GroupedProductCall[int]):
    """Products of experts. Rows are spread evenly over the groups unless ``spread`` says otherwise."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapCase:
    """``products`` matrix products (m, k, n, layout NT) and ``collectives`` collectives started together, each kind one
    after another, until all have ended; 0 of one kind is the other alone. Groups and sizes as in CollectiveCase, both
    in one dtype."""

    collective: Collective
    size_bytes: int
    intra: int
    inter: int
    siblings: int = 1
    m: int
    k: int
    n: int
    products: int = 0
    collectives: int = 0
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCase:
    """Forward and backward of one whole pre-norm decoder layer (RMSNorm, rotary, gated feed-forward, no bias) on
    ``batch`` sequences, all operations on one rank. ``mode``: eager, or graph (one CUDA graph of them)."""

    batch: int
    seq_len: int
    hidden: int
    ffn_hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mode: str = "eager"
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopyCase:
    """A copy between page-locked memory of the host and a device's, on ``devices`` of a node at the same time.
    ``direction``: to_device, to_host."""

    direction: str
    size_bytes: int
    devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExchangeCase:
    """Sends each of a rank's ``tokens`` tokens to ``topk`` of ``experts`` experts, drawn evenly at random and spread
    over the ranks of a group. ``direction``: dispatch, or combine for the way back. Groups as in CollectiveCase.
    ``kernel``: all2all (one exchange of unequal parts, rows already sorted) or deepep."""

    direction: str
    tokens: int
    hidden: int
    experts: int
    topk: int
    intra: int
    inter: int
    siblings: int = 1
    kernel: str = "all2all"
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmKernelCase(KernelCall[int]):
    """A memory-bound kernel whose operands the previous launch left in the last-level cache, as a consumer finds its
    producer's output. MemoryBoundCase finds them in memory."""

    direction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCase:
    """Forward and backward of a linear module of Transformer Engine on ``rows`` tokens: ``module`` linear,
    layernorm_linear (RMSNorm before it) or grouped_linear (``groups`` experts of equally many rows). Weight gradients
    are added to sums in fp32. ``scale_recipe`` as in ProductCall."""

    module: str
    rows: int
    in_features: int
    out_features: int
    groups: int = 1
    scale_recipe: str = ""
    dtype: str = "bf16"


GroupedCase = CollectiveCase | OverlapCase | ExpertExchangeCase
"""Cases that every rank of a group runs together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedCase:
    """One product m x k by k x n, both operands stored along k (layout NT), repeated for ``seconds`` seconds: the
    rate at the clocks that a GPU sustains under load. Products run for ``percent`` of the time and copies through
    memory for the rest, as in a training step. A trial is the time of one product."""

    seconds: int
    m: int
    k: int
    n: int
    percent: int = 70
    dtype_in: str = "bf16"
    dtype_accumulate: str = "fp32"
    dtype_out: str = "bf16"
    scale_recipe: str = ""


Case = (
    GemmCase
    | GroupedGemmCase
    | AttentionCase
    | MemoryBoundCase
    | OptimizerCase
    | HostCase
    | LayerCase
    | HostCopyCase
    | SustainedCase
    | WarmKernelCase
    | ModuleCase
    | GroupedCase
)

FAMILY_OF: dict[type, Family] = {
    GemmCase: Family.GEMM,
    GroupedGemmCase: Family.GROUPED_GEMM,
    AttentionCase: Family.ATTENTION,
    MemoryBoundCase: Family.MEMORY_BOUND,
    OptimizerCase: Family.OPTIMIZER,
    CollectiveCase: Family.COLLECTIVE,
    HostCase: Family.HOST,
    OverlapCase: Family.OVERLAP,
    LayerCase: Family.LAYER,
    HostCopyCase: Family.HOST_COPY,
    ExpertExchangeCase: Family.EXPERT_EXCHANGE,
    SustainedCase: Family.SUSTAINED,
    WarmKernelCase: Family.WARM,
    ModuleCase: Family.MODULE,
}

# A stored family names its case class, and a case its family.
CASE_OF: dict[Family, type] = {family: case for case, family in FAMILY_OF.items()}


def product_dtypes(dtype: str) -> dict[str, str]:
    """Returns the formats of a product's operands and result; operands below 16 bits give bf16."""
    return {"dtype_in": dtype, "dtype_out": dtype if dtype_bytes(dtype) >= 2.0 else "bf16"}
