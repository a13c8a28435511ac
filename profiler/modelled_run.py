"""A profile from a hardware spec alone: every sample has the origin MODELLED."""

import datetime
import sys
import tempfile
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from profdb.refit import with_fits
from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.data_file import load_profile, save_profile
from profdb.store.sole_writer import sole_writer
from profiler.output_file import FOLDER
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.errors import ProfileError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledProfile:
    """A modelled profile, its file, and a line of text about both."""

    profile: ProfileDatabase
    output: Path
    message: str


def check_output(output: Path, cluster: ClusterSpec) -> None:
    """Makes the folder of ``output``; raises ProfileError when that or writing into it fails, or when the file has
    what a model must not replace: measurements, or another GPU."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # A folder may exist without permission to write: found out before minutes of fitting.
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise ProfileError(f"{output}: cannot be written ({error.strerror or error})") from error
    if not output.exists():
        return
    existing = load_profile(output)
    if existing.is_measured:
        raise ProfileError(f"{output}: has measurements of {existing.machine.gpu!r}; give another file with --output")
    if existing.machine.gpu != cluster.gpu.name:
        raise ProfileError(f"{output}: has modelled times of {existing.machine.gpu!r}; give another file with --output")


def model_profile(name: str, output: Path | None, *, root: Path) -> ModelledProfile:
    """Returns the modelled profile of a cluster, written to ``output`` (None: prof_data/ and the spec's name), with a
    line of progress for each step on stderr.

    Raises ConfigError for an unknown hardware spec and ProfileError as check_output.
    """
    from profdb.modelled.profile import modelled_samples

    cluster = read_cluster(name, root=root)
    output = output or FOLDER / f"{cluster.name}.pt"
    check_output(output, cluster)
    machine = MachineFacts(
        gpu=cluster.gpu.name,
        memory_bytes=int(cluster.gpu.memory_bytes),
        gpus_per_node=cluster.gpus_per_node,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        sm_clock_hz=cluster.gpu.boost_clock_hz,
        cluster=cluster.name,
    )
    with sole_writer(output):
        tell(f"modelling times of {cluster.gpu.name}")
        profile = ProfileDatabase(machine=machine, samples=modelled_samples(cluster))
        # torch, which writes the file, takes two seconds to import: a thread does that during the fits.
        loading = threading.Thread(target=import_module, args=("torch",))
        loading.start()
        profile = with_fits(profile, tell=lambda family: tell(f"fitted the curves of {family}"))
        loading.join()
        save_profile(output, profile)
    message = f"{output}: {len(profile.samples)} samples of {cluster.gpu.name}, modelled from {name}"
    return ModelledProfile(profile=profile, output=output, message=message)


def tell(step: str) -> None:
    """Prints a line of progress, with a terminal or without."""
    print(step, file=sys.stderr, flush=True)
