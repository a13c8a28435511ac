"""Sequences cut over the ranks of cp: keys and values gathered, or heads exchanged for tokens.

torch's own context parallelism has no path for CPUs; these run wherever torch.distributed does.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from runner.reference.attention import Core, WholeCore, attended
from runner.reference.exchange import all_to_all_equal, gathered


def chunks_of(rank: int, ranks: int) -> tuple[int, int]:
    """The two of 2 ``ranks`` chunks that a rank holds: as many from the start as the other is from the end."""
    return rank, 2 * ranks - 1 - rank


class GatheredKeys:
    """All-gather of keys and values (Llama 3, arXiv 2407.21783 sec. 3.3.2). The sequence is cut into 2 cp chunks, of
    which rank r holds the r-th and the r-th from the end, so that every rank has as many pairs under the mask."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.chunks = chunks_of(dist.get_rank(group), self.ranks)
        held = [chunk for rank in range(self.ranks) for chunk in chunks_of(rank, self.ranks)]
        self.order = [held.index(chunk) for chunk in range(2 * self.ranks)]

    def positions(self, seq_len: int) -> Tensor:
        """Of both chunks."""
        size = seq_len // (2 * self.ranks)
        return torch.cat([torch.arange(chunk * size, (chunk + 1) * size) for chunk in self.chunks])

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Each chunk of queries against all that comes before it, and itself."""
        width = key.shape[-1]
        whole = gathered(torch.cat([key, value], dim=-1), self.group)
        pieces = [half for rank in whole.unbind(0) for half in rank.chunk(2, dim=2)]
        whole = torch.cat([pieces[place] for place in self.order], dim=2)
        outputs = []
        for chunk, part in zip(self.chunks, query.chunk(2, dim=2), strict=True):
            size = part.shape[2]
            seen = whole[:, :, : (chunk + 1) * size]
            outputs.append(attended(part, seen[..., :width], seen[..., width:], window))
        return torch.cat(outputs, dim=2)


class ExchangedHeads:
    """All-to-all: this rank's tokens of all heads become all tokens of its share of the heads, and back (DeepSpeed
    Ulysses, arXiv 2309.14509 sec. 3.1). Rank r holds the r-th of cp chunks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.core = WholeCore()

    def positions(self, seq_len: int) -> Tensor:
        """Of one chunk."""
        size = seq_len // self.ranks
        return torch.arange(self.rank * size, (self.rank + 1) * size)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Exchange, attend, exchange."""
        query, key, value = (self._whole_sequences(each) for each in (query, key, value))
        heads = self.core(query, key, value, window)
        blocks = torch.stack(heads.chunk(self.ranks, dim=2))
        return torch.cat(all_to_all_equal(blocks, self.group).unbind(0), dim=1)

    def _whole_sequences(self, heads: Tensor) -> Tensor:
        blocks = torch.stack(heads.chunk(self.ranks, dim=1))
        return torch.cat(all_to_all_equal(blocks, self.group).unbind(0), dim=2)


def core_of(way: str, group: dist.ProcessGroup | None) -> Core:
    """The core for sequences cut over ``group`` (None: whole), by "all_gather" or "all_to_all"."""
    if group is None:
        return WholeCore()
    return ExchangedHeads(group) if way == "all_to_all" else GatheredKeys(group)
