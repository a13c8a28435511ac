"""A cost model that answers one assumed time for everything computed and none for what is sent.

For workloads whose times come later (from a file, or from nowhere). Every answer says ASSUMED.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profdb.cost_model import CostModel, ProfileCostModel
from profdb.modelled.cost_model import ModelledCostModel
from profdb.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
    TimeEstimate,
)
from profdb.store.data_file import load_profile
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError
from spec.origin import Origin
from workload.aicb.aiob import MOST_US
from workload.aicb.flags import refuse

ComputeQuery = LinearQuery | GroupedLinearQuery | AttentionQuery | MemoryBoundQuery | OptimizerQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCostModel:
    """``seconds`` of every compute operation; collectives and launches take no time."""

    seconds: float

    def linear_s(self, query: ComputeQuery) -> TimeEstimate:
        """One fixed time."""
        return _assumed(query.size, self.seconds)

    grouped_linear_s = attention_s = memory_bound_s = optimizer_s = linear_s

    def collective_s(self, query: CollectiveQuery | P2PQuery) -> TimeEstimate:
        """Nothing: a workload file holds bytes, not their seconds."""
        return _assumed(query.size, 0.0)

    p2p_s = collective_s

    def cpu_s(self, kind: str) -> TimeEstimate:
        """Nothing: the fixed time stands for a whole operation."""
        return _assumed(1, 0.0)


def _assumed(size: int, seconds: float) -> TimeEstimate:
    return TimeEstimate(
        seconds=np.full(size, seconds),
        relative_std=np.zeros(size),
        origin=np.full(size, int(Origin.ASSUMED), dtype=np.int64),
    )


# Where the compute times of a workload come from: a profile, an AIOB file, or one fixed time.

DEFAULT_PROFILE = Path("prof_data/data.pt")
DEFAULT_CLUSTER = "h100-sxm"
NO_TIME_US = 0.001  # AICB without AIOB writes 1 ns


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFlags:
    """Options about compute times; None is not given."""

    profile: Path | None = None
    comp_filepath: Path | None = None
    fixed_time_us: float | None = None
    aiob_enable: bool = False
    cluster: str | None = None
    missing: str = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSource:
    """A cost model on a cluster, and notes on its times. ``known``: from a profile or given."""

    cost_model: CostModel
    cluster: ClusterSpec
    known: bool
    notes: tuple[str, ...] = ()


def time_source(flags: TimeFlags, root: Path) -> TimeSource:
    """Returns the cost model that the flags request. Raises ConfigError for two sources at once, or as the profile
    and cluster readers do."""
    _check(flags)
    profile_path = flags.profile
    from_nowhere = flags.comp_filepath is None and flags.fixed_time_us is None
    if profile_path is None and flags.aiob_enable and from_nowhere:
        profile_path = root / DEFAULT_PROFILE
    if profile_path is not None:
        return _profiled(profile_path, flags, root)
    cluster = read_cluster(flags.cluster or DEFAULT_CLUSTER, root=root)
    time_us = NO_TIME_US if flags.fixed_time_us is None else flags.fixed_time_us
    note = f"assumed: every operation takes {time_us:g} us"
    if flags.comp_filepath is not None:
        note = f"compute times from {flags.comp_filepath}, whatever model and GPU it was taken on"
    elif flags.fixed_time_us is None:
        note += " (no --profile, --aiob_enable, --comp_filepath or --fixed_time_us)"
    return TimeSource(
        cost_model=FixedCostModel(seconds=time_us * 1e-6), cluster=cluster, known=not from_nowhere, notes=(note,)
    )


def _profiled(path: Path, flags: TimeFlags, root: Path) -> TimeSource:
    profile = load_profile(path)
    taken_on = profile.machine.cluster
    if not (flags.cluster or taken_on):
        raise refuse("cluster", None, f"{path} names no hardware spec: choose one")
    cluster = read_cluster(flags.cluster or taken_on, root=root)
    other = bool(taken_on) and taken_on != cluster.name
    if flags.cluster and other and read_cluster(taken_on, root=root).gpu.name != cluster.gpu.name:
        raise ConfigError(
            where="generate",
            key="--cluster",
            value=flags.cluster,
            allowed=f"a cluster of the GPU that {path} was taken on ({taken_on})",
        )
    missing = profile.missing(flags.missing)
    modelled = ModelledCostModel(cluster=cluster) if missing == "modelled" else None
    cost_model = ProfileCostModel(profile, missing=missing, modelled=modelled)
    return TimeSource(cost_model=cost_model, cluster=cluster, known=True)


def _check(flags: TimeFlags) -> None:
    names = ("profile", "comp_filepath", "fixed_time_us")
    given = [name for name in names if getattr(flags, name) is not None]
    if len(given) > 1:
        raise refuse(given[1], getattr(flags, given[1]), f"not together with --{given[0]}")
    fixed = flags.fixed_time_us
    if fixed is not None and not 0 <= fixed < MOST_US:
        raise refuse("fixed_time_us", fixed, f"microseconds, 0 or more and below {MOST_US:.0f}")
