"""Default output of a run: never a profile of another machine, and for a rehearsal never one with real times."""

from pathlib import Path

from profdb.store.data_file import load_profile
from spec.cluster.cluster import ClusterSpec

FOLDER = Path("prof_data")
REHEARSAL = FOLDER / "cpu.pt"
DEFAULT = FOLDER / "data.pt"


def default_output(kind: str, name: str, cluster: ClusterSpec | None) -> Path:
    """Returns the profile that a run on the device ``name`` (``kind`` cuda or cpu) adds to: data.pt when that is of
    this GPU or absent, else a file named after the GPU; for a processor always its own.

    Raises ProfileError when data.pt cannot be read.
    """
    if kind == "cpu":
        return REHEARSAL
    # Profiles name a GPU as its hardware spec does.
    gpu = cluster.gpu.name if cluster else name
    if not DEFAULT.exists() or load_profile(DEFAULT).machine.gpu == gpu:
        return DEFAULT
    return FOLDER / f"{cluster.name if cluster else file_stem(name)}.pt"


def file_stem(name: str) -> str:
    """Returns the name of a GPU as a file's: letters, digits and single dashes."""
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    return "-".join(words) or "gpu"
