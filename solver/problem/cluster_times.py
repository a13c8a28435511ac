"""Whose times answer: the profile's, the profile's transferred to another GPU, or the hardware spec's alone.

A profile answers for the GPU it was taken on, and for the network where it holds collectives. About another
cluster the hardware spec is asked instead, in the sizes that come up (profdb.modelled.cost_model), and every time says
that it is modelled; of the same GPU on another network only the collectives are. ``--transfer`` scales what was
measured on another GPU (profdb.transfer), and models what cannot be.
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
    """``cost_model`` answers for the cluster; ``profile`` is what it was made of, and ``source`` says so in words where
    that is not the profile as it is ("" where it is)."""

    cost_model: CostModel
    profile: ProfileDatabase
    source: str
    on_demand: OnDemand | None = None
    op_timers: dict[str, OpTimer] = field(default_factory=dict, compare=False, repr=False)

    def op_timer(self, cluster: ClusterSpec) -> OpTimer:
        """The one timer of operations of the cluster by these times."""
        name = repr(cluster)
        if name not in self.op_timers:
            self.op_timers[name] = OpTimer.on(cluster, self.cost_model)
        return self.op_timers[name]


BETWEEN_RANKS = frozenset({Family.COLLECTIVE, Family.OVERLAP, Family.EXPERT_EXCHANGE})
"""What was measured of a network, and tells nothing of another."""


class OtherNetwork(ProfileCostModel):
    """The curves of a profile for all that runs on one GPU, and the sheet's model of another network."""

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
        """The sheet between ranks."""
        return self.network if family is Family.COLLECTIVE else super().model_for(family, labels, across=across)


def times_of(
    file: ProfileFile, request: Request, parsed: ParsedRequest, device: MeasuringDevice | None = None
) -> ClusterTimes:
    """Times of the cluster asked about, by the profile at hand or without it.

    Raises ConfigError where ``--transfer`` has nothing to transfer, and where ``device`` would add to a profile of
    another cluster.
    """
    profile, cluster = file.profile, parsed.cluster
    of_its_gpu = profile is not None and profile.machine.gpu == cluster.gpu.name
    suits = of_its_gpu and profile is not None and suits_network(profile, parsed.hardware_spec, root=request.root)
    if device is not None and (request.transfer or not suits):
        raise ConfigError(
            "--measure_missing",
            "profile",
            str(file.path),
            f"a profile of {cluster.name}, to which what is measured is added",
        )
    on_demand = device.on_demand(profile, str(file.path)) if device is not None and profile is not None else None
    if request.transfer:
        return _transferred(file, cluster, request.root)
    if profile is None or not suits:
        return without_profile(file, cluster, missing=request.missing)
    modelled = ModelledCostModel(cluster=cluster) if request.missing == "modelled" else None
    cost_model = ProfileCostModel(profile, missing=request.missing, modelled=modelled, on_demand=on_demand)
    return ClusterTimes(cost_model=cost_model, profile=profile, source="", on_demand=on_demand)


def without_profile(file: ProfileFile, cluster: ClusterSpec, *, missing: str) -> ClusterTimes:
    """The sheet alone, or for the GPU of a measured profile the sheet's network."""
    profile, modelled = file.profile, ModelledCostModel(cluster=cluster)
    if profile is not None and profile.machine.gpu == cluster.gpu.name and file.measured:
        cost_model = OtherNetwork(profile, missing=missing, network=modelled)
        where = profile.machine.cluster or "an unnamed cluster"
        source = f"{file.path}, taken on {where}; the network of {cluster.name} is modelled from its hardware spec"
        return ClusterTimes(cost_model=cost_model, profile=cost_model.profile, source=source)
    nothing = ProfileDatabase(
        machine=MachineFacts(gpu=cluster.gpu.name, gpus_per_node=cluster.gpus_per_node, cluster=cluster.name)
    )
    other = f" ({file.path} is of {profile.machine.cluster or profile.machine.gpu})" if profile else ""
    hint = "; --transfer scales what was measured" if file.measured else ""
    return ClusterTimes(
        cost_model=ProfileCostModel(nothing, missing="modelled", modelled=modelled),
        profile=nothing,
        source=f"no {cluster.name} profile{other}: using the hardware spec{hint}",
    )


def suits_network(profile: ProfileDatabase, cluster: ClusterSpec, *, root: Path) -> bool:
    """Returns whether the profile's collectives are of this network; one without any suits every network. A sheet of
    the name that the profile holds may lie anywhere."""
    measured_on = profile.machine.cluster
    if Family.COLLECTIVE not in profile.tables or measured_on in ("", cluster.name):
        return True
    try:
        return read_cluster(measured_on, root=root).domains == cluster.domains
    except ConfigError:
        return False


def _transferred(file: ProfileFile, cluster: ClusterSpec, root: Path) -> ClusterTimes:
    """Times measured on another GPU, scaled to this one; the hardware spec models what cannot be."""
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
"""Transferred profiles that are kept, a few MB each; the oldest go first."""


def transfer(
    profile: ProfileDatabase,
    source: Path,
    measured_on: ClusterSpec,
    cluster: ClusterSpec,
    folder: Path | None,
) -> ProfileDatabase:
    """Returns the ``profile`` of the file ``source`` for ``cluster``, with fits; from ``folder`` where it was transferred before.
    A kept file that is damaged or cannot be written is passed over."""
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
    """A hash of the profile's file, both sheets and the source of what transfers."""
    digest = hashlib.sha256(source.read_bytes())
    digest.update(Path(profdb.transfer.__file__).read_bytes())
    digest.update((_model_digest(measured_on) + _model_digest(cluster)).encode())
    return digest.hexdigest()[:32]


def _model_digest(cluster: ClusterSpec) -> str:
    """A hash of the sheet and of the source that makes times of it."""
    here = Path(__file__).resolve().parents[2]
    sources = [here / "profdb" / "queries.py", *sorted((here / "profdb" / "modelled").rglob("*.py"))]
    for folder in ("ops", "spec"):
        sources += sorted((here / folder).glob("*.py"))
    digest = hashlib.sha256(repr(cluster).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]
