"""What a process takes of its GPU besides the tensors of a step: context, allocator slack, NCCL, the experts'
dispatcher, Transformer Engine's buffers; what of a device there is to use; and whether a plan fits.

Sources. NCCL: constants below. Dispatchers: DeepEP, branch hybrid-ep (94a9f8f), ``csrc/hybrid_ep/buffer/intranode.cu``
and ``internode_nixl.cu``, allocate_dispatch_buffers and allocate_combine_buffers: room for every token of the group on
one rank, which a dispatch and a combine share (use_shared_buffer), in 16 bits (Megatron-LM ``fused_a2a.py``:
fp8_dispatch False), with a scale for 128 channels and fp32 probabilities of all experts of a domain; DeepEP (dd758ca)
``csrc/legacy/config.hpp``, get_nvl_buffer_size_hint and get_rdma_buffer_size_hint, of the chunks that
``deep_ep/buffers/legacy.py`` recommends. Transformer Engine (d0067d0) ``pytorch/module/base.py``, initialize_ub: one
buffer of a micro-batch's tokens x hidden for each product whose tensor-parallel collective is overlapped, of which
those that gather are a byte an element under fp8 recipes; ``common/comm_gemm_overlap/comm_gemm_overlap.cpp``,
CommOverlapP2PBase::initialize: one that is reduced by ring exchange has room for what all other ranks send;
``pytorch/cpp_extensions/gemm.py``, get_cublas_workspace: one for single products, one a stream for grouped ones, three
for overlapped ones."""

from math import exp, inf

import numpy as np

from ops.context import LayerContext
from ops.layout import Group, group_of, place
from ops.op import Axis
from solver.times.op_times import STREAMS
from spec.arrays import FloatArray, IntArray, ceil_div, floats
from spec.cluster.cluster import ClusterSpec, NetworkDomain
from spec.errors import ConfigError
from spec.model import MoeSpec
from spec.settings.constraints import Constraints
from spec.units import GIB, KIB, MIB, bytes_to_gib

# Assumption: freed and split blocks that PyTorch's caching allocator keeps beyond what is allocated.
ALLOCATOR_SLACK = 0.04
# Assumption: what the driver and the context of other processes keep of the capacity in the hardware spec.
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

COMMUNICATORS: tuple[Axis, ...] = (Axis.TP, Axis.CP, Axis.PP, Axis.EP, Axis.ETP, Axis.WP)

FP32_BYTES, HALF_BYTES = 4.0, 2.0
CHANNELS_A_SCALE = 128

# DeepEP: half its 20 multiprocessors (Megatron-LM moe_deepep_num_sms) are channels; a slot of a queue holds a token,
# its source, and scales, indices and weights of at most 128 experts.
DEEPEP_CHANNELS = 10
DEEPEP_SOURCE_BYTES, DEEPEP_ROUTING_BYTES = 8.0, 128 * (8.0 + 4.0 + 4.0)
DEEPEP_LINE_BYTES = 16.0
DEEPEP_NODE = 8
# By the largest group that has them, tokens that a channel receives over NVLink and between nodes.
DEEPEP_CHUNKS = ((8, 256, 128), (16, 288, 140), (64, 288, 128), (96, 480, 132), (128, 560, 132), (1 << 30, 720, 132))

# qkv_fprop, fc1_fprop, proj_dgrad, fc2_dgrad, and beside weight gradients proj_wgrad, fc2_wgrad (since 2025-08)
GATHERING = 6
# bulk: qkv_dgrad, fc1_dgrad gather; qkv_wgrad, fc1_wgrad reduce, and stay (not in fp8) where input gradients
# are reduced instead
BULK = 2
# proj_fprop, fc2_fprop
REDUCING = 2

WORKSPACE_BYTES = 32.0 * MIB
"""cuBLAS' on GPUs with asynchronous tensor cores (compute capability 9.0 and later)."""
SMALL_WORKSPACE_BYTES = 4.0 * MIB
"""cuBLAS' on those before (get_cublas_workspace_size_bytes)."""
OVERLAPPED_STREAMS = 3
"""Pieces of an overlapped product run on (_NUM_MAX_UB_STREAMS)."""

MOST_DECIMALS = 9
SURE = 1.2816
"""Standard deviations of a normal that one in ten lies beyond."""
# Fitted: to the memory that the two sources state of those that nobody had looked at (benchmarks/source_spread.py): root mean
# square of log(measured / predicted), both alike (0.18 and 0.09).
MEMORY_STD = 0.14


def exchanging_axes(context: LayerContext) -> list[Axis]:
    """Returns the axes whose ranks all send to each other by NCCL: of experts without a dispatcher of their own, and of
    those that exchange heads for tokens."""
    axes: list[Axis] = []
    if context.job.moe_dispatcher == "all_to_all" and any(run.block.moe for run in context.model.blocks):
        axes.append(Axis.EP)
    if context.exchanges_context:
        axes.append(Axis.CP)
    if context.traits.exchanges_heads:
        axes.append(Axis.TP)
    return axes


def communicator_bytes(context: LayerContext, cluster: ClusterSpec) -> FloatArray:
    """Returns the bytes of NCCL's buffers on one rank, for every row: one communicator for each distinct group, and
    connections between all ranks of groups that exchange all-to-all."""
    layout, domain = context.layout, cluster.domains[0]
    total: FloatArray = np.zeros(len(layout))
    others: list[Group] = []
    # The axes of layers, data parallelism, and the world for the gradient norm.
    for axis in (*COMMUNICATORS, context.traits.copies.dense, None):
        if axis is None:
            ranks, stride = layout.constant(layout.world_size), layout.constant(1)
            group = place(ranks, stride, layout.world_size, domain.ranks)
        else:
            group = group_of(axis, layout, domain.ranks)
        # Axes of the same ranks (tp and ep on one node, say) share a communicator.
        exists = group.ranks > 1
        for other in others:
            exists &= (group.ranks != other.ranks) | (group.stride != other.stride)
        total = total + np.where(exists, _communicator(domain, group.intra, group.inter), 0.0)
        others.append(group)
    for axis in exchanging_axes(context):
        total = total + _exchange_connections(domain, group_of(axis, layout, domain.ranks))
    # Data parallelism of experts and of isp's weights has groups of its own.
    for axis, cuts in ((Axis.EDP, layout.ep * layout.etp > 1), (Axis.WDP, layout.wp > 1)):
        group = group_of(axis, layout, domain.ranks)
        total = total + np.where(cuts & (group.ranks > 1), _communicator(domain, group.intra, group.inter), 0.0)
    return total


def _communicator(domain: NetworkDomain, intra: IntArray, inter: IntArray) -> FloatArray:
    """Returns the bytes of one communicator of ``intra`` ranks in each of ``inter`` domains."""
    inside = CHANNELS.get(domain.link, CHANNELS["nvlink"]) * LOCAL_CONNECTION_BYTES
    # Of the ranks of a node in a channel two talk to the network, the others among themselves.
    outward = np.minimum(2.0 / intra, 1.0)
    each = outward * NETWORK_CONNECTION_BYTES + (1.0 - outward) * LOCAL_CONNECTION_BYTES
    across = np.minimum(CHANNELS_PER_NODE_RANK * intra, CHANNELS["nvlink"]) * each
    return np.asarray(CONNECTIONS * np.where(inter > 1, across, inside), dtype=np.float64)


def _exchange_connections(domain: NetworkDomain, group: Group) -> FloatArray:
    """Returns the bytes of a rank's connections with all others of its group."""
    inside = EXCHANGE_CHANNELS.get(domain.link, EXCHANGE_CHANNELS["nvlink"])
    channels = np.where(group.inter > 1, EXCHANGE_CHANNELS_ACROSS, inside)
    pools = np.where(group.inter > 1, EXCHANGE_POOLS_BYTES, 0.0)
    near = channels * (group.intra - 1) * LOCAL_CONNECTION_BYTES
    return np.where(group.ranks > 1, near + pools, 0.0)


def dispatcher_bytes(context: LayerContext, cluster: ClusterSpec) -> FloatArray:
    """Returns the bytes of DeepEP's or HybridEP's buffers, of the largest expert block; 0 where experts are not over
    ep."""
    model, job, layout = context.model, context.job, context.layout
    routed = [run.block.moe for run in model.blocks if run.block.moe is not None]
    if not routed:
        return np.zeros(len(layout))
    group = group_of(Axis.EP, layout, cluster.domains[0].ranks)
    tokens = ceil_div(layout.micro_batch * job.seq_len, layout.cp * layout.tp_if(context.traits.cuts_tokens))
    if job.moe_dispatcher == "deepep":
        each = [_deepep(moe.routed_hidden(model.hidden), layout.ep) for moe in routed]
    else:
        each = [_hybridep(moe, moe.routed_hidden(model.hidden), tokens, group.intra, group.inter) for moe in routed]
    return np.where(layout.ep > 1, np.max(each, axis=0), 0.0)


def _hybridep(moe: MoeSpec, width: int, tokens: IntArray, ranks: IntArray, domains: IntArray) -> FloatArray:
    """Returns the bytes of HybridEP's buffers where ``ranks`` of each of ``domains`` send ``tokens`` each: what arrives
    inside a domain, and between domains what leaves, arrives and is summed."""
    # Of one token: probabilities of the experts of a domain, scales, and its hidden state.
    probabilities = FP32_BYTES * ceil_div(np.full_like(domains, moe.num_experts), domains)
    scales = FP32_BYTES * (width // CHANNELS_A_SCALE)
    token = HALF_BYTES * width
    inside = tokens * ranks * domains * (token + probabilities + scales)
    leaving = tokens * (token + probabilities * domains + scales)
    others = tokens * (domains - 1)
    between = leaving + others * (3.0 * (token + probabilities) + scales)
    return floats(inside + np.where(domains > 1, between, 0.0))


def _deepep(width: int, ranks: IntArray) -> FloatArray:
    """Returns the bytes of DeepEP's queues: of every channel from each rank of a node, and to and from each node."""
    most = np.array([chunk[0] for chunk in DEEPEP_CHUNKS])
    inside, between = (np.array([chunk[at] for chunk in DEEPEP_CHUNKS]) for at in (1, 2))
    row = np.searchsorted(most, ranks)
    slot = HALF_BYTES * width + DEEPEP_SOURCE_BYTES + DEEPEP_ROUTING_BYTES
    nodes = ranks // DEEPEP_NODE
    over_nvlink = DEEPEP_CHANNELS * np.minimum(ranks, DEEPEP_NODE) * inside[row] * slot
    over_network = DEEPEP_CHANNELS * nodes * between[row] * 2.0 * (slot + DEEPEP_LINE_BYTES)
    return floats(over_nvlink + np.where(ranks > DEEPEP_NODE, over_network, 0.0))


def transformer_engine_bytes(context: LayerContext, cluster: ClusterSpec) -> FloatArray:
    """Returns the bytes of user buffers of tensor-parallel overlap, and of cuBLAS' workspaces."""
    overlap = context.job.preset.tensor_parallel.overlap
    buffers = user_buffer_bytes(context) if overlap else np.zeros(len(context.layout))
    # One workspace for single products, one a stream for grouped ones and for overlapped ones.
    grouped = STREAMS * any(run.block.moe is not None for run in context.model.blocks)
    workspaces = 1 + grouped + OVERLAPPED_STREAMS * (buffers > 0)
    each = WORKSPACE_BYTES if cluster.gpu.architecture.asynchronous_products else SMALL_WORKSPACE_BYTES
    return floats(buffers + workspaces * each)


def user_buffer_bytes(context: LayerContext) -> FloatArray:
    """Returns the bytes of a buffer for each overlapped product; 0 where tokens are not cut between linears."""
    choices, layout = context.job.preset.tensor_parallel, context.layout
    elements = 1.0 * context.tokens * context.model.hidden
    fp8 = context.job.precision.linear == "fp8"
    # Bytes an element of what is gathered, in the format of products, and of what is reduced, always in 16 bits.
    gathered, reduced = (1.0 if fp8 else context.activation_bytes), context.activation_bytes
    ring = choices.overlap_rs_method == "ring_exchange"
    with_peers = reduced * ((2 * layout.tp - 1) / layout.tp if ring else 1.0)
    dgrad = with_peers if choices.overlap_rs_dgrad else gathered
    each = GATHERING * gathered + REDUCING * with_peers + BULK * (dgrad + reduced)
    return np.where(np.asarray(layout.tp_if(context.traits.cuts_tokens)) > 1, elements * each, 0.0)


def usable_bytes(cluster: ClusterSpec) -> float:
    """Returns the bytes of device memory that a plan may need at most."""
    return cluster.gpu.memory_bytes * (1.0 - UNUSABLE_SHARE)


def limit_bytes(cluster: ClusterSpec, constraints: Constraints) -> float:
    """Returns the bytes of device memory that a plan of a search may need at most under a user's constraints.

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


def needs_words(needed_bytes: float, limit_bytes: float) -> str:
    """Returns ``needs 140.3 GiB of 139.6``, with as many decimals as tell both apart."""
    for decimals in range(1, MOST_DECIMALS + 1):
        needed, limit = (f"{bytes_to_gib(size):.{decimals}f}" for size in (needed_bytes, limit_bytes))
        if needed != limit:
            break
    return f"needs {needed} GiB of {limit}"


def likelihood_words(needed_bytes: float, limit_bytes: float) -> str:
    """Returns how sure it is that a plan fits, by how far predictions of memory lie off: for sure and not at all nine times
    in ten."""
    if needed_bytes <= limit_bytes * exp(-SURE * MEMORY_STD):
        return "fits for sure"
    if needed_bytes <= limit_bytes:
        return "probably fits"
    return "probably does not fit" if needed_bytes <= limit_bytes * exp(SURE * MEMORY_STD) else "does not fit"


def retries_words(needed_bytes: float, device_bytes: float, limit_bytes: float) -> str:
    """Returns a warning where a plan of at least ``needed_bytes`` fits, but what the allocator would cache
    (``device_bytes``) does not, else "": it frees cached segments and allocates again, and synchronises the device each
    time (PyTorch c10/cuda/CUDACachingAllocator.cpp, malloc: release_cached_blocks and a second cudaMalloc)."""
    if not needed_bytes <= limit_bytes < device_bytes:
        return ""
    cached, limit = bytes_to_gib(device_bytes), bytes_to_gib(limit_bytes)
    return (
        f"fits with retries: the allocator would keep {cached:.1f} GiB of {limit:.1f} and must free cached blocks in "
        "every step, which stalls the GPU (not priced); expandable_segments avoids that"
    )
