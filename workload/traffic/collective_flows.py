"""Rank-to-rank traffic of collectives: flows as a table, bytes as a matrix."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.errors import ExportError
from spec.replaced_file import replaced_file
from workload.traffic.flows import Pattern, pattern

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


def traffic_matrix(
    world_size: int,
    groups: Sequence[Sequence[int]],
    collective: Collective,
    size_bytes: float,
    algorithm: str = "ring",
    domain_ranks: int = 0,
) -> FloatArray:
    """``flow_matrix`` of ``rank_flows``: a (world, world) array of bytes, row = sender."""
    flows = rank_flows(groups, collective, size_bytes, algorithm, domain_ranks=domain_ranks)
    return flow_matrix(flows, world_size)


def write_flows(path: str | os.PathLike[str], flows: RankFlows) -> None:
    """Write flows as CSV: group, stage, src, dst, size_bytes, messages."""
    columns = (flows.group, flows.stage, flows.src, flows.dst, flows.size_bytes, flows.messages)
    with replaced_file(path) as handle:
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
