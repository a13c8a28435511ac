"""Which part of a scale-up domain of many nodes a scheduler gives a job: a segment.

Ranks fill one segment after another, a segment in each domain (a rack). Slurm's block topology takes the segment
of a job as a whole number of nodes that its node count divides by (slurm.schedmd.com, sbatch, --segment).
"""

from dataclasses import replace

from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError


def segmented(
    cluster: ClusterSpec, world_size: int, segment: int = 0, *, where: str = "--job"
) -> ClusterSpec:
    """The cluster with its innermost domain cut to the GPUs of it that a job of ``world_size`` gets.

    ``segment`` GPUs; 0: all where the world lies in one domain, else the largest power of two where that
    divides the world (degrees are powers of two: of 72, 64), else the most that do. A domain of one node or
    less is never cut. Raises ConfigError, naming ``where`` it was said, for a segment that is not whole nodes
    of a domain or does not divide the world.
    """
    domain = cluster.domains[0]
    possible = segments(cluster, world_size)
    if segment and segment not in possible:
        raise ConfigError(
            where=where,
            key="nvlink_segment",
            value=segment,
            allowed=f"0 or GPUs of one NVLink domain, whole nodes that divide {world_size} GPUs of {cluster.name}: "
            f"{', '.join(map(str, possible))}",
        )
    power = 1 << (domain.ranks.bit_length() - 1)
    alone = world_size <= domain.ranks
    ranks = segment or (power if power in possible and not alone else possible[-1])
    return replace(cluster, domains=(replace(domain, ranks=ranks), *cluster.domains[1:]))


def segments(cluster: ClusterSpec, world_size: int) -> tuple[int, ...]:
    """What a job may ask for, in GPUs, ascending: whole nodes that hold the world or divide it."""
    node, domain = cluster.gpus_per_node, cluster.scale_up_ranks
    if domain <= node:
        return (domain,)
    parts = range(node, domain + 1, node)
    return tuple(part for part in parts if part >= world_size or world_size % part == 0) or (domain,)
