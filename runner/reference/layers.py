"""Layers of the reference transformer: column-parallel linears that gather tokens again in the backward, collectives with
a gradient, feed-forward, attention, and context parallelism."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint

from profiler.benchmarks.torch_collectives import all_gather, collective_by_name, reduce_scatter
from spec.mixers.attention import AttentionSpec, QkNormWeights, RopeSpec
from spec.model import MlpSpec

ProcessGroup = dist.ProcessGroup
Project = Callable[[Tensor, Sequence[nn.Linear]], tuple[Tensor, ...]]
"""Applies several linears to the same tokens."""


# Column-parallel linears under sequence parallelism: they save this rank's tokens alone and gather the others' again in
# the backward, overlapped with the input gradient (Korthikanti et al., arXiv 2205.05198 sec. 4.2.2).


def plain_linears(states: Tensor, linears: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """The linears as they are."""
    return tuple(linear(states) for linear in linears)


def regathered_columns(group: ProcessGroup) -> Project:
    """Linears cut by column over ``group``, on [batch, own tokens, hidden] to [batch, all tokens, own columns]."""

    def project(states: Tensor, linears: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
        weights = [local(linear.weight) for linear in linears]
        outputs: tuple[Tensor, ...] = _Products.apply(local(states), group, *weights)  # type: ignore[no-untyped-call]
        return tuple(
            output if linear.bias is None else output + local(linear.bias)
            for output, linear in zip(outputs, linears, strict=True)
        )

    return project


class _Products(Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: ProcessGroup, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        ctx.save_for_backward(own, *weights)
        blocks, gathering = _gather(own, group)
        gathering.wait()
        states = _token_order(blocks)
        return tuple(states @ weight.t() for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        own, *weights = ctx.saved_tensors
        # Two collectives are hidden: the gather of tokens behind the input gradients, and the reduce-scatter of those
        # behind the weight gradients, which need the gathered tokens.
        blocks, gathering = _gather(own, ctx.group)
        input_gradients = gradients[0] @ weights[0]
        for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
            input_gradients += gradient @ weight
        gathering.wait()
        ranks = dist.get_world_size(ctx.group)
        by_rank = torch.stack(input_gradients.chunk(ranks, dim=1)).flatten(0, 1)
        own_gradient = torch.empty_like(own, memory_format=torch.contiguous_format)
        scatter = collective_by_name("reduce_scatter_single", "reduce_scatter_tensor")
        scattering = scatter(own_gradient, by_rank, group=ctx.group, async_op=True)
        rows = _token_order(blocks).flatten(0, 1)
        weight_gradients = [gradient.flatten(0, 1).t() @ rows for gradient in gradients]
        scattering.wait()
        return own_gradient, None, *weight_gradients


def _gather(own: Tensor, group: ProcessGroup) -> tuple[Tensor, Any]:
    """The blocks [ranks, batch, tokens, hidden] of all ranks, and the work to wait for before they are read."""
    blocks = own.new_empty((dist.get_world_size(group), *own.shape))
    gather = collective_by_name("all_gather_single", "all_gather_into_tensor")
    return blocks, gather(blocks.flatten(0, 1), own.contiguous(), group=group, async_op=True)


def _token_order(blocks: Tensor) -> Tensor:
    """Blocks [ranks, batch, tokens, hidden] as [batch, tokens of all ranks, hidden]."""
    return blocks.transpose(0, 1).flatten(1, 2)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# Collectives with a gradient, over plain torch.distributed, so that they run on gloo as on NCCL.


class _AllToAll(Function):
    """All-to-all of rows (dimension 0); the gradient takes the opposite way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.splits = (sent, received, group)
        return _exchange(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        sent, received, group = ctx.splits
        return _exchange(gradients[0], received, sent, group), None, None, None


class _Gather(Function):
    """All-gather of blocks along a new dimension 0; the gradient is a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, block: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        gathered = block.new_empty((dist.get_world_size(group), *block.shape))
        all_gather(gathered.flatten(0, 1), block.contiguous(), group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        own = torch.empty_like(gradients[0][0], memory_format=torch.contiguous_format)
        reduce_scatter(own, gradients[0].contiguous().flatten(0, 1), ctx.group)
        return own, None


def all_to_all(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """[sum(received), ...] in rank order, after sending ``sent[r]`` of ``rows`` [sum(sent), ...] to rank r."""
    out: Tensor = _AllToAll.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return out


def all_to_all_equal(blocks: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[ranks, ...] in rank order, after sending block r of ``blocks`` [ranks, ...] to rank r."""
    ones = [1] * dist.get_world_size(group)
    return all_to_all(blocks, ones, ones, group)


def gathered(block: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The blocks [...] of all ranks as [ranks, ...]."""
    out: Tensor = _Gather.apply(block, group)  # type: ignore[no-untyped-call]
    return out


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    arrived = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived


# The dense feed-forward layer, gated (SwiGLU, arXiv 2002.05202) or not.

Activation = Callable[[Tensor], Tensor]


def squared_relu(values: Tensor) -> Tensor:
    """relu(x)^2 (Primer, arXiv 2109.08668)."""
    return functional.relu(values).square()


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "squared_relu": squared_relu,
}


class FeedForward(nn.Module):
    """up (and gate), activation, down."""

    def __init__(self, hidden: int, spec: MlpSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, spec.ffn_hidden, bias=spec.bias) if spec.gated else None
        self.up = nn.Linear(hidden, spec.ffn_hidden, bias=spec.bias)
        self.down = nn.Linear(spec.ffn_hidden, hidden, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.project: Project = plain_linears

    def forward(self, states: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        if self.gate is None:
            (up,) = self.project(states, (self.up,))
            inner = self.activation(up)
        else:
            gate, up = self.project(states, (self.gate, self.up))
            inner = self.activation(gate) * up
        out: Tensor = self.down(inner)
        return out


# Attention: rotary positions, grouped queries, a causal core.
#
# Shapes: activations [batch, tokens, hidden], heads [batch, heads, tokens, head_dim].


class Core(Protocol):
    """Causal attention over sequences of which this rank holds the tokens at ``positions``."""

    def positions(self, seq_len: int) -> Tensor:
        """Positions in the sequence, from 0, of this rank's tokens in their order on it."""
        ...

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """The heads' outputs, [batch, heads, tokens, v_dim], of this rank's tokens; a token attends to the last
        ``window`` tokens up to itself (None: all)."""
        ...


def causal_attention(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """The outputs of torch's attention; the queries are the last tokens of the keys'. Without a window the kernel is the
    fused causal one, with a window the one that takes a mask."""
    tokens, keys = query.shape[2], key.shape[2]
    if window is None or window >= keys:
        mask = None if tokens == keys else causal_lower_right(tokens, keys)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
    distance = torch.arange(keys - tokens, keys, device=key.device)[:, None] - torch.arange(keys, device=key.device)
    mask_of_window = (distance >= 0) & (distance < window)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask_of_window, enable_gqa=True)


class WholeCore:
    """Attention of a rank that holds whole sequences."""

    def positions(self, seq_len: int) -> Tensor:
        """All positions."""
        return torch.arange(seq_len)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None = None) -> Tensor:
        """Causal attention without communication."""
        return causal_attention(query, key, value, window)


class Rotation:
    """Rotary embeddings of given positions (RoFormer, arXiv 2104.09864 eq. 34); channel i is paired with channel
    i + half, as in Hugging Face's models."""

    def __init__(self, rope: RopeSpec, head_dim: int, positions: Tensor) -> None:
        rotated = int(head_dim * rope.share) // 2 * 2
        pairs = torch.arange(0, rotated, 2, dtype=torch.float64, device=positions.device)
        angles = positions.double()[:, None] * rope.base ** (-pairs / rotated)
        self.rotated = rotated
        self.cos, self.sin = angles.cos().float(), angles.sin().float()

    def __call__(self, heads: Tensor) -> Tensor:
        """``heads`` rotated by their positions, in their own format."""
        rotated, rest = heads[..., : self.rotated].float(), heads[..., self.rotated :]
        first, second = rotated.chunk(2, dim=-1)
        left, right = first * self.cos - second * self.sin, second * self.cos + first * self.sin
        return torch.cat([left.to(heads.dtype), right.to(heads.dtype), rest], dim=-1)


class SelfAttention(nn.Module):
    """Projections around an attention core, with norms of queries and keys before it (Qwen3). Under tensor parallelism
    the projections are sharded by heads; the number of this rank's heads follows from their widths."""

    def __init__(self, hidden: int, spec: AttentionSpec, core: Core, rotation: Rotation | None, epsilon: float) -> None:
        super().__init__()
        self.q = nn.Linear(hidden, spec.num_heads * spec.qk_dim, bias=spec.qkv_bias)
        self.k = nn.Linear(hidden, spec.num_kv_heads * spec.qk_dim, bias=spec.qkv_bias)
        self.v = nn.Linear(hidden, spec.num_kv_heads * spec.v_dim, bias=spec.qkv_bias)
        self.out = nn.Linear(spec.num_heads * spec.v_dim, hidden, bias=spec.out_bias)
        self.dims = (spec.qk_dim, spec.qk_dim, spec.v_dim)
        self.window = spec.window
        weights = spec.qk_norm_weights is QkNormWeights.HEAD
        self.q_norm = nn.RMSNorm(spec.qk_dim, eps=epsilon, elementwise_affine=weights) if spec.qk_norm else None
        self.k_norm = nn.RMSNorm(spec.qk_dim, eps=epsilon, elementwise_affine=weights) if spec.qk_norm else None
        self.project: Project = plain_linears
        self.core = core
        self.rotation = rotation
        self.recomputes_core = False

    def forward(self, states: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        projected = self.project(states, (self.q, self.k, self.v))
        query, key, value = (
            each.view(*each.shape[:-1], -1, dim).transpose(1, 2) for each, dim in zip(projected, self.dims, strict=True)
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.rotation is not None:
            query, key = self.rotation(query), self.rotation(key)
        if self.recomputes_core:
            heads: Tensor = checkpoint(self.core, query, key, value, self.window, use_reentrant=False)
        else:
            heads = self.core(query, key, value, self.window)
        mixed: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return mixed


# Context parallelism: sequences sharded over cp, with keys and values gathered, or heads exchanged for tokens.
#
# torch's own context parallelism does not run on CPUs; these cores run wherever torch.distributed does.


def chunks_of(rank: int, ranks: int) -> tuple[int, int]:
    """The two of 2 ``ranks`` chunks that a rank holds: the r-th and the r-th from the end."""
    return rank, 2 * ranks - 1 - rank


class GatheredKeys:
    """All-gather of keys and values (Llama 3, arXiv 2407.21783 sec. 3.3.2). The sequence is split into 2 cp chunks; rank r
    holds the r-th and the r-th from the end, which balances the pairs under the causal mask."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.chunks = chunks_of(dist.get_rank(group), self.ranks)
        chunks_by_rank = [chunk for rank in range(self.ranks) for chunk in chunks_of(rank, self.ranks)]
        self.order = [chunks_by_rank.index(chunk) for chunk in range(2 * self.ranks)]

    def positions(self, seq_len: int) -> Tensor:
        """Positions of both chunks."""
        size = seq_len // (2 * self.ranks)
        return torch.cat([torch.arange(chunk * size, (chunk + 1) * size) for chunk in self.chunks])

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Attention of each chunk of queries to all tokens up to its end."""
        width = key.shape[-1]
        # One all-gather for keys and values. Its chunks come by rank; ``order`` puts them in sequence.
        keys_values = gathered(torch.cat([key, value], dim=-1), self.group)
        pieces = [half for rank in keys_values.unbind(0) for half in rank.chunk(2, dim=2)]
        keys_values = torch.cat([pieces[place] for place in self.order], dim=2)
        outputs = []
        for chunk, part in zip(self.chunks, query.chunk(2, dim=2), strict=True):
            size = part.shape[2]
            visible = keys_values[:, :, : (chunk + 1) * size]
            outputs.append(causal_attention(part, visible[..., :width], visible[..., width:], window))
        return torch.cat(outputs, dim=2)


class ExchangedHeads:
    """All-to-all: this rank's tokens of all heads become all tokens of some heads, and back (DeepSpeed Ulysses, arXiv
    2309.14509 sec. 3.1). Rank r holds the r-th of cp chunks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.core = WholeCore()

    def positions(self, seq_len: int) -> Tensor:
        """Positions of one chunk."""
        size = seq_len // self.ranks
        return torch.arange(self.rank * size, (self.rank + 1) * size)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Attention between two all-to-alls."""
        query, key, value = (self._whole_sequences(each) for each in (query, key, value))
        heads = self.core(query, key, value, window)
        # [tokens of all ranks, own heads] back to [own tokens, all heads].
        blocks = torch.stack(heads.chunk(self.ranks, dim=2))
        return torch.cat(all_to_all_equal(blocks, self.group).unbind(0), dim=1)

    def _whole_sequences(self, heads: Tensor) -> Tensor:
        blocks = torch.stack(heads.chunk(self.ranks, dim=1))
        return torch.cat(all_to_all_equal(blocks, self.group).unbind(0), dim=2)


def core_of(communication: str, group: dist.ProcessGroup | None) -> Core:
    """The core for sequences sharded over ``group`` (None: whole sequences), by "all_gather" or "all_to_all"."""
    if group is None:
        return WholeCore()
    return ExchangedHeads(group) if communication == "all_to_all" else GatheredKeys(group)
