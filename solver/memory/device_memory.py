"""What a process takes of its GPU beside its tensors: allocator slack, CUDA context, communicators."""

from math import inf

import numpy as np

from ops.context import LayerContext, WeightCopies
from ops.groups import Group, group_of, place
from ops.layout import Layout
from ops.op import Axis
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import ClusterSpec, NetworkDomain
from spec.errors import ConfigError
from spec.settings.constraints import Constraints
from spec.units import GIB, KIB, MIB, bytes_to_gib

# Assumption: freed and split blocks that PyTorch's caching allocator keeps beyond what is allocated.
ALLOCATOR_SLACK = 0.04
# Assumption: what the driver and the context of other processes keep of the sheet's capacity.
UNUSABLE_SHARE = 0.01
# Measured: a process that holds one tensor and PyTorch's kernels (Hugging Face Transformers
# documentation, "Model training anatomy").
CONTEXT_BYTES = 1343.0 * MIB

# NCCL gives every connection of every channel a buffer of each protocol, LL 512 KiB, LL128 4.7 MiB and
# Simple 4 MiB (src/init.cc, computeBuffSizes), allocated as 10 MiB at the receiver and 2 MiB of state at
# the sender (allocations listed in NVIDIA/nccl issue 1685); over the network both ends hold buffers.
LOCAL_CONNECTION_BYTES = 12.0 * MIB
NETWORK_CONNECTION_BYTES = 20.0 * MIB
# Sends and receives connect every pair of ranks over twice as many channels as NVLink has links, at most those of
# collectives, both rounded up to a power of two (src/graph/paths.cc, ncclTopoGetNchannels and
# ncclTopoComputeP2pChannels; src/enqueue.cc, p2pTaskAppend connects all of them), but over two where some are
# reached over the network, for whose sends and receives a rank holds a pool each: 16 chunks of 128 KiB a channel
# (src/transport/net.cc, sharedNetBuffersInit).
EXCHANGE_CHANNELS: dict[str, int] = {"nvlink": 32, "pcie": 2}
EXCHANGE_CHANNELS_ACROSS = 2
EXCHANGE_POOLS_BYTES = 2 * 32 * 16 * 128.0 * KIB
# A channel has one connection in its ring and, up and down, two in its tree (src/graph/connect.cc).
CONNECTIONS = 3
# "24 coll channels" is what NCCL reports inside NVSwitch nodes of A100 and H100. Assumption: 4 over PCIe,
# and across nodes two for every GPU of the group in a node, as its rings are doubled.
CHANNELS: dict[str, int] = {"nvlink": 24, "pcie": 4}
CHANNELS_PER_NODE_RANK = 2

COMMUNICATORS: tuple[Axis, ...] = (
    Axis.TP,
    Axis.CP,
    Axis.PP,
    Axis.EP,
    Axis.ETP,
    Axis.WP,
)


def exchanging_axes(context: LayerContext) -> frozenset[Axis]:
    """Axes whose ranks all send to each other: of experts without a dispatcher of its own, of heads for tokens."""
    experts = any(run.block.moe is not None for run in context.model.blocks)
    found = [Axis.EP] if experts and context.job.moe_dispatcher == "all_to_all" else []
    found += [Axis.CP] if context.exchanges_context else []
    return frozenset(found + [Axis.TP] * context.traits.exchanges_heads)


def communicator_bytes(
    layout: Layout,
    cluster: ClusterSpec,
    copies: WeightCopies | None = None,
    exchanging: frozenset[Axis] = frozenset(),
) -> FloatArray:
    """NCCL's buffers on one rank, bytes for every row: a communicator for each axis of several ranks
    that is not the same group as another, among them that of ``copies``, and one over the world for the
    gradient norm; and connections between all ranks of the axes that are ``exchanging`` all-to-all."""
    domain = cluster.domains[0]
    total = np.zeros(len(layout))
    met: list[Group] = []
    world = place(layout.constant(layout.world_size), layout.constant(1), layout.world_size, domain.ranks)
    axes = (*COMMUNICATORS, (copies or WeightCopies()).dense)
    for group in (*(group_of(axis, layout, domain.ranks) for axis in axes), world):
        used = group.ranks > 1
        for other in met:
            used &= (group.ranks != other.ranks) | (group.stride != other.stride)
        total = total + np.where(used, _one(domain, group.intra, group.inter), 0.0)
        met.append(group)
    for axis in exchanging:
        total = total + _exchange(domain, group_of(axis, layout, domain.ranks))
    experts = layout.ep * layout.etp > 1
    for axis, exists in ((Axis.EDP, experts), (Axis.WDP, layout.wp > 1)):
        group = group_of(axis, layout, domain.ranks)
        used = exists & (group.ranks > 1)
        total = total + np.where(used, _one(domain, group.intra, group.inter), 0.0)
    return np.asarray(total, dtype=np.float64)


def _one(domain: NetworkDomain, intra: IntArray, inter: IntArray) -> FloatArray:
    """One communicator of ``intra`` ranks in each of ``inter`` domains."""
    inside = CHANNELS.get(domain.link, CHANNELS["nvlink"]) * LOCAL_CONNECTION_BYTES
    # Of the ranks of a node in a channel two talk to the network, the others among themselves.
    outward = np.minimum(2.0 / intra, 1.0)
    each = outward * NETWORK_CONNECTION_BYTES + (1.0 - outward) * LOCAL_CONNECTION_BYTES
    across = np.minimum(CHANNELS_PER_NODE_RANK * intra, CHANNELS["nvlink"]) * each
    return np.asarray(CONNECTIONS * np.where(inter > 1, across, inside), dtype=np.float64)


def _exchange(domain: NetworkDomain, group: Group) -> FloatArray:
    """Connections of one rank with all others of its group."""
    inside = EXCHANGE_CHANNELS.get(domain.link, EXCHANGE_CHANNELS["nvlink"])
    channels = np.where(group.inter > 1, EXCHANGE_CHANNELS_ACROSS, inside)
    pools = np.where(group.inter > 1, EXCHANGE_POOLS_BYTES, 0.0)
    near = channels * (group.intra - 1) * LOCAL_CONNECTION_BYTES
    return np.where(group.ranks > 1, near + pools, 0.0)


def usable_bytes(cluster: ClusterSpec) -> float:
    """Device memory a plan may need at most."""
    return cluster.gpu.memory_bytes * (1.0 - UNUSABLE_SHARE)


def limit_bytes(cluster: ClusterSpec, constraints: Constraints) -> float:
    """Device memory that a plan of a search may need at most, where a user leaves some of it free.

    Raises ConfigError for a limit beyond what the device has.
    """
    usable = usable_bytes(cluster)
    if GIB * constraints.memory_gib > usable and constraints.memory_gib < inf:
        raise ConfigError(
            where="constraints",
            key="memory_gib",
            value=constraints.memory_gib,
            allowed=f"at most {bytes_to_gib(usable):.1f}, what {cluster.gpu.name} has to use",
        )
    return min(usable * (1.0 - constraints.headroom), GIB * constraints.memory_gib)
