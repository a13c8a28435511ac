"""The ranks of each group of a general workload, by the group's name and size."""

from collections.abc import Iterator

from runner.groups.degrees import Degrees
from workload.diagnostics import WorkloadError
from workload.traffic.ranks import rank_groups

RankGroups = tuple[tuple[int, ...], ...]
STAGE = "tp-cp-dp"


def ranks_of_group(group: str, ranks: int, degrees: Degrees) -> RankGroups:
    """All groups named ``group`` of ``ranks`` members each, in rank order; ``ranks`` 0 (a file without sizes) takes the
    likeliest.

    dp_group stands for every group of ranks with the same weights: dp x cp (Megatron-LM's), dp, a ZeRO shard of
    neighbours in it, and with sequence-parallel weights also tp. Raises WorkloadError for a size that no group of these
    degrees has.
    """
    sizes = []
    for groups in candidates(group, ranks, degrees):
        if not ranks or len(groups[0]) == ranks:
            return groups
        sizes.append(len(groups[0]))
    has = " or ".join(str(size) for size in dict.fromkeys(sizes)) or "none"
    raise WorkloadError(f"{group} of {ranks} ranks: {degrees.label()} has {has}")


def candidates(group: str, ranks: int, degrees: Degrees) -> Iterator[RankGroups]:
    """Groups that the name may stand for, the likeliest first."""
    dense = degrees.dense
    pipeline = rank_groups(dense, "pp")
    match group:
        case "tp_group" | "cp_group":
            yield rank_groups(dense, group.removesuffix("_group"))
        case "dp_group":
            yield from _copies(ranks, degrees)
        case "zero_replicate_group":
            for whole in (rank_groups(dense, "dp-cp"), rank_groups(dense, STAGE)):
                if ranks and len(whole[0]) % ranks == 0:
                    yield _every(whole, len(whole[0]) // ranks)
        case "ep_group":
            yield rank_groups(degrees.expert, "ep", independent_ep=True)
        case "ep_dp_group":
            yield rank_groups(degrees.expert, "dp", independent_ep=True)
        case "ep_tp_group":
            yield rank_groups(degrees.expert, "tp")
            yield rank_groups(degrees.expert, "tp-ep", independent_ep=True)
        case "wp_group":
            yield _neighbours(rank_groups(dense, STAGE), degrees.wp)
        case "pp_group":
            yield pipeline
        case "embedding_group":
            yield tuple(tuple(dict.fromkeys((one[0], one[-1]))) for one in pipeline)
        case "all":
            yield (tuple(range(degrees.world_size)),)


def _copies(ranks: int, degrees: Degrees) -> Iterator[RankGroups]:
    dense, stage = degrees.dense, rank_groups(degrees.dense, STAGE)
    if degrees.wp > 1:
        yield _every(stage, degrees.wp)
    whole = rank_groups(dense, "dp-cp")
    yield whole
    yield rank_groups(dense, "dp")
    # A ZeRO shard: neighbours in the data-parallel group, or in the stage where tp ranks have the same weights.
    for each in (whole, stage):
        if ranks and len(each[0]) % ranks == 0:
            yield _neighbours(each, ranks)


def _neighbours(groups: RankGroups, size: int) -> RankGroups:
    """Each group split into runs of ``size`` neighbours."""
    return tuple(one[low : low + size] for one in groups for low in range(0, len(one), size))


def _every(groups: RankGroups, stride: int) -> RankGroups:
    """Each group split into ``stride`` groups of members that are ``stride`` apart in it."""
    return tuple(one[first::stride] for one in groups for first in range(stride))
