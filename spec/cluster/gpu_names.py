"""The names a GPU goes by: the driver's, the sheet's own name of it, and the name of the sheet."""

from pathlib import Path

from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import known_clusters, read_cluster


def sheet_of_gpu(name: str, *, root: Path) -> ClusterSpec | None:
    """The sheet under ``root`` whose GPU is called ``name``, whatever the case; None when there is none.

    Of several sheets with one GPU it is the one that has its table, which alone names the driver's names.
    """
    found: ClusterSpec | None = None
    wanted = name.strip().casefold()
    for stem in known_clusters(root):
        cluster = read_cluster(stem, root=root)
        names = (stem, cluster.name, cluster.gpu.name, *cluster.gpu.device_names)
        if wanted in (each.casefold() for each in names):
            found = cluster if found is None or cluster.gpu.device_names else found
    return found
