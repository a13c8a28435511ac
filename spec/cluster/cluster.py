"""What a cluster is: its GPUs, what all of one architecture share, its network, and the part of it that a job gets."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from spec.errors import ConfigError
from spec.section import Range

MAX_RANKS = 10**7
FP8_SCALES = ("tensor", "row", "block", "mx")
LINKS = ("nvlink", "mesh", "pcie", "socket", "network", "memory")
FLOPS_PER_CLOCK = Range(1.0, 1e5, "FLOPs a clock and multiprocessor")
FLASH_FLOPS = Range(1e12, 1e18, "FLOP/s")
MEMORY_BANDWIDTH = Range(1e9, 1e15, "bytes/s")
SLOWDOWN = Range(0.1, 10.0)
SHARE = Range(0.1, 1.0)
COUNT = Range(1, MAX_RANKS)


class OperandReads(StrEnum):
    """Reads of a tile's operands from shared memory by the tensor cores."""

    WARP = "warp"
    """Through registers, by every warp for its part of the tile (PTX ISA, mma.sync)."""
    WARP_GROUP = "warp_group"
    """From shared memory, by every group of four warps for its rows of the tile (PTX ISA, wgmma)."""
    ONCE = "once"
    """Once for the whole tile (PTX ISA, tcgen05)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Products:
    """Supported fp8 products: ``scales`` and, for experts in one launch, ``grouped_scales`` are the
    recipes of GemmCase.scale_recipe that torch has kernels for; with ``transposed_copies`` they want both
    operands along k, so that tensors are cast in both orders."""

    scales: Annotated[tuple[str, ...], FP8_SCALES]
    grouped_scales: Annotated[tuple[str, ...], FP8_SCALES]
    transposed_copies: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedRates:
    """FLOPs a clock and multiprocessor of 16-bit products whose rows do not begin at multiples of 16 bytes,
    in kernels that load one (``by_one``) or two elements (``by_two``) at a time."""

    by_one: Annotated[float, FLOPS_PER_CLOCK]
    by_two: Annotated[float, FLOPS_PER_CLOCK]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash2Rates:
    """FLOP/s that FlashAttention-2 was published to reach with heads of 128 at 16k tokens: ``forward`` and
    ``backward`` without a mask, ``causal_forward`` with one (half the pairs counted).

    ``gpu_flops`` and ``num_sms`` are those of the GPU it ran on: in 16 bits its tensor peak where the kernel
    ``holds_under_load`` (it keeps its rate where power limits long products), else what those sustain.
    """

    forward: Annotated[float, FLASH_FLOPS]
    causal_forward: Annotated[float, FLASH_FLOPS]
    backward: Annotated[float, FLASH_FLOPS]
    gpu_flops: Annotated[float, FLASH_FLOPS]
    num_sms: Annotated[int, COUNT]
    holds_under_load: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTuning:
    """Constants of NCCL's cost model by architecture.

    ``ll_max_rate`` caps protocol LL in one server, bytes/s; ``nvlink_share`` is the payload of a link's raw
    rate, ``nvls_share`` the part of that which NVLS reaches (0: none); ``ring_plateau`` lengthens the
    latency of Ring/Simple on long messages between servers, and with ``gathers_plateau`` that of all-gather
    and reduce-scatter inside one; ``nvls_channels`` of NVLS work on a message inside a domain, NCCL's 16 unless stated.
    """

    ll_max_rate: Annotated[float, Range(1e9, 1e14, "bytes/s")]
    nvlink_share: Annotated[float, SHARE]
    nvls_share: Annotated[float, Range(0.0, 1.0)]
    ring_plateau: Annotated[float, Range(1.0, 10.0)]
    gathers_plateau: bool
    nvls_channels: Annotated[int, Range(1, 64)] = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureSpec:
    """One architecture, as configs/architectures/<name>.toml says with its sources.

    ``asynchronous_products``: tensor cores run beside the other units of a warp; ``static_tiles``: products
    assign their tiles to one thread block a multiprocessor before they start; ``wide_tiles`` are tiles of
    matrix products (rows, columns) beyond those that every GPU has; ``best_over_flash2`` is the time of
    FlashAttention-2 over that of the best flash kernel by direction. None: ``unaligned`` rows at any address
    are as good, or unknown, ``fp8`` no such products, ``flash2`` no published rates, ``nccl`` no NCCL,
    ``fp8_attention`` (its time over that of 16 bits by direction) nothing measured, nor ``wide_queries`` (the time of
    heads of 192 channels in queries and 128 in values over that of their FLOPs in heads of 128). ``softmax_unhidden`` is
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
    wide_queries: dict[str, float] | None
    softmax_unhidden: float | None
    nccl: NcclTuning | None
    own_elementwise: bool
    sources: dict[str, str]


# What a cluster is: one kind of GPU and nested network domains, each figure with its source.


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One accelerator as its vendor's data sheet describes it.

    ``peak_flops`` and ``sustained_flops`` are dense FLOP/s by number format (``bf16``, ``fp16``, ``fp8``,
    ``fp32``, ...). ``sustained_flops`` is what large matrix products really reach at the clocks the power
    limit allows; a format without a figure there is unknown. ``training_rate_ratio`` is the rate
    compute-bound kernels keep in a training step, where every kernel before them has drawn power too, over
    the rate of a benchmark that runs them alone. ``training_clock_ratio`` is the clock sustained there over
    ``boost_clock_hz``, at which kernels run that instructions bound. ``device_names`` are the names a driver
    reports for this GPU (as torch.cuda.get_device_name).
    """

    name: str
    architecture: ArchitectureSpec
    peak_flops: dict[str, float]
    memory_bytes: Annotated[float, Range(1e8, 1e14, "bytes")]
    memory_bandwidth: Annotated[float, MEMORY_BANDWIDTH]
    num_sms: Annotated[int, COUNT]
    boost_clock_hz: Annotated[float, Range(1e8, 1e11, "Hz")]
    l2_bytes: Annotated[float, Range(0.0, 1e12, "bytes")]
    power_w: Annotated[float, Range(1.0, 1e5, "W")]
    sustained_flops: dict[str, float] = field(default_factory=dict)
    training_rate_ratio: Annotated[float, SHARE] = 1.0
    training_clock_ratio: Annotated[float, SHARE] = 1.0
    device_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDomain:
    """A set of ranks that reach each other at one rate.

    ``ranks`` GPUs per domain (0 on the outermost: unlimited); ``bandwidth`` bytes/s per GPU, one way;
    ``latency_s`` of one hop; ``in_network_reduction`` for NVLS or SHARP; ``link`` is nvlink (or another that
    a switch joins), mesh (one link between every two GPUs, or as many as the rows of ``pair_links`` say, ``bandwidth``
    all of a GPU's together), pcie, socket (between the processors of one server), network or memory. ``links`` lead
    from each inner domain into this one and are shared by all that cross, ``bandwidth`` being an equal part
    of them; 0: the NICs in the outermost domain, one per GPU elsewhere. ``payload_share`` of a network's
    bandwidth carries data (0: what InfiniBand's headers leave), and of a mesh's (0: all). Without
    ``peer_access`` GPUs below one processor reach each other through its memory (pcie alone).
    """

    name: str
    link: Annotated[str, LINKS]
    ranks: Annotated[int, Range(0, MAX_RANKS)]
    bandwidth: Annotated[float, Range(1e6, 1e14, "bytes/s")]
    latency_s: Annotated[float, Range(0.0, 1e-1, "s")]
    in_network_reduction: bool = False
    links: Annotated[int, COUNT] = 0
    payload_share: Annotated[float, SHARE] = 0.0
    peer_access: bool = True
    pair_links: tuple[str, ...] = ()

    def group_links(self, ranks: int) -> int:
        """Returns the links of a mesh from a GPU to the others of its group of ``ranks``: of the GPU that has fewest, in
        the worst of the groups side by side."""
        if not self.pair_links:
            return ranks - 1
        rows = [[int(links) for links in row.split()] for row in self.pair_links]
        starts = range(0, 1 if self.ranks % ranks else self.ranks, ranks)
        return min(sum(row[start : start + ranks]) for start in starts for row in rows[start : start + ranks])


HOST_NEEDED = "a hardware spec with a [host] table, which offloading needs (docs/clusters.md)"
"""The error for a plan that offloads if the hardware spec has no host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A node's processors and their memory as its GPUs reach them.

    ``link_bandwidth`` bytes/s of one link to the processors, one way, as its vendor counts it; ``links`` of
    them leave a node's GPUs (0: one each, fewer where GPUs share the link of a switch); ``memory_bandwidth``
    bytes/s of a node's memory.
    """

    link_bandwidth: Annotated[float, Range(1e8, 1e13, "bytes/s")]
    memory_bandwidth: Annotated[float, MEMORY_BANDWIDTH]
    links: Annotated[int, COUNT] = 0

    def link_per_gpu(self, gpus: int) -> float:
        """Bytes/s of one of ``gpus`` GPUs of a node while all of them send."""
        return self.link_bandwidth * min(self.links / gpus, 1.0) if self.links else self.link_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A homogeneous cluster. ``domains`` run from inside out; the first is the scale-up domain
    (NVLink, or the PCIe below one processor), the last reaches every node; at most three.

    ``host_slowdown`` is how much longer the host takes for Python and PyTorch's dispatch than a DGX H100's
    Xeon 8480C, ``driver_slowdown`` for the driver's part of a launch. ``gpus_per_node`` is the number of GPUs
    under one operating system; GB200 NVL72 has nodes of 4 and an NVLink domain of 72. ``host`` None: the
    hardware spec does not describe it. ``sources`` maps a TOML key path to where its figure comes from.
    """

    name: str
    gpu: GpuSpec
    gpus_per_node: int
    domains: tuple[NetworkDomain, ...]
    nics_per_node: int
    max_nodes: int
    sources: dict[str, str]
    host_slowdown: float = 1.0
    driver_slowdown: float = 1.0
    host: HostSpec | None = None

    @property
    def scale_up_ranks(self) -> int:
        """GPUs in the innermost domain."""
        return self.domains[0].ranks

    @property
    def middle_ranks(self) -> int:
        """GPUs in the second of three domains; 0 where there are two."""
        return self.domains[1].ranks if len(self.domains) > 2 else 0

    @property
    def server_ranks(self) -> int:
        """GPUs of one server, or of one NVLink domain where that is more."""
        return max(self.scale_up_ranks, self.gpus_per_node)

    def nodes_for(self, world_size: int) -> int:
        """Nodes that hold ``world_size`` ranks."""
        return -(-world_size // self.gpus_per_node)


# Which part of a scale-up domain of many nodes a scheduler gives a job: a segment.
#
# Ranks fill one segment after another, a segment in each domain (a rack). Slurm's block topology takes the segment
# of a job as a whole number of nodes that its node count divides by (slurm.schedmd.com, sbatch, --segment).


def segmented(cluster: ClusterSpec, world_size: int, segment: int = 0, *, where: str = "--job") -> ClusterSpec:
    """Returns the cluster with its innermost domain reduced to the GPUs of it that a job of ``world_size`` gets.

    These are ``segment`` GPUs. 0: all if the world fits into one domain, else the largest power of two if that divides
    the world, else the largest number that does. A domain of at most one node is never reduced. Raises ConfigError, naming ``where`` it was set, for a segment that is not whole nodes
    of a domain or does not divide the world.
    """
    domain = cluster.domains[0]
    possible = segments(cluster, world_size)
    if segment and segment not in possible:
        allowed = (
            f"0 or GPUs of one NVLink domain, whole nodes that divide {world_size} GPUs of {cluster.name}: "
            f"{', '.join(map(str, possible))}"
        )
        raise ConfigError(where=where, key="nvlink_segment", value=segment, allowed=allowed)
    # The largest power of two that a domain holds, 64 of 72: degrees are powers of two, and divide it.
    power = 1 << (domain.ranks.bit_length() - 1)
    alone = world_size <= domain.ranks
    ranks = segment or (power if power in possible and not alone else possible[-1])
    return replace(cluster, domains=(replace(domain, ranks=ranks), *cluster.domains[1:]))


def segments(cluster: ClusterSpec, world_size: int) -> tuple[int, ...]:
    """Returns the segments that a job may request, in GPUs, ascending: whole nodes that hold the world or divide it."""
    node, domain = cluster.gpus_per_node, cluster.scale_up_ranks
    if domain <= node:
        return (domain,)
    parts = range(node, domain + 1, node)
    return tuple(part for part in parts if part >= world_size or world_size % part == 0) or (domain,)
