"""The reference transformer, as the part of it that one pipeline stage holds.

Pre-norm decoder blocks (Llama 2, arXiv 2307.09288 sec. 2.2): RMSNorm, rotary grouped-query attention, a gated
feed-forward layer or experts. Nothing is fused by hand, so that torch's own kernels are timed.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runner.reference.layers import ACTIVATIONS, Core, FeedForward, Rotation, SelfAttention, all_to_all
from spec.mixers.attention import AttentionSpec, RopeSpec
from spec.model import BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, PositionKind


class Experts(nn.Module):
    """The experts of this rank: ``local`` of them, from number ``first``. Weights are stacked: [local, in, out]."""

    def __init__(self, hidden: int, spec: MoeSpec, first: int, local: int) -> None:
        super().__init__()
        width = spec.expert_ffn_hidden
        self.first = first
        self.gate = nn.Parameter(torch.empty(local, hidden, width)) if spec.gated else None
        self.up = nn.Parameter(torch.empty(local, hidden, width))
        self.down = nn.Parameter(torch.empty(local, width, hidden))
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """The outputs of ``rows`` [tokens, hidden], which are sorted by expert, ``counts`` of them for each."""
        outputs = []
        for place, tokens in enumerate(torch.split(rows, counts)):
            inner = tokens @ self.up[place]
            gated = inner if self.gate is None else tokens @ self.gate[place]
            inner = self.activation(gated) if self.gate is None else self.activation(gated) * inner
            outputs.append(inner @ self.down[place])
        return torch.cat(outputs)


class RoutedFeedForward(nn.Module):
    """A router, this rank's experts, and the shared experts that every token passes through; dropless, dispatched by
    all-to-all over ``group``, the ranks of ep (None: all experts are on this rank).

    The steps are those of Switch Transformer (arXiv 2101.03961 sec. 2) with top-k routing: route, send each token to
    the ranks of its experts, run the experts, send back, and sum by weight.
    """

    def __init__(self, hidden: int, spec: MoeSpec, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        ranks = 1 if group is None else dist.get_world_size(group)
        local = spec.num_experts // ranks
        self.spec = spec
        self.group = group
        self.router = nn.Linear(hidden, spec.num_experts, bias=False)
        self.experts = Experts(hidden, spec, local * (0 if group is None else dist.get_rank(group)), local)
        self.shared = None
        if spec.shared_ffn_hidden:
            shared = MlpSpec(
                ffn_hidden=spec.shared_ffn_hidden, gated=spec.gated, bias=spec.bias, activation=spec.activation
            )
            self.shared = FeedForward(hidden, shared)

    def forward(self, states: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same; tokens are this rank's own."""
        tokens = states.flatten(0, 1)
        weights, chosen = self._route(tokens)
        # One row per (token, expert) pair, sorted by expert: ``order`` sorts the pairs, ``source`` is a pair's token.
        order = chosen.flatten().argsort(stable=True)
        source = order // self.spec.topk
        per_expert = torch.bincount(chosen.flatten(), minlength=self.spec.num_experts)
        outputs = self._run_experts(tokens[source], per_expert)
        weighted = outputs * weights.flatten()[order, None].to(outputs.dtype)
        mixed = torch.zeros_like(tokens).index_add(0, source, weighted.to(tokens.dtype)).view_as(states)
        return mixed if self.shared is None else mixed + self.shared(states)

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The topk weights of each token in fp32, and the experts that they are for."""
        logits = self.router(tokens).float()
        scores = logits.softmax(-1) if self.spec.score == "softmax" else logits.sigmoid()
        weights, chosen = scores.topk(self.spec.topk, dim=-1)
        if self.spec.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * self.spec.route_scale, chosen

    def _run_experts(self, rows: Tensor, per_expert: Tensor) -> Tensor:
        """The experts' outputs of ``rows``, which are sorted by expert, in the same order."""
        if self.group is None:
            out: Tensor = self.experts(rows, per_expert.tolist())
            return out
        ranks = dist.get_world_size(self.group)
        # Counts travel first, so that every rank knows how many rows it receives.
        arriving = torch.empty_like(per_expert)
        dist.all_to_all_single(arriving, per_expert, group=self.group)
        sent = per_expert.view(ranks, -1).sum(1).tolist()
        from_rank = arriving.view(ranks, -1)
        received = from_rank.sum(1).tolist()
        arrived = all_to_all(rows, sent, received, self.group)
        # Rows arrive by rank; the experts want them by expert, and the way back by rank again.
        by_expert = self._by_expert(from_rank)
        outputs = self.experts(arrived[by_expert], from_rank.sum(0).tolist())
        returned = torch.empty_like(outputs).index_copy(0, by_expert, outputs)
        return all_to_all(returned, received, sent, self.group)

    @staticmethod
    def _by_expert(from_rank: Tensor) -> Tensor:
        """The order that sorts arrived rows by expert; they arrive by rank, and by expert within a rank. ``from_rank``
        are their counts, [ranks, experts]."""
        experts = torch.arange(from_rank.shape[1], device=from_rank.device).repeat(from_rank.shape[0])
        return experts.repeat_interleave(from_rank.flatten()).argsort(stable=True)


# A stage and its blocks.

INITIAL_STD = 0.02
"""Standard deviation of initial weights (GPT-2; Llama's released configs, initializer_range)."""
NORM_EPSILON = 1e-6
BLOCK = "blocks."

Finish = Callable[[str, nn.Module], None]
"""Finishes a part of a stage, by its name, as soon as it has its weights: shards or compiles it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSlice:
    """The part of a model that a stage holds: blocks by their number in the model, the embedding, final norm and head."""

    blocks: Sequence[int]
    embedding: bool = True
    head: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockContext:
    """What all blocks of a stage share: the attention core, the ranks of ep (None: all experts are on this rank), the
    positions of this rank's tokens in a sequence, the device and the parameters' format."""

    core: Core
    experts: dist.ProcessGroup | None
    positions: Tensor
    device: torch.device
    dtype: torch.dtype


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a norm before it and a residual around both. A ``recomputed`` block
    saves its input alone and runs again in the backward."""

    def __init__(self, model: ModelSpec, spec: BlockSpec, context: BlockContext) -> None:
        super().__init__()
        self.recomputed = False
        hidden, mixer = model.hidden, spec.mixer
        assert isinstance(mixer, AttentionSpec), "checked before (runner.training.task)"
        rotation = None
        if model.position is PositionKind.ROTARY:
            rotation = Rotation(model.rope or RopeSpec(), mixer.qk_dim, context.positions)
        self.attention_norm = norm_of(spec.norm, model)
        self.attention = SelfAttention(hidden, mixer, context.core, rotation, epsilon_of(model))
        self.feed_forward_norm = norm_of(spec.norm, model)
        if spec.moe is not None:
            self.feed_forward: nn.Module = RoutedFeedForward(hidden, spec.moe, context.experts)
        else:
            assert spec.mlp is not None, "checked before (runner.training.task)"
            self.feed_forward = FeedForward(hidden, spec.mlp)

    def forward(self, states: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        if not self.recomputed:
            return self._run(states)
        out: Tensor = checkpoint(self._run, states, use_reentrant=False)
        return out

    def _run(self, states: Tensor) -> Tensor:
        mixed: Tensor = states + self.attention(self.attention_norm(states))
        out: Tensor = mixed + self.feed_forward(self.feed_forward_norm(mixed))
        return out


class Stage(nn.Module):
    """Tokens [batch, tokens] (or states [batch, tokens, hidden]) to states, or to logits [batch, tokens, vocab].
    Blocks are named by their number in the model."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = (parts.get(name) for name in ("embedding", "norm", "head"))
        self.blocks = nn.ModuleDict(
            {name.removeprefix(BLOCK): part for name, part in parts.items() if name.startswith(BLOCK)}
        )

    def forward(self, states: Tensor) -> Tensor:
        """The output of the parts that this stage holds."""
        if self.embedding is not None:
            states = self.embedding(states)
        for block in self.blocks.values():
            states = block(states)
        if self.norm is not None and self.head is not None:
            states = self.head(self.norm(states))
        return states


def norm_of(kind: NormKind, model: ModelSpec) -> nn.Module:
    """A norm over the model's hidden size."""
    norm_class = nn.RMSNorm if kind is NormKind.RMS else nn.LayerNorm
    return norm_class(model.hidden, eps=epsilon_of(model))


def epsilon_of(model: ModelSpec) -> float:
    """Epsilon of every norm."""
    return model.norm_epsilon or NORM_EPSILON


def stage_of(model: ModelSpec, model_slice: ModelSlice, context: BlockContext, finish: Finish) -> Stage:
    """The stage with its weights. A weight's values depend on its name alone, so that every plan starts from the same
    model. With tied embeddings the head has the embedding's weight."""
    parts = {}
    # Each part is finished before the next is made: no more than one is ever on the device unsharded.
    for name, make in makers_of(model, model_slice, context):
        with torch.device(context.device):
            part = make().to(context.dtype)
        for path, module in part.named_modules(prefix=name):
            for parameter_name, parameter in module.named_parameters(prefix=path, recurse=False):
                _initialise(parameter.data, parameter_name, module)
        finish(name, part)
        part.place = name  # type: ignore[assignment]
        parts[name] = part
    if model.tied_embeddings and model_slice.embedding and model_slice.head:
        parts["head"].weight = parts["embedding"].weight
    return Stage(parts)


def makers_of(
    model: ModelSpec, model_slice: ModelSlice, context: BlockContext
) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Name and maker of each part of the stage: embedding, blocks, norm and head."""
    specs = [run.block for run in model.main_blocks for _ in range(run.count)]
    if model_slice.embedding:
        yield "embedding", partial(nn.Embedding, model.vocab, model.hidden)
    for place in model_slice.blocks:
        yield f"{BLOCK}{place}", partial(Block, model, specs[place], context)
    if model_slice.head:
        yield "norm", partial(norm_of, model.norm, model)
        yield "head", partial(nn.Linear, model.hidden, model.vocab, bias=model.head_bias)


def _initialise(weights: Tensor, name: str, module: nn.Module) -> None:
    """Set initial weights: norms one, biases zero, all else drawn by name, each expert by its own number."""
    if isinstance(module, Experts):
        for place, expert in enumerate(weights.unbind(0)):
            _draw(expert, f"{name}.{module.first + place}")
    elif isinstance(module, nn.RMSNorm | nn.LayerNorm):
        weights.fill_(0.0 if name.endswith("bias") else 1.0)
    elif name.endswith("bias"):
        weights.zero_()
    else:
        _draw(weights, name)


def _draw(weights: Tensor, name: str) -> None:
    generator = torch.Generator(device=weights.device).manual_seed(zlib.crc32(name.encode()))
    weights.normal_(std=INITIAL_STD, generator=generator)
