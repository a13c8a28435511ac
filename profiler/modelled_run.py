"""A profile from a hardware sheet alone: every sample says that it is modelled."""

import datetime
import tempfile
from pathlib import Path

from profdb.fitting import with_fits
from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.data_file import load_profile, save_profile
from profiler.profiling_run import has_measurements
from spec.cluster.reader import read_cluster
from spec.errors import ProfileError


def check_writable(output: Path) -> None:
    """Make the folder of ``output``; ProfileError when that or writing into it fails."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise ProfileError(f"{output}: cannot be written ({error.strerror or error})") from error


def model_profile(name: str, output: Path, *, root: Path) -> tuple[ProfileDatabase, str]:
    """Write the modelled profile of a cluster to ``output``; the profile, and what was written in a line.

    Raises ConfigError for an unknown sheet and ProfileError for an output that holds measurements
    (models never displace them) or cannot be written.
    """
    from profdb.modelled.profile import modelled_samples

    cluster = read_cluster(name, root=root)
    stem = Path(name).stem if name.endswith(".toml") else name
    check_writable(output)
    if output.exists():
        held = load_profile(output)
        if has_measurements(held):
            raise ProfileError(
                f"{output}: holds measurements of {held.machine.gpu!r}; give another file with --output"
            )
    machine = MachineFacts(
        gpu=cluster.gpu.name,
        memory_bytes=int(cluster.gpu.memory_bytes),
        gpus_per_node=cluster.gpus_per_node,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        sm_clock_hz=cluster.gpu.boost_clock_hz,
        cluster=stem,
    )
    profile = with_fits(ProfileDatabase(machine=machine, samples=modelled_samples(cluster)))
    save_profile(output, profile)
    return profile, f"{output}: {len(profile.samples)} samples of {cluster.gpu.name}, modelled from {name}"
