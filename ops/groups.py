"""Which ranks form a group of each axis, and how the group lies on the machine.

Rank order is fastest first: tp, cp, ep, dp, pp (Megatron-LM, ``RankGenerator``), so that an axis is a
number of ranks at a stride. The expert grid is etp, ep, edp, pp over the same ranks
(arXiv 2504.14960 sec. 3.2).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ops.layout import Layout
from ops.op import Axis
from spec.arrays import BoolArray, IntArray, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Shape of an axis' groups for N plans.

    ``intra`` ranks in each of ``inter`` scale-up domains; ``siblings`` groups of this axis share one
    domain's way out; ``uneven`` marks a group that straddles domains unevenly and is priced as its
    worst member group (fewest ranks per domain).
    """

    ranks: IntArray
    stride: IntArray
    intra: IntArray
    inter: IntArray
    siblings: IntArray
    uneven: BoolArray


RanksAndStride = tuple[IntArray, IntArray]

PLACES: dict[Axis, Callable[[Layout], RanksAndStride]] = {
    Axis.TP: lambda one: (one.tp, one.constant(1)),
    Axis.CP: lambda one: (one.cp, one.tp),
    Axis.DP: lambda one: (one.dp, one.tp * one.cp),
    Axis.DP_CP: lambda one: (one.dp * one.cp, one.tp),
    Axis.PP: lambda one: (one.pp, one.tp * one.cp * one.dp),
    Axis.ETP: lambda one: (one.etp, one.constant(1)),
    Axis.EP: lambda one: (one.ep, one.etp),
    Axis.EDP: lambda one: (one.edp, one.etp * one.ep),
    Axis.WP: lambda one: (one.wp, one.constant(1)),
    Axis.WDP: lambda one: (one.wdp, one.wp),
    Axis.SDP: lambda one: (one.dp * one.cp * one.tp, one.constant(1)),
    Axis.SDP_SHARD: lambda one: (one.zero_size, one.constant(1)),
    Axis.SDP_REPLICATE: lambda one: (one.dp * one.cp * one.tp // one.zero_size, one.zero_size),
    Axis.ZERO_SHARD: lambda one: (one.zero_size, one.tp),
    Axis.ZERO_REPLICATE: lambda one: (one.dp * one.cp // one.zero_size, one.tp * one.zero_size),
    Axis.EMBEDDING: lambda one: (
        np.minimum(one.pp, 2),
        one.tp * one.cp * one.dp * np.maximum(one.pp - 1, 1),
    ),
}


def ranks_and_stride(axis: Axis, layout: Layout) -> RanksAndStride:
    """Members of a group of ``axis`` and the distance between neighbours in rank order."""
    return PLACES[axis](layout)


def place(ranks: IntArray, stride: IntArray, world_size: int, domain_ranks: int) -> Group:
    """Lay groups of ``ranks`` members at ``stride`` on scale-up domains of ``domain_ranks``.

    Group starts range over the whole world, so a group whose span does not divide the domain (tp 6
    on 8) has members that straddle a border: its worst member group decides.
    """
    domain = min(domain_ranks, world_size)
    span = ranks * stride
    inside = np.maximum(domain // stride, 1)
    # A world inside one domain cannot leave it, however far apart two of its ranks are.
    alone = world_size <= domain_ranks
    fits = (span <= domain) | alone
    even = np.where(fits, domain % np.maximum(span, 1) == 0, (stride >= domain) | (domain % stride == 0))
    even |= alone
    even &= fits | (stride >= domain) | (ranks % inside == 0)
    intra = np.where(fits, ranks, np.minimum(inside, ranks))
    inter = ceil_div(ranks, intra)
    straddle = ~even
    inter = np.where(straddle, np.maximum(ceil_div(span, domain), 2), inter)
    inter = np.minimum(inter, ranks)
    intra = np.where(straddle, np.maximum(ranks // inter, 1), intra)
    siblings = np.where(inter > 1, np.maximum(domain // intra, 1), np.maximum(domain // ranks, 1))
    return Group(
        ranks=ranks,
        stride=stride,
        intra=np.asarray(intra, dtype=np.int64),
        inter=np.asarray(inter, dtype=np.int64),
        siblings=np.asarray(siblings, dtype=np.int64),
        uneven=np.asarray(straddle & (ranks > 1), dtype=np.bool_),
    )


def group_of(axis: Axis, layout: Layout, domain_ranks: int) -> Group:
    """The shape of every plan's groups of ``axis`` on scale-up domains of ``domain_ranks`` GPUs."""
    ranks, stride = ranks_and_stride(axis, layout)
    return place(ranks, stride, layout.world_size, domain_ranks)


def neighbours(group: Group, domain_ranks: int) -> Group:
    """The pair of ranks that a message to the next member of a group joins, the slowest of them.

    All members send at once, so every rank of a domain is a sibling.
    """
    crosses = group.inter > 1
    span = np.minimum(domain_ranks, group.ranks * group.stride)
    return Group(
        ranks=np.minimum(group.ranks, 2),
        stride=group.stride,
        intra=np.where(crosses, 1, 2).astype(np.int64),
        inter=np.where(crosses, 2, 1).astype(np.int64),
        siblings=np.where(crosses, span, np.maximum(span // 2, 1)).astype(np.int64),
        uneven=group.uneven,
    )
