"""What DeepEP and HybridEP hold of device memory for the experts' exchange, beside the tensors that go in and come out.

Source: DeepEP, branch hybrid-ep (94a9f8f), ``csrc/hybrid_ep/buffer/intranode.cu`` and ``internode_nixl.cu``,
allocate_dispatch_buffers and allocate_combine_buffers: room for every token of the group on one rank, which a
dispatch and a combine share (use_shared_buffer), in 16 bits (Megatron-LM ``fused_a2a.py``: fp8_dispatch
False), with a scale for 128 channels and fp32 probabilities of all experts of a domain. DeepEP (dd758ca)
``csrc/legacy/config.hpp``, get_nvl_buffer_size_hint and get_rdma_buffer_size_hint, of the chunks that
``deep_ep/buffers/legacy.py`` recommends.
"""

import numpy as np

from ops.context import Sharding
from ops.groups import group_of
from ops.layout import Layout
from ops.op import Axis
from spec.arrays import FloatArray, IntArray, ceil_div, floats
from spec.job import JobSpec
from spec.model import ModelSpec, MoeSpec

FP32_BYTES, HALF_BYTES = 4.0, 2.0
CHANNELS_A_SCALE = 128

# DeepEP: half its 20 multiprocessors (Megatron-LM moe_deepep_num_sms) are channels; a place holds a token's
# source, scales, and indices and weights of at most 128 experts.
DEEPEP_CHANNELS = 10
DEEPEP_SOURCE_BYTES, DEEPEP_BESIDE_BYTES = 8.0, 128 * (8.0 + 4.0 + 4.0)
DEEPEP_LINE_BYTES = 16.0
DEEPEP_NODE = 8
# By the largest group that has them, tokens that a channel receives over NVLink and between nodes.
DEEPEP_CHUNKS = (
    (8, 256, 128),
    (16, 288, 140),
    (64, 288, 128),
    (96, 480, 132),
    (128, 560, 132),
    (1 << 30, 720, 132),
)


def dispatcher_bytes(
    model: ModelSpec, job: JobSpec, sharding: Sharding, layout: Layout, domain_ranks: int
) -> FloatArray:
    """Bytes on one rank, for every row; nothing without experts over ep or with collectives of NCCL alone."""
    routed = [run.block.moe for run in model.blocks if run.block.moe is not None]
    if not routed or not job.sends_tokens_once:
        return np.zeros(len(layout))
    group = group_of(Axis.EP, layout, domain_ranks)
    tokens = ceil_div(layout.micro_batch * job.seq_len, layout.cp * sharding.norm_shards(layout))
    if job.moe_dispatcher == "deepep":
        each = [_deepep(moe.routed_hidden(model.hidden), layout.ep) for moe in routed]
    else:
        each = [
            _hybridep(moe, moe.routed_hidden(model.hidden), tokens, group.intra, group.inter)
            for moe in routed
        ]
    return np.where(layout.ep > 1, np.max(each, axis=0), 0.0)


def _hybridep(moe: MoeSpec, width: int, tokens: IntArray, ranks: IntArray, domains: IntArray) -> FloatArray:
    """``ranks`` of each of ``domains`` send ``tokens`` each: what arrives inside, and between domains what
    leaves, arrives and is summed.
    """
    probabilities = FP32_BYTES * ceil_div(np.full_like(domains, moe.num_experts), domains)
    scales = FP32_BYTES * (width // CHANNELS_A_SCALE)
    token = HALF_BYTES * width
    inside = tokens * ranks * domains * (token + probabilities + scales)
    leaving = tokens * (token + probabilities * domains + scales)
    others = tokens * (domains - 1)
    between = leaving + others * (3.0 * (token + probabilities) + scales)
    return floats(inside + np.where(domains > 1, between, 0.0))


def _deepep(width: int, ranks: IntArray) -> FloatArray:
    """Queues of every channel from each rank of a node, and to and from each node."""
    most = np.array([chunk[0] for chunk in DEEPEP_CHUNKS])
    inside, between = (np.array([chunk[at] for chunk in DEEPEP_CHUNKS]) for at in (1, 2))
    row = np.searchsorted(most, ranks)
    place = HALF_BYTES * width + DEEPEP_SOURCE_BYTES + DEEPEP_BESIDE_BYTES
    nodes = ranks // DEEPEP_NODE
    over_nvlink = DEEPEP_CHANNELS * np.minimum(ranks, DEEPEP_NODE) * inside[row] * place
    over_network = DEEPEP_CHANNELS * nodes * between[row] * 2.0 * (place + DEEPEP_LINE_BYTES)
    return floats(over_nvlink + np.where(ranks > DEEPEP_NODE, over_network, 0.0))
