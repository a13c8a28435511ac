"""torch's process groups for the groups that a workload uses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from profiler.distributed.world import World
from runner.groups.degrees import Degrees
from runner.groups.group_ranks import RankGroups, ranks_of_group

CHANNEL = "pp_"
"""Prefix of the names of message channels, whose ranks are those of the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """This rank's group of a kind: torch's handle and the global ranks in it."""

    handle: Any
    ranks: tuple[int, ...]


def open_groups(world: World, names: Iterable[tuple[str, int]], degrees: Degrees) -> dict[tuple[str, int], RankGroup]:
    """This rank's group for each name and size that it belongs to.

    All ranks call this with the same names. Two names of the same ranks have handles of their own, as in a training
    framework: their operations do not queue behind each other.
    """
    handles = {}
    for name, ranks in names:
        world.begin(f"making the groups {name} of {ranks}")
        groups: RankGroups = ranks_of_group("pp_group" if name.startswith(CHANNEL) else name, ranks, degrees)
        handle = world.make_groups(groups)
        own = [one for one in groups if world.rank in one]
        if own:
            handles[name, ranks] = RankGroup(handle=handle, ranks=own[0])
    return handles


def close_groups(groups: Iterable[RankGroup]) -> None:
    """Destroy the groups, which frees their buffers."""
    for own in groups:
        dist.destroy_process_group(own.handle)
