"""torch's handles of the groups that a workload uses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from profiler.distributed.world import World
from runner.groups.degrees import Degrees
from runner.groups.group_ranks import RankGroups, ranks_of_group

CHANNEL = "pp_"
"""How names of message streams begin; their members are those of the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """This rank's group of a kind: torch's handle and the global ranks in it."""

    handle: Any
    ranks: tuple[int, ...]


def open_groups(world: World, used: Iterable[tuple[str, int]], degrees: Degrees) -> dict[tuple[str, int], RankGroup]:
    """This rank's group for each name and size; those it has no part in are left out.

    Every rank calls this with the same. Kinds of the same ranks have handles of their own, as in a training
    framework: their operations do not queue behind each other.
    """
    result = {}
    for name, ranks in used:
        world.begin(f"making the groups {name} of {ranks}")
        listed: RankGroups = ranks_of_group("pp_group" if name.startswith(CHANNEL) else name, ranks, degrees)
        handle = world.make_groups(listed)
        mine = [one for one in listed if world.rank in one]
        if mine:
            result[name, ranks] = RankGroup(handle=handle, ranks=mine[0])
    return result


def close_groups(groups: Iterable[RankGroup]) -> None:
    """Take the groups down, so that others find room for their buffers."""
    for own in groups:
        dist.destroy_process_group(own.handle)
