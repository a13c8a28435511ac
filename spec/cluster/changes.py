"""What a machine has otherwise than its hardware spec: ``NAME:key=value:key=value``, in the keys of the spec's file.

``node.gpus`` reshapes the node, where nothing else is stated: domains inside it shrink or grow with it (bridges between
some of its GPUs keep theirs), links between processors stay, a GPU keeps its part of the NICs and of the links to the
host (rounded up to whole ones; of as many NICs as ``node.nics`` states) and in a mesh its links to the GPUs that are
left. The processors and their memory stay. Bandwidths are those of one GPU, which no other key changes.
"""

import copy
import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from spec.cluster.cluster import ClusterSpec, NetworkDomain
from spec.errors import ConfigError

CHANGE = re.compile(r":(?=[a-z][\w.-]*=)")


def changed_values(
    values: Mapping[str, Any], cluster: ClusterSpec, changes: Sequence[str], where: str
) -> dict[str, Any]:
    """Returns the ``values`` of a hardware spec's file, which is ``cluster``, with the ``changes``, and a name with them.

    Raises ConfigError, naming ``where``, for a table that the file lacks, and for GPUs of a node that leave no whole number
    in a domain.
    """
    result: dict[str, Any] = copy.deepcopy(dict(values))
    domains = {f"domains.{domain['name']}": domain for domain in result["domains"]}
    tables = {key: result[key] for key in ("gpu", "node", "host") if isinstance(result.get(key), dict)} | domains
    stated: dict[str, Any] = {}
    for change in changes:
        path, _, text = change.partition("=")
        if path.rpartition(".")[0] not in tables:
            allowed = f"KEY=VALUE with a key of {', '.join(f'{table}.' for table in tables)}"
            raise ConfigError(where=where, key=path, value=text, allowed=allowed)
        try:
            stated[path] = json.loads(text)
        except ValueError:
            stated[path] = text
    gpus = stated.get("node.gpus")
    follows = _of_node(cluster, gpus, stated, where) if type(gpus) is int and gpus > 0 else {}
    for path, value in (follows | stated).items():
        table, _, key = path.rpartition(".")
        tables[table][key] = value
    # One processor's PCIe, or one bridge, may be the whole node: nothing is left to cross.
    *inner, last = result["domains"]
    kept = [domain for at, domain in enumerate(inner) if not at or domain["ranks"] != inner[at - 1]["ranks"]]
    result["domains"] = [*kept, last]
    result["name"] = ":".join((cluster.name, *changes))
    return result


def _of_node(cluster: ClusterSpec, gpus: int, stated: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the figures that follow from ``gpus`` in a node, by their paths; ``stated`` are those that do not."""
    before = cluster.gpus_per_node
    first, last = cluster.domains[0], cluster.domains[-1]

    def ranks_of(domain: NetworkDomain) -> int:
        # Bridges between some GPUs of a node join as many in any; processors deal the others among them.
        bridged = domain.link in ("nvlink", "mesh") and domain.ranks < before
        least = min(domain.ranks, gpus) if bridged else math.ceil(domain.ranks * gpus / before)
        return domain.ranks if domain.ranks > before else least

    ranks = [ranks_of(domain) for domain in cluster.domains[:-1]]
    nested = all(outer % inner == 0 for inner, outer in pairwise(ranks)) and (gpus % ranks[0] == 0 or ranks[0] > gpus)
    if not nested or (first.pair_links and gpus > before):
        allowed = f"GPUs that fill whole domains, as the {before} of {cluster.name} do"
        raise ConfigError(where=where, key="node.gpus", value=gpus, allowed=allowed)
    result: dict[str, Any] = {
        f"domains.{one.name}.ranks": count for one, count in zip(cluster.domains, ranks, strict=False)
    }
    if first.link == "mesh":
        share = first.group_links(max(ranks[0], 2)) / first.group_links(first.ranks)
        result[f"domains.{first.name}.bandwidth"] = first.bandwidth * share
    if first.pair_links:
        rows = [" ".join(row.split()[: ranks[0]]) for row in first.pair_links[: ranks[0]]]
        result[f"domains.{first.name}.pair_links"] = rows
    for (inner, outer), count in zip(pairwise(cluster.domains), ranks, strict=False):
        if outer.links:
            result[f"domains.{outer.name}.bandwidth"] = outer.bandwidth * inner.ranks / count
    nics = stated.get("node.nics")
    if not isinstance(nics, int):
        result["node.nics"] = nics = math.ceil(cluster.nics_per_node * gpus / before)
    if cluster.nics_per_node and not last.links:
        result[f"domains.{last.name}.bandwidth"] = last.bandwidth * nics / gpus * before / cluster.nics_per_node
    if cluster.host and cluster.host.links:
        result["host.links"] = math.ceil(cluster.host.links * gpus / before)
    return result
