"""The cost model of a cluster: from the profile, from a profile transferred from another GPU, or from the hardware spec.

A profile is valid for its own GPU and, if it has collectives, for its own network. For any other cluster the times are
modelled from the hardware spec as they are needed (profdb.modelled.cost_model), and their origin says so; for the same
GPU on another network only the collectives are modelled. ``--transfer`` scales the measurements of another GPU
(profdb.transfer) and models the rest.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import profdb.transfer
from profdb.cases import Family
from profdb.cost_model import CostModel, ProfileCostModel
from profdb.modelled.cost_model import ModelledCostModel
from profdb.on_demand import MeasuringDevice, OnDemand
from profdb.refit import with_fits
from profdb.sample import MachineFacts, ProfileDatabase, Samples
from profdb.store.columns import SampleTable
from profdb.store.data_file import load_profile, save_profile
from profdb.transfer import transferred_profile
from solver.problem.request import ParsedRequest, ProfileFile, Request
from solver.times.op_times import OpTimer
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError, ProfileError
from spec.files import cache_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTimes:
    """The ``cost_model`` of the cluster and the ``profile`` it reads; ``source`` describes the origin of the times, "" if
    that is the unchanged profile."""

    cost_model: CostModel
    profile: ProfileDatabase
    source: str
    on_demand: OnDemand | None = None
    op_timers: dict[str, OpTimer] = field(default_factory=dict, compare=False, repr=False)

    def op_timer(self, cluster: ClusterSpec) -> OpTimer:
        """Returns the timer of the cluster's operations, the same one for the same cluster."""
        name = repr(cluster)
        if name not in self.op_timers:
            self.op_timers[name] = OpTimer.on(cluster, self.cost_model)
        return self.op_timers[name]


BETWEEN_RANKS = frozenset({Family.COLLECTIVE, Family.OVERLAP, Family.EXPERT_EXCHANGE})
"""Families of samples that depend on the network."""


class OtherNetwork(ProfileCostModel):
    """The curves of a profile for everything on one GPU, and the hardware spec's model of another network."""

    def __init__(self, profile: ProfileDatabase, *, missing: str, network: CostModel) -> None:
        compute: dict[Family, SampleTable] = {
            family: table for family, table in profile.tables.items() if family not in BETWEEN_RANKS
        }
        super().__init__(
            replace(profile, samples=Samples(compute)),
            missing=missing,
            modelled=network if missing == "modelled" else None,
        )
        self.network = network

    def model_for(self, family: Family, labels: dict[str, str], *, across: bool) -> CostModel:
        """Returns the hardware spec's model for collectives."""
        return self.network if family is Family.COLLECTIVE else super().model_for(family, labels, across=across)


def times_of(
    file: ProfileFile, request: Request, parsed: ParsedRequest, device: MeasuringDevice | None = None
) -> ClusterTimes:
    """Returns the times of the requested cluster, from the profile if it is valid for it.

    Raises ConfigError if ``--transfer`` has nothing to transfer, and if ``device`` would add to a profile of another
    cluster.
    """
    profile, cluster = file.profile, parsed.cluster
    same_gpu = profile is not None and profile.machine.gpu == cluster.gpu.name
    is_valid = same_gpu and profile is not None and suits_network(profile, parsed.hardware_spec, root=request.root)
    if device is not None and (request.transfer or not is_valid):
        raise ConfigError(
            "--measure_missing",
            "profile",
            str(file.path),
            f"a profile of {cluster.name}, to which what is measured is added",
        )
    on_demand = device.on_demand(profile, str(file.path)) if device is not None and profile is not None else None
    if request.transfer:
        return _transferred(file, cluster, request.root)
    if profile is None or not is_valid:
        return without_profile(file, cluster, missing=request.missing)
    missing = profile.missing(request.missing)
    modelled = ModelledCostModel(cluster=cluster) if missing == "modelled" else None
    cost_model = ProfileCostModel(profile, missing=missing, modelled=modelled, on_demand=on_demand)
    source = f"{file.path}, published measurements; what they lack is modelled from the hardware spec"
    is_own = not profile.machine.rest or profile.machine.torch
    return ClusterTimes(cost_model=cost_model, profile=profile, source="" if is_own else source, on_demand=on_demand)


def without_profile(file: ProfileFile, cluster: ClusterSpec, *, missing: str) -> ClusterTimes:
    """Returns times from the hardware spec: all of them, or only those of the network if the profile is of the same GPU."""
    profile, modelled = file.profile, ModelledCostModel(cluster=cluster)
    if profile is not None and profile.machine.gpu == cluster.gpu.name and file.measured:
        cost_model = OtherNetwork(profile, missing=profile.missing(missing), network=modelled)
        where = profile.machine.cluster or "an unnamed cluster"
        source = f"{file.path}, taken on {where}; the network of {cluster.name} is modelled from its hardware spec"
        return ClusterTimes(cost_model=cost_model, profile=cost_model.profile, source=source)
    empty = ProfileDatabase(
        machine=MachineFacts(gpu=cluster.gpu.name, gpus_per_node=cluster.gpus_per_node, cluster=cluster.name)
    )
    other = f" ({file.path} is of {profile.machine.cluster or profile.machine.gpu})" if profile else ""
    hint = "; --transfer scales what was measured" if file.measured else ""
    return ClusterTimes(
        cost_model=ProfileCostModel(empty, missing="modelled", modelled=modelled),
        profile=empty,
        source=f"no {cluster.name} profile{other}: using the hardware spec{hint}",
    )


def suits_network(profile: ProfileDatabase, cluster: ClusterSpec, *, root: Path) -> bool:
    """Returns whether the profile's collectives are of this network, or it has none. The hardware specs are compared by
    the domains that the collectives reach: a spec with the profile's name may be another file."""
    measured_on = profile.machine.cluster
    if Family.COLLECTIVE not in profile.tables or measured_on in ("", cluster.name):
        return True
    inside = bool((profile.tables[Family.COLLECTIVE].numbers["inter"] == 1).all())
    reached = 1 if inside else len(cluster.domains)
    try:
        return read_cluster(measured_on, root=root).domains[:reached] == cluster.domains[:reached]
    except ConfigError:
        return False


def _transferred(file: ProfileFile, cluster: ClusterSpec, root: Path) -> ClusterTimes:
    """Returns times measured on another GPU and scaled to this one; those that cannot be scaled are modelled."""
    profile = file.profile
    if profile is None or not file.measured or profile.machine.gpu == cluster.gpu.name:
        raise ConfigError(
            "--transfer",
            "profile",
            str(file.path),
            f"measurements of another GPU than {cluster.gpu.name}: without any, leave --transfer out",
        )
    if not profile.machine.cluster:
        raise ConfigError(str(file.path), "machine.cluster", "", "the cluster that it was measured on")

    measured_on = read_cluster(profile.machine.cluster, root=root)
    transferred = transfer(profile, file.path, measured_on, cluster, cache_folder())
    source = f"{file.path} of {profile.machine.gpu}, transferred to {cluster.gpu.name} by the ratio of modelled times"
    modelled = ModelledCostModel(cluster=cluster)
    cost_model = ProfileCostModel(transferred, missing="modelled", modelled=modelled)
    return ClusterTimes(cost_model=cost_model, profile=transferred, source=source)


MOST_FILES = 6
"""Transferred profiles in the cache, a few MB each; the oldest are deleted first."""


def transfer(
    profile: ProfileDatabase, source: Path, measured_on: ClusterSpec, cluster: ClusterSpec, folder: Path | None
) -> ProfileDatabase:
    """Returns the ``profile`` of the file ``source`` for ``cluster``, with fits, from the cache ``folder`` if it was
    transferred before. A cached file that is damaged or cannot be written is ignored."""
    path = None if folder is None else folder / f"transferred-{_digest(source, measured_on, cluster)}.pt"
    if path is not None and path.exists():
        with suppress(ProfileError):
            return load_profile(path)
    result = with_fits(transferred_profile(profile, measured_on, cluster))
    if path is not None:
        with suppress(OSError, ProfileError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            save_profile(path, result)
            for old in sorted(path.parent.glob("transferred-*.pt"), key=lambda one: one.stat().st_mtime)[:-MOST_FILES]:
                old.unlink(missing_ok=True)
    return result


def _digest(source: Path, measured_on: ClusterSpec, cluster: ClusterSpec) -> str:
    """Returns a hash of everything that a transferred profile depends on: the file, both hardware specs and the code."""
    digest = hashlib.sha256(source.read_bytes())
    digest.update(Path(profdb.transfer.__file__).read_bytes())
    digest.update((_model_digest(measured_on) + _model_digest(cluster)).encode())
    return digest.hexdigest()[:32]


def _model_digest(cluster: ClusterSpec) -> str:
    """Returns a hash of a hardware spec and of the code that models its times."""
    here = Path(__file__).resolve().parents[2]
    sources = [here / "profdb" / "queries.py", *sorted((here / "profdb" / "modelled").rglob("*.py"))]
    for folder in ("ops", "spec"):
        sources += sorted((here / folder).glob("*.py"))
    digest = hashlib.sha256(repr(cluster).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]
