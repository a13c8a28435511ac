"""Point-to-point decomposition: which member of a group sends how much to which other member.

Shares are fractions of ``size_bytes``, the whole array on one rank (``spec.collectives``). Members are
positions 0..n-1 of the group in the order given; rings and trees follow that order (Assumption: the
library's rings follow the rank order of the group, as NCCL's do on a fully connected node).

Totals over all members, for n ranks in m domains of k (n = m k):

| collective | ring, tree, direct | hierarchical |
|---|---|---|
| all_reduce | 2 (n-1) | 2 (n-1) |
| all_gather, reduce_scatter, broadcast | n-1 | n-1 |
| all2all | n-1 | (n-1) + (m-1)(k-1): the extra hop inside the domain |
| p2p | n-1: each member to the next | - |

Sources: ring and tree as in nccl-tests doc/PERFORMANCE.md; two trees of half the array each as in
Sanders, Speck, Traeff 2009 (Two-tree algorithms), which NCCL's src/graph/trees.cc builds; all-to-all by
way of the sender's neighbour on the receiver's rail as NCCL's PXN does.
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.errors import ExportError
from spec.files import atomic_file

ALGORITHMS = ("ring", "tree", "direct", "hierarchical")
_GATHERS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Flows between positions of a group: ``share`` of size_bytes in ``messages`` pieces, in ``stage``
    order (flows of one stage run together)."""

    src: IntArray
    dst: IntArray
    share: FloatArray
    messages: IntArray
    stage: IntArray


def pattern(collective: Collective, ranks: int, *, algorithm: str = "ring", domains: int = 1) -> Pattern:
    """The flows of one ``collective`` among ``ranks`` members; empty for a group of one.

    ``algorithm``: ring, tree (all_reduce and broadcast), direct (all2all), hierarchical (``domains``
    equal blocks of members, inside and across them). An all-to-all has no ring: it is always direct or
    hierarchical; p2p is always neighbour to neighbour. Raises ExportError for what does not exist.
    """
    if algorithm not in ALGORITHMS:
        raise ExportError(f"algorithm {algorithm!r} is unknown; known: {', '.join(ALGORITHMS)}")
    if ranks < 1 or domains < 1 or ranks % domains:
        raise ExportError(f"a group of {ranks} ranks cannot lie evenly in {domains} domains")
    if ranks == 1:
        return _joined([])
    if collective is Collective.P2P:
        return _joined([_chain(ranks)])
    if algorithm == "hierarchical":
        return _hierarchical(collective, domains, ranks // domains)
    if collective is Collective.ALL_TO_ALL:
        if algorithm == "tree":
            raise ExportError("all2all has no tree; use direct or hierarchical")
        return _joined([_direct(ranks)])
    if algorithm == "direct":
        raise ExportError(f"{collective.value} has no direct form here; use ring, tree or hierarchical")
    if algorithm == "tree":
        return _tree(collective, ranks)
    if collective is Collective.BROADCAST:
        return _joined([_chain(ranks)])
    return _joined([_ring(collective, np.arange(ranks)[None, :], 1.0)])


def _flat(src: IntArray, dst: IntArray, share: float, messages: int) -> Pattern:
    size = src.size
    return Pattern(
        src=src.ravel().astype(np.int64),
        dst=dst.ravel().astype(np.int64),
        share=np.full(size, share),
        messages=np.full(size, messages, dtype=np.int64),
        stage=np.zeros(size, dtype=np.int64),
    )


def _joined(stages: list[Pattern]) -> Pattern:
    """Patterns one after another, numbered by stage; empty ones drop out."""
    kept = [stage for stage in stages if stage.src.size]
    whole = np.zeros(0, dtype=np.int64)
    return Pattern(
        src=np.concatenate([whole, *(each.src for each in kept)]),
        dst=np.concatenate([whole, *(each.dst for each in kept)]),
        share=np.concatenate([np.zeros(0), *(each.share for each in kept)]),
        messages=np.concatenate([whole, *(each.messages for each in kept)]),
        stage=np.concatenate([whole, *(each.stage + number for number, each in enumerate(kept))]),
    )


def _ring(collective: Collective, members: IntArray, share: float) -> Pattern:
    """Rings over the rows of ``members``; each member sends n-1 (all-reduce 2(n-1)) pieces of 1/n."""
    ranks = members.shape[1]
    if ranks == 1:
        return _joined([])
    messages = (ranks - 1) * (1 if collective in _GATHERS else 2)
    return _flat(members, np.roll(members, -1, axis=1), share * messages / ranks, messages)


def _chain(ranks: int) -> Pattern:
    first = np.arange(ranks - 1)
    return _flat(first, first + 1, 1.0, 1)


def _direct(ranks: int) -> Pattern:
    src, dst = np.nonzero(~np.eye(ranks, dtype=bool))
    return _flat(src, dst, 1.0 / ranks, 1)


def _parents(ranks: int) -> IntArray:
    """Parent of each position in a binary in-order tree, -1 at the root.

    A position's level is its lowest set bit; its parent clears that bit and sets the next one, or only
    clears it where that leads outside.
    """
    parents = np.full(ranks, -1, dtype=np.int64)
    for position in range(1, ranks):
        bit = position & -position
        up = (position ^ bit) | (bit << 1)
        parents[position] = up if up < ranks else position ^ bit
    return parents


def _tree(collective: Collective, ranks: int) -> Pattern:
    if collective not in (Collective.ALL_REDUCE, Collective.BROADCAST):
        raise ExportError(f"{collective.value} has no tree; use ring or hierarchical")
    members = np.arange(ranks)
    parents = _parents(ranks)
    child, parent = members[parents >= 0], parents[parents >= 0]
    if collective is Collective.BROADCAST:
        return _joined([_flat(parent, child, 1.0, 1)])
    # The second tree is the first one mirrored (n even) or shifted by one (n odd), so that a leaf of one is
    # an inner member of the other.
    twin = ranks - 1 - members if ranks % 2 == 0 else (members + 1) % ranks
    low = np.concatenate([child, twin[child]])
    high = np.concatenate([parent, twin[parent]])
    return _joined([_flat(low, high, 0.5, 1), _flat(high, low, 0.5, 1)])


def _hierarchical(collective: Collective, domains: int, inside: int) -> Pattern:
    blocks = np.arange(domains * inside).reshape(domains, inside)
    rails = blocks.T
    if collective is Collective.ALL_REDUCE:
        return _joined(
            [
                _ring(Collective.REDUCE_SCATTER, blocks, 1.0),
                _ring(Collective.ALL_REDUCE, rails, 1.0 / inside),
                _ring(Collective.ALL_GATHER, blocks, 1.0),
            ]
        )
    if collective in _GATHERS:
        stages = [_ring(collective, rails, 1.0 / inside), _ring(collective, blocks, 1.0)]
        return _joined(stages if collective is Collective.ALL_GATHER else stages[::-1])
    if collective is Collective.BROADCAST:
        heads = blocks[:, 0]
        across = _flat(heads[:-1], heads[1:], 1.0, 1)
        return _joined([across, _flat(blocks[:, :-1], blocks[:, 1:], 1.0, 1)])
    return _rail_all_to_all(domains, inside)


def _rail_all_to_all(domains: int, inside: int) -> Pattern:
    """Inside the domain to the neighbour on the receiver's rail, then along that rail."""
    ranks = domains * inside
    members = np.arange(ranks)
    src, dst = np.nonzero((members[:, None] // inside == members // inside) & ~np.eye(ranks, dtype=bool))
    # What a neighbour gets: its own part and, for each other domain, the part of the member on its rail.
    hand_over = _flat(src, dst, domains / ranks, domains)
    src, dst = np.nonzero(
        (members[:, None] % inside == members % inside) & (members[:, None] // inside != members // inside)
    )
    # Along a rail: the parts of all `inside` members of the sending domain.
    return _joined([hand_over, _flat(src, dst, inside / ranks, inside)])


# Rank-to-rank traffic of collectives: flows as a table, bytes as a matrix.

# 8192 x 8192 float64 are 512 MiB.
MAX_CELLS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFlows:
    """Flows between ranks, one array entry each: rank ``src`` sends ``size_bytes`` to ``dst`` in
    ``messages`` equal pieces; ``group`` counts the groups as given, flows of one ``stage`` run together."""

    group: IntArray
    stage: IntArray
    src: IntArray
    dst: IntArray
    size_bytes: FloatArray
    messages: IntArray


def rank_flows(
    groups: Sequence[Sequence[int]],
    collective: Collective,
    size_bytes: float,
    algorithm: str = "ring",
    *,
    domain_ranks: int = 0,
) -> RankFlows:
    """All flows when every group runs ``collective`` once on ``size_bytes`` (whole array on one rank).

    ``algorithm``: see ``workload.traffic.flows.pattern``; ``domain_ranks``: ranks of a scale-up domain, needed for
    ``hierarchical`` only: a group must then hold equally many ranks of each domain it touches, domain by
    domain. Raises ExportError for that, a negative rank, or a rank twice in a group.
    """
    if not np.isfinite(size_bytes) or size_bytes < 0:
        raise ExportError(f"size_bytes = {size_bytes}: must be finite and not negative")
    members = [_members(ranks) for ranks in groups]
    patterns = [_group_pattern(each, collective, algorithm, domain_ranks) for each in members]
    whole = np.zeros(0, dtype=np.int64)
    joined = list(zip(members, patterns, strict=True))
    return RankFlows(
        group=np.repeat(np.arange(len(groups)), [each.src.size for each in patterns]),
        stage=np.concatenate([whole, *(each.stage for each in patterns)]),
        src=np.concatenate([whole, *(ranks[each.src] for ranks, each in joined)]),
        dst=np.concatenate([whole, *(ranks[each.dst] for ranks, each in joined)]),
        size_bytes=np.concatenate([np.zeros(0), *(each.share * size_bytes for each in patterns)]),
        messages=np.concatenate([whole, *(each.messages for each in patterns)]),
    )


def flow_matrix(flows: RankFlows, world_size: int, *, ranks_per_cell: int = 1) -> FloatArray:
    """Bytes from row to column as a (cells, cells) float64 array.

    A cell sums ``ranks_per_cell`` consecutive ranks (8 gives a node-by-node matrix of 8-GPU nodes).
    Raises ExportError for ranks outside the world or more than 8192 x 8192 cells.
    """
    if world_size < 1 or ranks_per_cell < 1:
        raise ExportError(f"world size {world_size} and ranks per cell {ranks_per_cell} must be at least 1")
    cells = -(-world_size // ranks_per_cell)
    if cells > MAX_CELLS:
        raise ExportError(
            f"a traffic matrix of {cells} x {cells} cells is too large; use at least "
            f"{-(-world_size // MAX_CELLS)} ranks per cell"
        )
    highest = max(int(flows.src.max(initial=0)), int(flows.dst.max(initial=0)))
    if highest >= world_size:
        raise ExportError(f"rank {highest} is outside the world of {world_size}")
    matrix = np.zeros((cells, cells))
    np.add.at(matrix, (flows.src // ranks_per_cell, flows.dst // ranks_per_cell), flows.size_bytes)
    return matrix


def write_flows(path: str | os.PathLike[str], flows: RankFlows) -> None:
    """Write flows as CSV: group, stage, src, dst, size_bytes, messages."""
    columns = (flows.group, flows.stage, flows.src, flows.dst, flows.size_bytes, flows.messages)
    with atomic_file(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["group", "stage", "src", "dst", "size_bytes", "messages"])
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))


def _group_pattern(ranks: IntArray, collective: Collective, algorithm: str, domain_ranks: int) -> Pattern:
    if algorithm != "hierarchical":
        return pattern(collective, ranks.size, algorithm=algorithm)
    if domain_ranks < 1:
        raise ExportError("hierarchical traffic needs the ranks per scale-up domain")
    domains = ranks // domain_ranks
    num_domains = len(np.unique(domains))
    inside = ranks.size // num_domains
    even = ranks.size % num_domains == 0 and bool(
        np.all(domains.reshape(num_domains, inside) == domains[::inside, None])
    )
    if not even:
        raise ExportError(
            f"group {_shown(ranks)} lies unevenly on domains of {domain_ranks} ranks; hierarchical needs equal parts"
        )
    return pattern(collective, ranks.size, algorithm=algorithm, domains=num_domains)


def _members(ranks: Sequence[int]) -> IntArray:
    members = np.asarray(ranks, dtype=np.int64)
    if members.ndim != 1 or members.size == 0:
        raise ExportError("a group needs at least one rank")
    if members.min() < 0:
        raise ExportError(f"group {_shown(members)} has a negative rank")
    if np.unique(members).size != members.size:
        raise ExportError(f"group {_shown(members)} names a rank twice")
    return members


def _shown(ranks: IntArray) -> str:
    return f"[{', '.join(map(str, ranks[:8].tolist()))}{', ...' if ranks.size > 8 else ''}]"
