"""Measured profiles transferred to another GPU, kept in the cache folder: their curves take half a minute to fit."""

import hashlib
from contextlib import suppress
from pathlib import Path

import profdb.transfer
from profdb.modelled.kept_book import digest_of
from profdb.refit import with_fits
from profdb.sample import ProfileDatabase
from profdb.store.data_file import load_profile, save_profile
from profdb.transfer import transferred_profile
from spec.cluster.cluster import ClusterSpec
from spec.errors import ProfileError

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
    found = with_fits(transferred_profile(profile, measured_on, cluster))
    if path is not None:
        with suppress(OSError, ProfileError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            save_profile(path, found)
            for old in sorted(path.parent.glob("transferred-*.pt"), key=lambda one: one.stat().st_mtime)[
                :-MOST_FILES
            ]:
                old.unlink(missing_ok=True)
    return found


def _digest(source: Path, measured_on: ClusterSpec, cluster: ClusterSpec) -> str:
    """A hash of the profile's file, both sheets and the source of what transfers."""
    digest = hashlib.sha256(source.read_bytes())
    digest.update(Path(profdb.transfer.__file__).read_bytes())
    digest.update((digest_of(measured_on) + digest_of(cluster)).encode())
    return digest.hexdigest()[:32]
