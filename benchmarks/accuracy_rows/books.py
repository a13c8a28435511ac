"""The cost model for a row's cluster: measured curves where there are any, the hardware sheet
elsewhere. Each GPU's curves are fitted once, and each shape is asked of a sheet once."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.accuracy_rows.hardware import sheet_cluster, sheet_name
from benchmarks.accuracy_rows.kept_curves import kept_fits, kept_samples
from benchmarks.accuracy_rows.restated import RestatedBook
from profdb.cases import Family
from profdb.cost_model import CostModel, ProfileCostModel
from profdb.importers.generic_csv import read_curves_csv
from profdb.modelled.kept_book import KeptBook
from profdb.sample import MachineFacts, ProfileDatabase, Sample, Samples
from profdb.store.data_file import load_profile
from profdb.store.merge import merge
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError, ProfileError, UserError

# The measured GPU whose times are restated for another one of its generation; without it, any other.
FIRST_LENDERS = ("a100-sxm-80g", "h100-sxm", "b200")


@dataclass(slots=True, kw_only=True)
class Books:
    """Profiles by sheet name (``measured``), and the fitted ones made from them on demand."""

    root: Path
    measured: dict[str, ProfileDatabase]
    fitted: dict[str, ProfileDatabase] = field(default_factory=dict)
    sheets: dict[str, KeptBook] = field(default_factory=dict)

    def cost_model(self, cluster: ClusterSpec) -> CostModel:
        """Measured curves with the cluster's sheet for what they lack, or the sheet alone."""
        modelled = self._sheet(cluster)
        if cluster.name in self.measured:
            return self._curves(cluster.name, modelled)
        lender = self._lender(cluster)
        if lender is None:
            return modelled
        here = self._sheet(lender)
        return RestatedBook(lender=self._curves(lender.name, here), here=here, there=modelled)

    def _sheet(self, cluster: ClusterSpec) -> KeptBook:
        """The sheet's model, which remembers what this run asked it."""
        said = repr(cluster)
        if said not in self.sheets:
            self.sheets[said] = KeptBook(cluster, None)
        return self.sheets[said]

    def _lender(self, cluster: ClusterSpec) -> ClusterSpec | None:
        names = sorted(self.measured, key=lambda name: (name not in FIRST_LENDERS, name))
        sheets = [sheet_cluster(name, self.root) for name in names]
        return next(
            (one for one in sheets if one.gpu.architecture.name == cluster.gpu.architecture.name), None
        )

    def _curves(self, name: str, modelled: KeptBook) -> ProfileCostModel:
        if name not in self.fitted:
            self.fitted[name] = kept_fits(self.measured[name])
        return ProfileCostModel(self.fitted[name], missing="modelled", modelled=modelled)


def open_books(root: Path, curves: Path | None, profiles: Path | None) -> Books:
    """Books over a folder of curves (generic CSV form) and a folder of profiles, either or none.

    Raises ConfigError for a path that is no folder, ProfileError for a bad file in it.
    """
    measured = kept_samples(curves, lambda: _measured(curves, root)) if curves else {}
    for profile in _read_profiles(profiles) if profiles else []:
        name = profile.machine.cluster
        local = inside_one_domain(profile)
        measured[name] = merge(measured[name], local).profile if name in measured else local
    return Books(root=root, measured=measured)


def _measured(curves: Path, root: Path) -> dict[str, ProfileDatabase]:
    """The samples of every GPU that has a sheet, by the sheet's name."""
    found = {}
    for gpu, samples in _read_curves(curves).items():
        name = sheet_name(gpu)
        if name:
            machine = MachineFacts(gpu=sheet_cluster(name, root).gpu.name, cluster=name)
            found[name] = ProfileDatabase(machine=machine, samples=samples)
    return found


def _folder(path: Path, key: str) -> Path:
    if not path.is_dir():
        raise ConfigError(where="command line", key=key, value=str(path), allowed="a folder")
    return path


def _read_curves(folder: Path) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {}
    for path in sorted(_folder(folder, "--curves").glob("*.csv")):
        try:
            found = read_curves_csv(path)
        except ProfileError as error:
            if "no known form" not in str(error):
                raise
            continue
        for gpu, members in found.items():
            samples.setdefault(gpu, []).extend(members)
    if not samples:
        raise ProfileError(f"{folder}: no CSV file in the generic form of curves")
    return samples


def _read_profiles(folder: Path) -> list[ProfileDatabase]:
    paths = sorted(_folder(folder, "--profiles").rglob("*.pt"))
    found = [load_profile(path) for path in paths]
    for path, profile in zip(paths, found, strict=True):
        if not profile.machine.cluster:
            raise UserError(f"{path}: the profile names no cluster sheet")
    return found


def inside_one_domain(profile: ProfileDatabase) -> ProfileDatabase:
    """The profile without collectives across domains: they are its own fabric's, not the row's."""
    if Family.COLLECTIVE not in profile.tables:
        return profile
    tables = dict(profile.tables)
    table = tables[Family.COLLECTIVE]
    rows = np.flatnonzero(table.numbers["inter"] == 1).astype(np.int64)
    tables[Family.COLLECTIVE] = table.take(rows)
    return replace(profile, samples=Samples(tables))
