"""Routed experts of the reference transformer, spread over the ranks of ep: dropless, dispatched by all-to-all.

The steps are those of Switch Transformer (arXiv 2101.03961 sec. 2) with top-k routing: route, send each token to the
ranks of its experts, run the experts, send back, add up by weight.
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
    """The experts of this rank: ``local`` of them from number ``first`` on. Weights are stacked: [local, in, out]."""

    def __init__(self, hidden: int, spec: MoeSpec, first: int, local: int) -> None:
        super().__init__()
        width = spec.expert_ffn_hidden
        self.first = first
        self.gate = nn.Parameter(torch.empty(local, hidden, width)) if spec.gated else None
        self.up = nn.Parameter(torch.empty(local, hidden, width))
        self.down = nn.Parameter(torch.empty(local, width, hidden))
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """``rows`` [tokens, hidden] in the order of the experts, ``counts`` of them for each."""
        outputs = []
        for place, tokens in enumerate(torch.split(rows, counts)):
            inner = tokens @ self.up[place]
            gated = inner if self.gate is None else tokens @ self.gate[place]
            inner = self.activation(gated) if self.gate is None else self.activation(gated) * inner
            outputs.append(inner @ self.down[place])
        return torch.cat(outputs)


class RoutedFeedForward(nn.Module):
    """A router, this rank's experts, and the shared experts that every token passes through. ``group`` holds the ranks
    over which experts are spread; None: all are here."""

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
                ffn_hidden=spec.shared_ffn_hidden,
                gated=spec.gated,
                bias=spec.bias,
                activation=spec.activation,
            )
            self.shared = FeedForward(hidden, shared)

    def forward(self, states: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same; tokens are this rank's own."""
        tokens = states.flatten(0, 1)
        weights, chosen = self._route(tokens)
        order = chosen.flatten().argsort(stable=True)
        source = order // self.spec.topk
        per_expert = torch.bincount(chosen.flatten(), minlength=self.spec.num_experts)
        outputs = self._visit(tokens[source], per_expert)
        weighted = outputs * weights.flatten()[order, None].to(outputs.dtype)
        mixed = torch.zeros_like(tokens).index_add(0, source, weighted.to(tokens.dtype)).view_as(states)
        return mixed if self.shared is None else mixed + self.shared(states)

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [tokens, topk] in fp32 and the experts they belong to."""
        logits = self.router(tokens).float()
        scores = logits.softmax(-1) if self.spec.score == "softmax" else logits.sigmoid()
        weights, chosen = scores.topk(self.spec.topk, dim=-1)
        if self.spec.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * self.spec.route_scale, chosen

    def _visit(self, rows: Tensor, per_expert: Tensor) -> Tensor:
        """``rows`` in the order of all experts, sent to them and back."""
        if self.group is None:
            out: Tensor = self.experts(rows, per_expert.tolist())
            return out
        ranks = dist.get_world_size(self.group)
        arriving = torch.empty_like(per_expert)
        dist.all_to_all_single(arriving, per_expert, group=self.group)
        sent = per_expert.view(ranks, -1).sum(1).tolist()
        from_rank = arriving.view(ranks, -1)
        received = from_rank.sum(1).tolist()
        arrived = all_to_all(rows, sent, received, self.group)
        by_expert = self._place_of_rows(from_rank)
        done = self.experts(arrived[by_expert], from_rank.sum(0).tolist())
        returned = torch.empty_like(done).index_copy(0, by_expert, done)
        return all_to_all(returned, received, sent, self.group)

    @staticmethod
    def _place_of_rows(from_rank: Tensor) -> Tensor:
        """Rows as they arrive, by rank and within it by expert, in the order of experts; ``from_rank`` counts
        [ranks, experts]."""
        experts = torch.arange(from_rank.shape[1], device=from_rank.device).repeat(from_rank.shape[0])
        return experts.repeat_interleave(from_rank.flatten()).argsort(stable=True)


# The reference transformer, as the part of it that one stage of a pipeline holds.
#
# Pre-norm decoder blocks (Llama 2, arXiv 2307.09288 sec. 2.2): RMSNorm, rotary grouped-query attention, a gated
# feed-forward network or experts; nothing fused by hand, so that torch's kernels are what is timed.

INITIAL_STD = 0.02
"""Standard deviation of initial weights (GPT-2; Llama's released configs, initializer_range)."""
NORM_EPSILON = 1e-6
BLOCK = "blocks."

Cut = Callable[[str, nn.Module], None]
"""What is done to a part of a stage, by name, when it has its weights: sharding them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Part of a model that a stage holds: blocks by their number in it, the embedding, final norm and head."""

    blocks: Sequence[int]
    embedding: bool = True
    head: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockContext:
    """Context of blocks beside their spec: the attention core, the ranks over which experts are spread (None: all
    are here), the places in a sequence of this rank's tokens, the device and the parameters' format."""

    core: Core
    experts: dist.ProcessGroup | None
    positions: Tensor
    device: torch.device
    dtype: torch.dtype


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a residual; ``runs_again`` keeps its input
    alone and repeats it in the backward."""

    def __init__(self, model: ModelSpec, spec: BlockSpec, around: BlockContext) -> None:
        super().__init__()
        self.runs_again = False
        hidden, mixer = model.hidden, spec.mixer
        assert isinstance(mixer, AttentionSpec), "checked before (runner.training.task)"
        rotation = None
        if model.position is PositionKind.ROTARY:
            rotation = Rotation(model.rope or RopeSpec(), mixer.qk_dim, around.positions)
        self.attention_norm = norm_of(spec.norm, model)
        self.attention = SelfAttention(hidden, mixer, around.core, rotation, epsilon_of(model))
        self.feed_forward_norm = norm_of(spec.norm, model)
        if spec.moe is not None:
            self.feed_forward: nn.Module = RoutedFeedForward(hidden, spec.moe, around.experts)
        else:
            assert spec.mlp is not None, "checked before (runner.training.task)"
            self.feed_forward = FeedForward(hidden, spec.mlp)

    def forward(self, states: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        if not self.runs_again:
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
        """Through what this stage holds."""
        if self.embedding is not None:
            states = self.embedding(states)
        for block in self.blocks.values():
            states = block(states)
        if self.norm is not None and self.head is not None:
            states = self.head(self.norm(states))
        return states


def norm_of(kind: NormKind, model: ModelSpec) -> nn.Module:
    """A norm of the model's width."""
    made = nn.RMSNorm if kind is NormKind.RMS else nn.LayerNorm
    return made(model.hidden, eps=epsilon_of(model))


def epsilon_of(model: ModelSpec) -> float:
    """Epsilon of every norm."""
    return model.norm_epsilon or NORM_EPSILON


def stage_of(model: ModelSpec, share: Share, around: BlockContext, cut: Cut) -> Stage:
    """The stage with its weights, each part ``cut`` as soon as it is filled: no more than one is ever whole. A weight
    depends on its name alone, so that every plan starts from the same. Tied, the head has the embedding's."""
    parts = {}
    for name, make in makers_of(model, share, around):
        with torch.device(around.device):
            part = make().to(around.dtype)
        for path, module in part.named_modules(prefix=name):
            for parameter_name, parameter in module.named_parameters(prefix=path, recurse=False):
                _fill(parameter.data, parameter_name, module)
        cut(name, part)
        part.place = name  # type: ignore[assignment]
        parts[name] = part
    if model.tied_embeddings and share.embedding and share.head:
        parts["head"].weight = parts["embedding"].weight
    return Stage(parts)


def makers_of(model: ModelSpec, share: Share, around: BlockContext) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Embedding, blocks, norm and head by name, as far as the stage has them."""
    specs = [run.block for run in model.main_blocks for _ in range(run.count)]
    if share.embedding:
        yield "embedding", partial(nn.Embedding, model.vocab, model.hidden)
    for place in share.blocks:
        yield f"{BLOCK}{place}", partial(Block, model, specs[place], around)
    if share.head:
        yield "norm", partial(norm_of, model.norm, model)
        yield "head", partial(nn.Linear, model.hidden, model.vocab, bias=model.head_bias)


def _fill(weights: Tensor, name: str, module: nn.Module) -> None:
    """Norms one, biases zero, all else random by name; experts one by one."""
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
