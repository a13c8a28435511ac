"""One operation of one rank, for N plans at once.

A strategy says once which operations a layer runs; pricing, memory, explain, exporters and the
runner all read this list. Numeric fields are 1-D arrays of length N.
"""

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from ops.experts.routing import Routing
from ops.roles import Identity, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes

# One zero that broadcasts over any N: an operation that saves or holds nothing needs no column of its own.
NOTHING = np.zeros(1)


class Phase(StrEnum):
    """The pass in which an operation runs; RECOMPUTE and both gradients belong to the backward, STEP to the end of a
    step."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"
    STEP = "step"


class Lane(StrEnum):
    """The lane of an operation, which says whether the rank waits for it.

    MAIN: one after another. OVERLAP: runs beside the operation ``overlaps`` in the phase ``overlap_phase`` and costs
    what outlasts it. PREFETCH: runs beside everything the layer does in the same pass (weights of the next layer
    coming, gradients of the last one going). COPY: the same on the copy engines, which take no multiprocessor and
    another link. PIECES: it and the product that it overlaps are cut into ``pieces`` that take turns. ACROSS: runs
    beside another micro-batch's pass in the other direction.
    """

    MAIN = "main"
    OVERLAP = "overlap"
    PREFETCH = "prefetch"
    COPY = "copy"
    PIECES = "pieces"
    ACROSS = "across"


class Axis(StrEnum):
    """Groups of ranks that communicate; ops.layout places each on the cluster."""

    TP = "tp"
    CP = "cp"
    DP = "dp"
    DP_CP = "dp_cp"
    PP = "pp"
    EP = "ep"
    ETP = "etp"
    EDP = "edp"
    WP = "wp"
    WDP = "wdp"
    SDP = "sdp"
    SDP_SHARD = "sdp_shard"
    SDP_REPLICATE = "sdp_replicate"
    ZERO_SHARD = "zero_shard"
    ZERO_REPLICATE = "zero_replicate"
    EMBEDDING = "embedding"


class Owner(StrEnum):
    """The group that holds copies of a weight: DENSE the data-parallel ranks, WEIGHT (isp) the weight
    data-parallel ranks, EXPERT the expert data-parallel ranks."""

    DENSE = "dense"
    WEIGHT = "weight"
    EXPERT = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """``count`` pieces of a collective and of a product. The first of the product needs none of the
    collective, or the last of the product's none of a reduction; with ``last_waits`` the last one of the
    reduction is waited for. The collective occupies ``thread_blocks`` multiprocessors, none where copy
    engines carry it.
    """

    count: IntArray
    last_waits: bool
    thread_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Op(Identity):
    """The fields of every operation.

    ``saved_bytes`` stay on the rank from forward to backward, ``transient_bytes`` only while the layer runs;
    ``cached_bytes`` are copies of weights that stay from step to step; ``parameters`` are trained elements
    held by this rank because of this operation (before ZeRO), counted on the forward operation alone,
    ``frozen`` those that it holds and does not train, as so many of the parameters' format; ``repeat``
    identical launches, fewer than one each where ranks share them out; ``synchronises``: the host waits for
    the device before it can issue it.
    """

    phase: Phase
    lane: Lane = Lane.MAIN
    overlaps: OpKey | None = None
    overlap_phase: Phase = Phase.FORWARD
    pieces: Pieces | None = None
    repeat: int | IntArray | FloatArray = 1
    synchronises: bool = False
    saved_bytes: FloatArray = field(default_factory=lambda: NOTHING)
    transient_bytes: FloatArray = field(default_factory=lambda: NOTHING)
    cached_bytes: FloatArray = field(default_factory=lambda: NOTHING)
    parameters: IntArray = field(default_factory=lambda: NOTHING.astype(np.int64))
    frozen: IntArray = field(default_factory=lambda: NOTHING.astype(np.int64))
    owner: Owner = Owner.DENSE


# What is declared once, because three places must agree on it: the operation, the query and the stored case.
# The call of a kernel: sizes and words of a product, experts' products, attention, a memory-bound kernel.
#
# Each is declared once and has two views. The array view holds a number for each of N plans or shapes:
# operations (ops.op) and queries of a cost model (profdb.queries). The scalar view holds one number:
# benchmark cases (profdb.cases). A view names what numbers are in it, ``AttentionCall[IntArray]`` or
# ``AttentionCall[int]``, and adds what only it has. A field that is written here is in all of them.
#
# The numbers are the fields of type Count. A number may be 0 only where 0 is its default; the others are
# sizes, and a call with one of 0 does nothing.

Count = TypeVar("Count")
"""The type of a number in a view."""

BLOCK_SCALES = frozenset({"block", "mx"})
"""Recipes (``scale_recipe``) whose scales belong to blocks of a row."""

# Defaults, which broadcast with arrays.
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
    """A memory-bound kernel of ops.memory_bound over rows x width elements."""

    __slots__ = ()

    kernel: str
    rows: Count
    width: Count
    dtype: str = "bf16"


@cache
def number_names(call: type) -> tuple[str, ...]:
    """Returns the names of a declaration's numbers, in order."""
    return tuple(field.name for field in fields(call) if field.type is Count)


@cache
def size_names(call: type) -> tuple[str, ...]:
    """Returns the names of the numbers that are never 0 in a call that does something."""
    # A number whose default is 0 may be 0 in a real call (window); every other one is a size.
    return tuple(field.name for field in fields(call) if field.type is Count and field.default != 0)


@cache
def label_names(call: type) -> tuple[str, ...]:
    """Returns the names of a declaration's words, in order."""
    return tuple(field.name for field in fields(call) if field.type is str)


@cache
def flag_names(call: type) -> tuple[str, ...]:
    """Returns the names of a declaration's flags, in order."""
    return tuple(field.name for field in fields(call) if field.type is bool)


def fields_of(call: type, view: object) -> dict[str, Any]:
    """Returns the fields of a declaration with a view's values, to make another view of them."""
    names = tuple(field.name for field in fields(call))
    return dict(zip(names, attrgetter(*names)(view), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedGemm(Op, ProductCall[IntArray]):
    """Equal matrix products."""

    dtype: str = "bf16"

    @property
    def flops(self) -> FloatArray:
        """2 m k n for each of the products."""
        return 2.0 * self.repeat * self.batch * self.m * self.k * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemm(Op, GroupedProductCall[IntArray]):
    """The products of a layer's experts; ``one_kernel`` for all of them, where the host does not know their rows."""

    dtype: str = "bf16"
    one_kernel: bool = False

    @property
    def flops(self) -> FloatArray:
        """2 m k n over all groups together."""
        return 2.0 * self.repeat * self.m * self.k * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Op, AttentionCall[IntArray]):
    """Scaled dot-product attention."""

    input_bytes: FloatArray = field(default_factory=lambda: NOTHING)

    @property
    def flops(self) -> FloatArray:
        """Full-matrix attention: 2 s_q s_kv (d_qk + d_v) per head, as PaLM counts it
        (arXiv 2204.02311 App. B); twice that in the backward."""
        # Two products forward. Backward has five, but model FLOPs count four: the recomputed scores are the kernel's
        # own choice, not the model's.
        factor = 2.0 if self.direction == "forward" else 4.0
        dims = self.qk_dim + self.v_dim
        # A causal mask is not subtracted here: PaLM counts the whole matrix, and MFU must be comparable.
        visible = np.where(self.window > 0, self.window, self.kv_len)
        keys = np.minimum(self.kv_len, visible)
        return factor * self.repeat * self.batch * self.heads * self.q_len * keys * dims


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCalls:
    """``times`` calls of a kernel of ops.memory_bound, forward, on ``rows``."""

    kernel: str
    rows: IntArray
    times: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound(Op, KernelCall[IntArray]):
    """A memory-bound kernel. ``stands_for`` are calls of other kernels in its width and format that move as many
    bytes: their times are its time where they were measured."""

    stands_for: tuple[KernelCalls, ...] = ()

    @property
    def backward(self) -> bool:
        """Returns whether the backward kernel runs; zeros are set by one kernel in either direction."""
        return self.phase in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD) and self.role is not Role.ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(Op):
    """One optimizer step over ``elements`` parameters."""

    elements: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedTokens:
    """The load of an exchange that sends a token once to each place that holds one of its experts: ``elements`` of a
    rank's own tokens, and ``weight_bytes`` of their probabilities. With ``weights_of_domain`` each domain gets those
    of its own experts only."""

    elements: FloatArray
    routing: Routing
    weight_bytes: FloatArray | float = 0.0
    weights_of_domain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuOverhead(Op):
    """Host work during which the device waits; ``launches`` counts it in kernel launches."""

    launches: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTransfer(Op):
    """``size_bytes`` between a rank and its host, one way. ``tensors`` are those that Python handles one by one as
    they are saved or given back; 0 where it is one copy of C++."""

    size_bytes: FloatArray
    tensors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUpdate(Op):
    """One optimizer step of the host's processors over ``elements`` parameters of a rank."""

    elements: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm(Op):
    """A collective over ``axis``; ``size_bytes`` is the whole array on one rank (spec.collectives).

    ``routed`` marks an all-to-all that sends less between domains than its ranks receive in all;
    ``thread_blocks`` that it runs in, 0: as many as a collective of NCCL. ``kernel`` that takes tokens to
    their experts in parts as unequal as their routing makes them (profdb.cases.ExpertExchangeCase); "": equal
    parts.
    """

    collective: Collective
    axis: Axis
    size_bytes: IntArray
    dtype: str = "bf16"
    routed: RoutedTokens | None = None
    thread_blocks: int = 0
    kernel: str = ""


Ops = tuple[Op, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(Identity):
    """A linear layer before it becomes products: ``tokens`` x ``inputs`` times ``inputs`` x ``outputs`` on one rank.

    ``saved_bytes`` is what stays of its input for the weight gradient, in the activations' format, and 0 where
    another linear saves it. ``dtype`` is what it multiplies in, "" for the job's. ``after_norm``: a norm makes its
    input. ``gathered`` over tp is its "input" (column-parallel) or its output "gradient" (row-parallel). An input
    that is ``saved_elsewhere`` too, by another operation, may be saved once, then as ``saved_share`` of its bytes.
    """

    tokens: IntArray
    inputs: IntArray
    outputs: IntArray
    saved_bytes: FloatArray
    bias: bool = False
    dtype: str = ""
    after_norm: bool = False
    saved_elsewhere: bool = False
    saved_share: float = 1.0
    gathered: str = ""

    @property
    def weights(self) -> IntArray:
        """Returns the elements of its matrix on one rank."""
        return self.inputs * self.outputs


def gemm(what: OpKey | Identity, phase: Phase, shape: tuple[IntArray, ...], layout: str, dtype: str) -> BatchedGemm:
    """Returns a product of ``shape`` (m, k, n) or (batch, m, k, n)."""
    batch, m, k, n = shape if len(shape) == 4 else (np.ones_like(shape[0]), *shape)
    return BatchedGemm(**what.words, phase=phase, batch=batch, m=m, k=k, n=n, layout=layout, dtype=dtype)


def collective(
    what: OpKey | Identity, phase: Phase, kind: Collective, axis: Axis, size_bytes: IntArray | FloatArray, dtype: str
) -> Comm:
    """Returns a collective of ``size_bytes``, rounded down to whole bytes, that the rank waits for."""
    size = np.asarray(size_bytes).astype(np.int64)
    return Comm(**what.words, phase=phase, collective=kind, axis=axis, size_bytes=size, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A part of a layer: what it runs forward, and what it runs backward in that order."""

    forward: Ops = ()
    backward: Ops = ()


def sequence(*pieces: Pass) -> Pass:
    """Returns pieces one after another: forwards in order, backwards from the last to the first."""
    return Pass(
        forward=tuple(op for piece in pieces for op in piece.forward),
        backward=tuple(op for piece in reversed(pieces) for op in piece.backward),
    )


def flat(piece: Pass) -> Ops:
    """Returns the forward operations, then the backward ones."""
    return piece.forward + piece.backward


def multiplies_low_precision(op: Op) -> bool:
    """Returns whether an operation is a product of 8 bits or fewer."""
    return isinstance(op, BatchedGemm | GroupedGemm) and dtype_bytes(op.dtype) < 2.0


def as_recompute(op: Op) -> Op:
    """Returns a forward operation as the backward repeats it: it saves and owns nothing."""
    return replace(
        op,
        phase=Phase.RECOMPUTE,
        # What it overlapped in the forward is repeated as well, so it overlaps the repetition. Its weights and saved
        # bytes are counted on the forward operation already.
        overlap_phase=Phase.RECOMPUTE,
        saved_bytes=0.0 * op.saved_bytes,
        parameters=0 * op.parameters,
        frozen=0 * op.frozen,
    )
