"""Attention of the reference transformer: rotary positions, grouped queries, a causal core.

Shapes: activations [batch, tokens, hidden], heads [batch, heads, tokens, head_dim].
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint

from runner.reference.column_products import Project, one_by_one
from spec.mixers.attention import AttentionSpec, QkNormWeights
from spec.mixers.rope import RopeSpec


class Core(Protocol):
    """Causal attention over whole sequences, of which this rank holds the tokens at ``positions``."""

    def positions(self, seq_len: int) -> Tensor:
        """Places in the sequence, from 0, of the tokens of this rank, in the order in which it holds them."""
        ...

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """The heads' outputs, [batch, heads, tokens, v_dim], for this rank's tokens; each sees the last
        ``window`` tokens up to itself (None: all)."""
        ...


def attended(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """torch's fused kernel, causal, over queries that are the last of the keys' tokens; within a window its
    kernel that takes a mask."""
    tokens, keys = query.shape[2], key.shape[2]
    if window is None or window >= keys:
        mask = None if tokens == keys else causal_lower_right(tokens, keys)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
    back = torch.arange(keys - tokens, keys, device=key.device)[:, None] - torch.arange(
        keys, device=key.device
    )
    inside = (back >= 0) & (back < window)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=inside, enable_gqa=True)


class WholeCore:
    """Every token of the sequence is here."""

    def positions(self, seq_len: int) -> Tensor:
        """All of them."""
        return torch.arange(seq_len)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None = None) -> Tensor:
        """On this rank alone."""
        return attended(query, key, value, window)


class Rotation:
    """Angles of rotary embeddings for given positions (RoFormer, arXiv 2104.09864 eq. 34; channel i is paired with
    channel i + half, as Llama's released weights in Hugging Face's form are)."""

    def __init__(self, rope: RopeSpec, head_dim: int, positions: Tensor) -> None:
        rotated = int(head_dim * rope.share) // 2 * 2
        pairs = torch.arange(0, rotated, 2, dtype=torch.float64, device=positions.device)
        angles = positions.double()[:, None] * rope.base ** (-pairs / rotated)
        self.rotated = rotated
        self.cos, self.sin = angles.cos().float(), angles.sin().float()

    def __call__(self, heads: Tensor) -> Tensor:
        """``heads`` turned by their positions, in its own format."""
        turned, rest = heads[..., : self.rotated].float(), heads[..., self.rotated :]
        first, second = turned.chunk(2, dim=-1)
        left, right = first * self.cos - second * self.sin, second * self.cos + first * self.sin
        return torch.cat([left.to(heads.dtype), right.to(heads.dtype), rest], dim=-1)


class SelfAttention(nn.Module):
    """Projections around a core, norms of each query's and key's channels between them (Qwen3). Where tensor
    parallelism cuts the projections by heads, this rank's heads follow from their widths."""

    def __init__(
        self, hidden: int, spec: AttentionSpec, core: Core, rotation: Rotation | None, epsilon: float
    ) -> None:
        super().__init__()
        self.q = nn.Linear(hidden, spec.num_heads * spec.qk_dim, bias=spec.qkv_bias)
        self.k = nn.Linear(hidden, spec.num_kv_heads * spec.qk_dim, bias=spec.qkv_bias)
        self.v = nn.Linear(hidden, spec.num_kv_heads * spec.v_dim, bias=spec.qkv_bias)
        self.out = nn.Linear(spec.num_heads * spec.v_dim, hidden, bias=spec.out_bias)
        self.dims = (spec.qk_dim, spec.qk_dim, spec.v_dim)
        self.window = spec.window
        weights = spec.qk_norm_weights is QkNormWeights.HEAD
        self.q_norm = (
            nn.RMSNorm(spec.qk_dim, eps=epsilon, elementwise_affine=weights) if spec.qk_norm else None
        )
        self.k_norm = (
            nn.RMSNorm(spec.qk_dim, eps=epsilon, elementwise_affine=weights) if spec.qk_norm else None
        )
        self.project: Project = one_by_one
        self.core = core
        self.rotation = rotation
        self.repeats_core = False

    def forward(self, states: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        projected = self.project(states, (self.q, self.k, self.v))
        query, key, value = (
            each.view(*each.shape[:-1], -1, dim).transpose(1, 2)
            for each, dim in zip(projected, self.dims, strict=True)
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.rotation is not None:
            query, key = self.rotation(query), self.rotation(key)
        if self.repeats_core:
            heads: Tensor = checkpoint(self.core, query, key, value, self.window, use_reentrant=False)
        else:
            heads = self.core(query, key, value, self.window)
        mixed: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return mixed
