"""Routed experts of the reference transformer, spread over the ranks of ep: dropless, dispatched by all-to-all.

The steps are those of Switch Transformer (arXiv 2101.03961 sec. 2) with top-k routing: route, send each token to the
ranks of its experts, run the experts, send back, add up by weight.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from runner.reference.exchange import all_to_all
from runner.reference.feed_forward import ACTIVATIONS, FeedForward
from spec.model import MlpSpec, MoeSpec


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
            if self.gate is None:
                inner = self.activation(inner)
            else:
                inner = self.activation(tokens @ self.gate[place]) * inner
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
