"""Measured curves as read and as fitted, kept in the cache folder: reading them takes ten seconds, fitting
them half a minute.

A kept file lies under a hash of what it was made of, the source of what reads and fits included; one that is damaged or
cannot be written is passed over.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from profdb.refit import with_fits
from profdb.sample import ProfileDatabase
from profdb.store.data_file import load_profile, save_profile
from spec.errors import ExportError, ProfileError
from spec.program.cache_folder import cache_folder

ROOT = Path(__file__).resolve().parents[2]
MOST_KEPT = 24
"""Folders of curves and fitted profiles, some MB each; the oldest go first."""


def kept_fits(profile: ProfileDatabase) -> ProfileDatabase:
    """The profile with its fits, made once."""
    digest = hashlib.sha256(repr(profile.machine).encode() + _sources())
    for family, table in sorted(profile.tables.items(), key=lambda item: item[0].value):
        digest.update(f"{family.value} {table.content_hash()}".encode())
    return _kept("fitted", digest.hexdigest(), lambda: {"profile": with_fits(profile)})["profile"]


def kept_samples(folder: Path, read: Callable[[], dict[str, ProfileDatabase]]) -> dict[str, ProfileDatabase]:
    """Profiles by name as ``read`` makes them of the CSV files of a folder, made once."""
    digest = hashlib.sha256(_sources())
    for path in sorted(folder.glob("*.csv")):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return _kept("curves", digest.hexdigest(), read)


@cache
def _sources() -> bytes:
    """A hash of the source that reads samples and fits them, and of the sheets' names."""
    digest = hashlib.sha256()
    for path in (*sorted((ROOT / "profdb").rglob("*.py")), Path(__file__).with_name("hardware.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def _kept(
    kind: str, digest: str, make: Callable[[], dict[str, ProfileDatabase]]
) -> dict[str, ProfileDatabase]:
    folder = cache_folder()
    if folder is None:
        return make()
    place = folder / f"{kind}-{digest[:32]}"
    if place.is_dir():
        with suppress(ProfileError):
            os.utime(place)
            return {path.stem: load_profile(path) for path in sorted(place.glob("*.pt"))}
    made = make()
    with suppress(OSError, ExportError, ProfileError):
        _keep(place, made)
    return made


def _keep(place: Path, profiles: Mapping[str, ProfileDatabase]) -> None:
    """A folder with all profiles, there whole or not at all."""
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
    kinds = (*place.parent.glob("curves-*"), *place.parent.glob("fitted-*"))
    for old in sorted(kinds, key=lambda one: one.stat().st_mtime)[:-MOST_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
