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

from dataclasses import dataclass

import numpy as np

from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.errors import ExportError

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
