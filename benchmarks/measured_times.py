"""Measured curves in the generic CSV form (docs/data_format.md), by GPU and as times of a cluster.

Times of a cluster come from its GPU's curves where there are any, with its hardware spec for what they lack; from the
curves of another GPU of the same architecture, each time the ratio of the two specs' modelled times (as
profdb.transfer.by_model restates samples); else from the spec alone. What the curves only model, and every group that
leaves a scale-up domain, comes from the cluster's own spec.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from profdb.cases import Family
from profdb.cost_model import CostModel, ProfileCostModel, ask
from profdb.importers.generic_csv import read_curves_csv
from profdb.modelled.cost_model import ModelledCostModel
from profdb.queries import Query, TimeEstimate
from profdb.refit import with_fits
from profdb.sample import MachineFacts, ProfileDatabase, Sample, Samples
from profdb.store.columns import SampleTable
from profdb.store.data_file import load_profile, save_profile
from profdb.store.merge import merge
from profdb.transfer import BY_MODEL_STD
from spec.arrays import BoolArray
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError, ExportError, ProfileError, UserError
from spec.files import cache_folder
from spec.origin import Origin

ROOT = Path(__file__).resolve().parent.parent
# Prefix of the name in the files' "gpu" column -> hardware spec.
SPECS = {"A100": "a100-sxm-80g", "H100": "h100-sxm", "H200": "h200", "B200": "b200"}
SPECS |= {"A800": "a800", "H800": "h800", "H20-": "h20", "B300": "b300", "GB20": "gb200-nvl72"}
SPECS |= {"GB30": "gb300-nvl72", "L40S": "l40s", "V100": "dgx2-v100"}
# The measured GPU whose times are transferred to another one of its architecture; without it, any other.
FIRST_LENDERS = ("a100-sxm-80g", "h100-sxm", "b200")
MOST_FOLDERS = 12
"""Folders of fitted curves in the cache, some MB each; the oldest go first."""


def read_folder(folder: Path) -> tuple[dict[str, list[Sample]], list[str]]:
    """Samples by GPU of all files in the generic form, and the names of other files."""
    if not folder.is_dir():
        raise ProfileError(f"{folder}: no such folder of curves")
    samples: dict[str, list[Sample]] = {}
    passed_over = []
    for path in sorted(folder.glob("*.csv")):
        try:
            result = read_curves_csv(path)
        except ProfileError as error:
            if "no known form" not in str(error):
                raise
            passed_over.append(path.name)
            continue
        for gpu, members in result.items():
            samples.setdefault(gpu, []).extend(members)
    if not samples:
        raise ProfileError(f"{folder}: no CSV file in the generic form of docs/data_format.md")
    return samples, passed_over


def tables_by_gpu(samples: dict[str, list[Sample]]) -> dict[str, dict[Family, SampleTable]]:
    """The samples of each GPU as tables by family."""
    return {
        gpu: ProfileDatabase(machine=MachineFacts(gpu=gpu), samples=result).tables for gpu, result in samples.items()
    }


@dataclass(slots=True, kw_only=True)
class MeasuredTimes:
    """Fitted profiles by the name of their hardware spec, and a cost model for each spec, which caches its look-ups."""

    fitted: Mapping[str, ProfileDatabase]
    root: Path = ROOT
    modelled: dict[str, ModelledCostModel] = field(default_factory=dict)

    def cost_model(self, cluster: ClusterSpec) -> CostModel:
        """The cost model of a cluster."""
        own = self._modelled(cluster)
        name = cluster.name.partition(":")[0]
        if name in self.fitted:
            return self._curves(name, own)
        names = sorted(self.fitted, key=lambda name: (name not in FIRST_LENDERS, name))
        for lender in (read_cluster(name, root=self.root) for name in names):
            if lender.gpu.architecture.name == cluster.gpu.architecture.name:
                here = self._modelled(lender)
                return TransferredTimes(lender=self._curves(lender.name, here), here=here, there=own)
        return own

    def _modelled(self, cluster: ClusterSpec) -> ModelledCostModel:
        return self.modelled.setdefault(repr(cluster), ModelledCostModel(cluster=cluster))

    def _curves(self, name: str, modelled: ModelledCostModel) -> ProfileCostModel:
        return ProfileCostModel(self.fitted[name], missing="modelled", modelled=modelled)


def measured_times(curves: Path | None, profiles: Path | None) -> MeasuredTimes:
    """The times of a folder of curves and a folder of profiles, both optional.

    They are fitted once (half a minute) and cached under a hash of the files and of the code that reads and fits them.
    Raises ConfigError for a path that is not a folder, ProfileError for a bad file in it.
    """
    paths = [*_files(curves, "--curves", "*.csv"), *_files(profiles, "--profiles", "*.pt")]
    digest = hashlib.sha256(repr(SPECS).encode())
    for path in (*paths, *sorted((ROOT / "profdb").rglob("*.py"))):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    cache = cache_folder()
    place = cache / f"curves-{digest.hexdigest()[:32]}" if cache else None
    if place and place.is_dir():
        with suppress(ProfileError):
            os.utime(place)
            return MeasuredTimes(fitted={path.stem: load_profile(path) for path in place.glob("*.pt")})
    fitted = {name: with_fits(profile) for name, profile in _profiles(curves, paths).items()}
    if place:
        with suppress(OSError, ExportError, ProfileError):
            _keep(place, fitted)
    return MeasuredTimes(fitted=fitted)


def _files(folder: Path | None, key: str, pattern: str) -> list[Path]:
    if folder and not folder.is_dir():
        raise ConfigError(where="command line", key=key, value=str(folder), allowed="a folder")
    return sorted(folder.rglob(pattern)) if folder else []


def _profiles(curves: Path | None, paths: list[Path]) -> dict[str, ProfileDatabase]:
    """Samples by the name of a hardware spec, from curves and from profiles. Of profiles only those inside one domain
    count: between nodes they measure a network of their own."""
    result: dict[str, ProfileDatabase] = {}
    for gpu, samples in read_folder(curves)[0].items() if curves else ():
        if gpu[:4] in SPECS:
            name = SPECS[gpu[:4]]
            machine = MachineFacts(gpu=read_cluster(name, root=ROOT).gpu.name, cluster=name)
            result[name] = ProfileDatabase(machine=machine, samples=samples)
    for path in paths:
        if path.suffix == ".pt":
            profile = inside_one_domain(load_profile(path))
            name = profile.machine.cluster
            if not name:
                raise UserError(f"{path}: the profile names no hardware spec")
            result[name] = merge(result[name], profile).profile if name in result else profile
    return result


def inside_one_domain(profile: ProfileDatabase) -> ProfileDatabase:
    """The profile without collectives across domains."""
    if Family.COLLECTIVE not in profile.tables:
        return profile
    table = profile.tables[Family.COLLECTIVE]
    rows = np.flatnonzero(table.numbers["inter"] == 1).astype(np.int64)
    tables = {**profile.tables, Family.COLLECTIVE: table.take(rows)}
    return replace(profile, samples=Samples(tables))


def _keep(place: Path, profiles: Mapping[str, ProfileDatabase]) -> None:
    """Write a folder with all profiles, as a whole or not at all, and delete the oldest folders."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
    try:
        for name, profile in profiles.items():
            save_profile(temporary / f"{name}.pt", profile)
        if place.is_dir():  # damaged
            shutil.rmtree(place)
        temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in sorted(place.parent.glob("curves-*"), key=lambda one: one.stat().st_mtime)[:-MOST_FOLDERS]:
        shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredTimes:
    """Times of a cluster without curves, from another one's: ``lender`` is the measured cost model, ``here`` and ``there``
    are the models of its cluster and of the target."""

    lender: CostModel
    here: ModelledCostModel
    there: ModelledCostModel

    def linear_s(self, query: Query) -> TimeEstimate:
        """Times of a query of any kind; of collectives and messages inside a domain alone, where links are of one kind."""
        target = ask(self.there, query)
        usable = self._usable(query)
        if not usable.any():
            return target
        lender_times, here = ask(self.lender, query), ask(self.here, query)
        transferable = (lender_times.origin < int(Origin.MODELLED)) & (here.seconds > 0.0) & usable
        ratio = np.divide(target.seconds, here.seconds, out=np.ones_like(here.seconds), where=transferable)
        return TimeEstimate(
            seconds=np.where(transferable, lender_times.seconds * ratio, target.seconds),
            relative_std=np.where(transferable, np.hypot(lender_times.relative_std, BY_MODEL_STD), target.relative_std),
            origin=np.where(transferable, np.maximum(lender_times.origin, int(Origin.TRANSFERRED)), target.origin),
        )

    grouped_linear_s = attention_s = memory_bound_s = collective_s = p2p_s = optimizer_s = linear_s

    def cpu_s(self, kind: str) -> TimeEstimate:
        """CPU time, which does not depend on the GPU: the target's own."""
        return self.there.cpu_s(kind)

    def _usable(self, query: Query) -> BoolArray:
        columns = query.columns()
        if "inter" not in columns:
            return np.ones(query.size, dtype=np.bool_)
        same = self.here.cluster.domains[0].link == self.there.cluster.domains[0].link
        return np.asarray((columns["inter"] == 1) & same, dtype=np.bool_)
