"""How many parameters a model has, to the last one, as its publishers count them.

Raw vocabulary, no padding, no sharding. Biases, norms and routers are counted; buffers are not,
with one exception that its publishers count too: DeepSeek-V3's router correction bias.
"""

from dataclasses import dataclass

from spec.mixers.mixer import mixer_parameters
from spec.model import ACTIVATION_PARAMETERS, BlockSpec, MlpSpec, ModelSpec, MoeSpec, PositionKind, VisionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters of one model.

    ``total`` is the decoder with embeddings and head, router correction biases included,
    multi-token-prediction blocks not. ``active`` is what one token passes through: ``total`` less
    the routed experts beyond top-k; embedding and head are counted once each, as in the published
    active figures (Mixtral 12.9 B, arXiv 2401.04088 sec. 1). ``embedding`` is the token table, ``position`` the
    learned position table, ``head`` the output matrix (0 when tied); ``router_bias`` the correction
    biases inside ``total``; ``mtp`` the multi-token-prediction blocks, without the embedding and
    head that they share.
    """

    total: int
    active: int
    embedding: int
    position: int
    head: int
    router_bias: int
    mtp: int


def num_parameters(model: ModelSpec) -> ParameterCount:
    """The ParameterCount of ``model``."""
    hidden = model.hidden
    embedding = (model.vocab + model.extra_embedding_rows) * hidden
    head = (0 if model.tied_embeddings else model.vocab * hidden) + (model.vocab if model.head_bias else 0)
    position = model.max_positions * hidden if model.position is PositionKind.LEARNED else 0
    norms = hidden * model.norm.vectors * (int(model.final_norm) + model.embedding_norm)
    total = embedding + head + position + norms + model.rope_scales
    if model.residual_streams > 1:
        halves = sum(run.count * run.block.num_halves for run in model.main_blocks)
        total += halves * mix_parameters(model, expands=True) + mix_parameters(model, expands=False)
    idle = router_bias = 0
    for run in model.main_blocks:
        total += run.count * block_parameters(run.block, hidden)
        if run.block.moe is not None:
            idle += run.count * idle_expert_parameters(run.block.moe, hidden)
            router_bias += run.count * (run.block.moe.num_experts if run.block.moe.router_bias else 0)
    mtp = sum(run.count * block_parameters(run.block, hidden) for run in model.blocks if run.block.mtp)
    return ParameterCount(
        total=total,
        active=total - idle,
        embedding=embedding,
        position=position,
        head=head,
        router_bias=router_bias,
        mtp=mtp,
    )


def block_parameters(block: BlockSpec, hidden: int) -> int:
    """Parameters of one block: token mixer, MLP or experts as far as it has them, their norms, and what MTP
    adds.

    An MTP block adds norms of both inputs and of its output, and the 2h -> h projection
    (arXiv 2412.19437 sec. 2.2; names enorm, hnorm, shared_head.norm, eh_proj in the checkpoint).
    """
    feed_forward = 0
    if block.moe is not None:
        feed_forward = moe_parameters(block.moe, hidden)
    elif block.mlp is not None:
        feed_forward = mlp_parameters(block.mlp, hidden)
    norm = hidden * block.norm.vectors
    extra = 3 * norm + 2 * hidden * hidden if block.mtp else 0
    mixer = 0 if block.mixer is None else mixer_parameters(block.mixer, hidden)
    ranks = block.condition_rank + block.first_gate_rank + block.second_gate_rank
    return mixer + feed_forward + block.num_norms * norm + 2 * ranks * hidden + extra


def mix_parameters(model: ModelSpec, *, expands: bool) -> int:
    """Parameters of what mixes residual streams before a half and, where it ``expands``, weighs its output for each, and perhaps each
    stream for each: a row of all channels and a bias for each weight, a scale for each of these kinds."""
    streams = model.residual_streams
    kinds = [streams, *[streams] * expands, *[streams * streams] * (expands and model.mixed_streams)]
    return sum(kinds) * (streams * model.hidden + 1) + len(kinds)


def vision_parameters(vision: VisionSpec, hidden: int) -> int:
    """Parameters of a tower whose tokens have ``hidden`` channels; none of them is in ``num_parameters``."""
    wide, vectors = vision.hidden * vision.merged, vision.norm.vectors
    patches = vision.hidden * (vision.patch_channels + vision.patch_bias + vision.positions)
    blocks = sum(run.count * block_parameters(run.block, vision.hidden) for run in vision.blocks)
    merger = (wide + 1) * (wide + hidden)
    norms = vectors * (vision.hidden + vision.deepstack * wide)
    return patches + blocks + (1 + vision.deepstack) * merger + norms


def mlp_parameters(mlp: MlpSpec, hidden: int) -> int:
    """Parameters of a dense feed-forward layer: three matrices when gated, else two."""
    extra = ACTIVATION_PARAMETERS.get(mlp.activation, 0) + mlp.ffn_hidden * mlp.inner_norm
    return _ffn(hidden, mlp.ffn_hidden, gated=mlp.gated, bias=mlp.bias) + extra


def moe_parameters(moe: MoeSpec, hidden: int) -> int:
    """Parameters of the router, all routed experts, the products in and out of their latent, and the shared experts
    with their gate."""
    router = hidden * moe.num_experts + (moe.num_experts if moe.router_bias else 0)
    latent = _ffn(hidden, moe.latent_hidden, gated=False, bias=moe.bias) if moe.latent_hidden else 0
    shared = 0
    if moe.shared_ffn_hidden:
        shared = _ffn(hidden, moe.shared_ffn_hidden, gated=moe.gated, bias=moe.bias)
        shared += hidden if moe.shared_gate else 0
    return router + moe.num_experts * _expert_parameters(moe, hidden) + latent + shared + hidden * moe.output_norm


def idle_expert_parameters(moe: MoeSpec, hidden: int) -> int:
    """Parameters of the routed experts that one token does not visit."""
    return (moe.num_experts - moe.topk) * _expert_parameters(moe, hidden)


def _expert_parameters(moe: MoeSpec, hidden: int) -> int:
    return _ffn(moe.routed_hidden(hidden), moe.expert_ffn_hidden, gated=moe.gated, bias=moe.bias)


def _ffn(hidden: int, width: int, *, gated: bool, bias: bool) -> int:
    inward = 2 if gated else 1
    return (inward + 1) * hidden * width + (inward * width + hidden if bias else 0)
