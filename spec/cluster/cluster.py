"""What a cluster is: one kind of GPU and nested network domains, each figure with its source."""

from dataclasses import dataclass, field

from spec.cluster.architecture import ArchitectureSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One accelerator as its vendor's sheet describes it.

    ``peak_flops`` and ``sustained_flops`` are dense FLOP/s by number format (``bf16``, ``fp16``, ``fp8``,
    ``fp32``, ...). ``sustained_flops`` is what large matrix products really reach at the clocks the power
    limit allows; a format without a figure there has none stated. ``training_rate_ratio`` is the rate
    compute-bound kernels keep in a training step, where every kernel before them has drawn power too, over
    the rate of a benchmark that runs them alone. ``training_clock_ratio`` is the clock held there over
    ``boost_clock_hz``, at which kernels run that instructions bound. ``device_names`` are the names a driver
    reports for this GPU (as torch.cuda.get_device_name).
    """

    name: str
    architecture: ArchitectureSpec
    peak_flops: dict[str, float]
    memory_bytes: float
    memory_bandwidth: float
    num_sms: int
    sustained_flops: dict[str, float] = field(default_factory=dict)
    boost_clock_hz: float = 0.0
    l2_bytes: float = 0.0
    power_w: float = 0.0
    training_rate_ratio: float = 1.0
    training_clock_ratio: float = 1.0
    device_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDomain:
    """A set of ranks that reach each other at one rate.

    ``ranks`` GPUs per domain (0 on the outermost: unlimited); ``bandwidth`` bytes/s per GPU, one way;
    ``latency_s`` of one hop; ``in_network_reduction`` for NVLS or SHARP; ``link`` is nvlink (or another that
    a switch joins), mesh (one link between every two GPUs, ``bandwidth`` all of a GPU's together), pcie,
    socket (between the processors of one server), network or memory ("" when nobody said). ``links`` lead
    from each inner domain into this one and are shared by all that cross, ``bandwidth`` being an equal part
    of them; 0: the NICs in the outermost domain, one per GPU elsewhere. ``payload_share`` of a network's
    bandwidth carries data (0: what InfiniBand's headers leave), and of a mesh's (0: all). Without
    ``peer_access`` GPUs below one processor reach each other through its memory (pcie alone).
    """

    name: str
    ranks: int
    bandwidth: float
    latency_s: float
    in_network_reduction: bool = False
    link: str = ""
    links: int = 0
    payload_share: float = 0.0
    peer_access: bool = True


HOST_NEEDED = "a cluster sheet with a [host] table, which offloading needs (docs/clusters.md)"
"""What is allowed where a plan offloads and the sheet has no host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A node's processors and their memory as its GPUs reach them.

    ``link_bandwidth`` bytes/s of one link to the processors, one way, as its vendor counts it; ``links`` of
    them leave a node's GPUs (0: one each, fewer where GPUs share the link of a switch); ``memory_bandwidth``
    bytes/s of a node's memory.
    """

    link_bandwidth: float
    memory_bandwidth: float
    links: int = 0

    def link_per_gpu(self, gpus: int) -> float:
        """Bytes/s of one of ``gpus`` GPUs of a node while all of them send."""
        return self.link_bandwidth * min(self.links / gpus, 1.0) if self.links else self.link_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A homogeneous cluster. ``domains`` run from inside out; the first is the scale-up domain
    (NVLink, or the PCIe below one processor), the last reaches every node; at most three.

    ``host_slowdown`` is how much longer the host takes for Python and PyTorch's dispatch than a DGX H100's
    Xeon 8480C, ``driver_slowdown`` for the driver's part of a launch. ``gpus_per_node`` is the number of GPUs
    under one operating system; GB200 NVL72 has nodes of 4 and an NVLink domain of 72. ``host`` None: no sheet
    said how GPUs reach it. ``sources`` maps a TOML key path to where its figure comes from.
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
