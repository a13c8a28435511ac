"""The degrees of N plans as columns, everything the operations of one rank depend on, and their groups of ranks.

Rank order is fastest first: tp, cp, ep, dp, pp (Megatron-LM, ``RankGenerator``), so that an axis is a
number of ranks at a stride. The expert grid is etp, ep, edp, pp over the same ranks
(arXiv 2504.14960 sec. 3.2).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np

from ops.op import Axis
from spec.arrays import BoolArray, FloatArray, IntArray, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parallel degrees of N plans, each column a 1-D int64 array of length N.

    world = tp * cp * dp * pp = etp * ep * edp * pp. For isp, ``tp`` ranks share a sequence and
    ``wp`` ranks share the weights; both are laid over the same ranks (world = pp * wp * wdp), so wp
    is no further factor of the world size. Elsewhere wp is 1. ``zero_size`` ranks share one copy of what
    ``zero_stage`` shards (1 optimizer state, 2 gradients too, 3 parameters too) and divides dp * cp; under
    ulysses, whose weights all tp ranks hold, dp * cp * tp.
    ``optimizer_offload`` is the share of the optimizer that lives and runs on the host, a float64 column, and
    ``offloaded_layers`` keep there what they save for the backward (ops.data_parallel.offload).
    """

    world_size: int
    tp: IntArray
    cp: IntArray
    dp: IntArray
    pp: IntArray
    ep: IntArray
    etp: IntArray
    wp: IntArray
    zero_stage: IntArray
    zero_size: IntArray
    micro_batch: IntArray
    optimizer_offload: FloatArray
    offloaded_layers: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: IntArray) -> "Layout":
        """Returns these rows, in that order."""
        columns = (column[rows] for column in attrgetter(*COLUMNS)(self))
        return Layout(world_size=self.world_size, **dict(zip(COLUMNS, columns, strict=True)))

    @property
    def edp(self) -> IntArray:
        """Returns the ranks that hold the same experts (arXiv 2504.14960 sec. 3)."""
        return self.world_size // (self.pp * self.ep * self.etp)

    @property
    def wdp(self) -> IntArray:
        """Returns the weight groups per pipeline stage."""
        return self.world_size // (self.pp * self.wp)

    def constant(self, value: int) -> IntArray:
        """Returns a column that holds one value."""
        return np.full(len(self), value, dtype=np.int64)

    def tp_if(self, cut: bool) -> IntArray:
        """Returns the parts of something that is ``cut`` over tp, or whole."""
        return self.tp if cut else self.constant(1)

    @staticmethod
    def of(world_size: int, **columns: object) -> "Layout":
        """Returns a layout from plain numbers or sequences; degrees left out are 1, sharding and offloading 0, and dp
        fills the world."""
        defaults = {"zero_stage": 0, "optimizer_offload": 0.0, "offloaded_layers": 0}
        # dp is no input: it is what the world has left after tp, cp and pp.
        names = tuple(name for name in COLUMNS if name != "dp")
        values = (np.atleast_1d(np.asarray(columns.get(name, defaults.get(name, 1)))) for name in names)
        whole = dict(zip(names, np.broadcast_arrays(*values), strict=True))
        for name, column in whole.items():
            dtype = np.float64 if name == "optimizer_offload" else np.int64
            whole[name] = np.ascontiguousarray(column, dtype=dtype)
        dp = world_size // (whole["tp"] * whole["cp"] * whole["pp"])
        return Layout(world_size=world_size, dp=dp, **whole)


COLUMNS = tuple(column.name for column in fields(Layout) if column.name != "world_size")


def unique_rows(columns: tuple[IntArray | FloatArray, ...]) -> tuple[IntArray, IntArray]:
    """Returns the indices of the first of each distinct row, and for each row the index of its distinct one."""
    # Every column becomes a digit of one mixed-radix number, so that a single np.unique compares whole rows.
    packed = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        packed = packed * len(values) + codes
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The shape of an axis' groups for N plans.

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

# (ranks, stride) of each axis in the order tp, cp, dp, pp of the dense grid and etp, ep, edp, pp of the experts'
# grid.
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
    # Of a typed plan more shards than ranks may be asked for, which a rule refuses: one copy then.
    Axis.ZERO_REPLICATE: lambda one: (np.maximum(one.dp * one.cp // one.zero_size, 1), one.tp * one.zero_size),
    # first and last stage of a pipeline, which share tied embeddings
    Axis.EMBEDDING: lambda one: (np.minimum(one.pp, 2), one.tp * one.cp * one.dp * np.maximum(one.pp - 1, 1)),
}


def ranks_and_stride(axis: Axis, layout: Layout) -> RanksAndStride:
    """Returns the members of a group of ``axis`` and the distance between neighbours in rank order."""
    return PLACES[axis](layout)


def place(ranks: IntArray, stride: IntArray, world_size: int, domain_ranks: int) -> Group:
    """Returns groups of ``ranks`` members at ``stride``, laid on scale-up domains of ``domain_ranks``.

    Group starts range over the whole world, so a group whose span does not divide the domain (tp 6
    on 8) has members that straddle a border: its worst member group decides.
    """
    # A group spans ranks * stride consecutive ranks; a domain holds domain // stride of its members.
    domain = min(domain_ranks, world_size)
    span = ranks * stride
    inside = np.maximum(domain // stride, 1)
    # A world inside one domain cannot leave it, however far apart two of its ranks are.
    alone = world_size <= domain_ranks
    fits = (span <= domain) | alone
    # Even: every group of the axis falls on domain borders alike. A group inside a domain needs the span to divide
    # it, a longer one needs the stride to, or one member a domain.
    even = np.where(fits, domain % np.maximum(span, 1) == 0, (stride >= domain) | (domain % stride == 0))
    even |= alone
    even &= fits | (stride >= domain) | (ranks % inside == 0)
    intra = np.where(fits, ranks, np.minimum(inside, ranks))
    inter = ceil_div(ranks, intra)
    # The worst member group of an uneven axis lies over one domain more, with the fewest ranks in one of them.
    straddle = ~even
    inter = np.where(straddle, np.maximum(ceil_div(span, domain), 2), inter)
    inter = np.minimum(inter, ranks)
    intra = np.where(straddle, np.maximum(ranks // inter, 1), intra)
    # As many groups of the axis as fill a domain send through its way out at the same time.
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
    """Returns the shape of every plan's groups of ``axis`` on scale-up domains of ``domain_ranks`` GPUs."""
    ranks, stride = ranks_and_stride(axis, layout)
    return place(ranks, stride, layout.world_size, domain_ranks)


def neighbours(group: Group, domain_ranks: int) -> Group:
    """Returns the pair of ranks that a message to the next member of a group joins, the slowest of them.

    All members send at once, so every rank of a domain is a sibling.
    """
    crosses = group.inter > 1
    # Inside a domain the pairs of a span send at once; between domains every rank of it has its own message.
    span = np.minimum(domain_ranks, group.ranks * group.stride)
    return Group(
        ranks=np.minimum(group.ranks, 2),
        stride=group.stride,
        intra=np.where(crosses, 1, 2).astype(np.int64),
        inter=np.where(crosses, 2, 1).astype(np.int64),
        siblings=np.where(crosses, span, np.maximum(span // 2, 1)).astype(np.int64),
        uneven=group.uneven,
    )
