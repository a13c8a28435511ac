"""What all GPUs of one architecture share, beyond the figures of their own sheets."""

from dataclasses import dataclass
from enum import StrEnum


class OperandReads(StrEnum):
    """How often the tensor cores read a tile's operands from shared memory."""

    WARP = "warp"
    """Through registers, by every warp for its part of the tile (PTX ISA, mma.sync)."""
    WARP_GROUP = "warp_group"
    """From shared memory, by every group of four warps for its rows of the tile (PTX ISA, wgmma)."""
    ONCE = "once"
    """Once for the whole tile (PTX ISA, tcgen05)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Products:
    """What fp8 products there are: ``scales`` and, for experts in one launch, ``grouped_scales`` are the
    recipes of GemmCase.scale_recipe that torch has kernels for; with ``transposed_copies`` they want both
    operands along k, so that tensors are cast in both orders."""

    scales: tuple[str, ...]
    grouped_scales: tuple[str, ...]
    transposed_copies: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedRates:
    """FLOPs a clock and multiprocessor of 16-bit products whose rows do not begin at multiples of 16 bytes,
    in kernels that load one (``by_one``) or two elements (``by_two``) at a time."""

    by_one: float
    by_two: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash2Rates:
    """FLOP/s that FlashAttention-2 was published to reach with heads of 128 at 16k tokens: ``forward`` and
    ``backward`` without a mask, ``causal_forward`` with one (half the pairs counted).

    ``gpu_flops`` and ``num_sms`` are those of the GPU it ran on: in 16 bits its tensor peak where the kernel
    ``holds_under_load`` (it keeps its rate where power limits long products), else what those sustain.
    """

    forward: float
    causal_forward: float
    backward: float
    gpu_flops: float
    num_sms: int
    holds_under_load: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTuning:
    """What NCCL's cost model takes by architecture.

    ``ll_max_rate`` caps protocol LL in one server, bytes/s; ``nvlink_share`` is the payload of a link's raw
    rate, ``nvls_share`` the part of that which NVLS reaches (0: none); ``ring_plateau`` lengthens the
    latency of Ring/Simple on long messages between servers, and with ``gathers_plateau`` that of all-gather
    and reduce-scatter inside one.
    """

    ll_max_rate: float
    nvlink_share: float
    nvls_share: float
    ring_plateau: float
    gathers_plateau: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureSpec:
    """One architecture, as configs/architectures/<name>.toml says with its sources.

    ``asynchronous_products``: tensor cores run beside the other units of a warp; ``static_tiles``: products
    deal their tiles to one thread block a multiprocessor before they start; ``wide_tiles`` are tiles of
    matrix products (rows, columns) beyond those that every GPU has; ``best_over_flash2`` is the time of
    FlashAttention-2 over that of the best flash kernel by direction. None: ``unaligned`` rows at any address
    are as good, or nobody knows, ``fp8`` no such products, ``flash2`` no published rates, ``nccl`` no NCCL,
    ``fp8_attention`` (its time over that of 16 bits by direction) nothing measured. ``softmax_unhidden`` is
    the part of the shorter of products and softmax that a flash kernel does not hide, None: as products that
    run so elsewhere. ``own_elementwise``: PyTorch's elementwise kernels for it are not those written for
    CUDA.
    """

    name: str
    operand_reads: OperandReads
    asynchronous_products: bool
    static_tiles: bool
    wide_tiles: tuple[tuple[int, int], ...]
    best_over_flash2: dict[str, float]
    unaligned: UnalignedRates | None
    fp8: Fp8Products | None
    flash2: Flash2Rates | None
    fp8_attention: dict[str, float] | None
    softmax_unhidden: float | None
    nccl: NcclTuning | None
    own_elementwise: bool
    sources: dict[str, str]
