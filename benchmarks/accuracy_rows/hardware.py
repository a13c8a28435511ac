"""From a row's GPU and fabric to a cluster: the GPU's sheet, with the fabric the row states."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.accuracy_rows.row import Row, RowError
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import known_clusters, read_cluster
from spec.errors import ConfigError

OWN_SHEETS = Path(__file__).resolve().parent / "sheets"

# How a GPU's name starts, in the words of the schema and of nvidia-smi ("A100-SXM4-40GB", "H100 PCIe") -> sheet, under
# configs/clusters or, for parts that no vendor lists, in sheets/. The first that fits wins. Cards that differ from the
# module of their name in processors, memory or links (H100 NVL, H200 NVL, V100, A800 and H800 for PCIe) have no sheet.
PCIE, NO_CARD = r"(?=.*PCI[eE])", r"(?!.*(PCI[eE]|NVL\b))"
SHEET_OF: tuple[tuple[str, str], ...] = (
    (rf"A100{PCIE}.*40", "a100-pcie-40g"),
    (rf"A100{PCIE}", "a100-pcie-80g"),
    (r"A100.*40", "a100-sxm-40g"),
    (r"A100", "a100-sxm-80g"),
    (rf"A800{NO_CARD}", "a800"),
    (r"H100-96GB-HBM2e-500W", "h100-hbm2e-500w"),
    (rf"H100{PCIE}", "h100-pcie"),
    (rf"H100{NO_CARD}", "h100-sxm"),
    (rf"H200{NO_CARD}", "h200"),
    (r"GH200(?!.*14[14] ?GB)", "jupiter-booster"),
    (r"H20\b", "h20"),
    (rf"H800{NO_CARD}", "h800"),
    (r"B200", "b200"),
    (r"B300", "b300"),
    (r"GB200", "gb200-nvl72"),
    (r"GB300", "gb300-nvl72"),
    (rf"V100{NO_CARD}", "dgx2-v100"),
    (r"L40S", "l40s"),
    (r"L4(?!\w)", "l4"),
    (r"A10G", "aws-g5"),
    (r"A40(?!\w)", "a40"),
    (r"(RTX[ -]?)?A6000(?!.*Ada)", "rtx-a6000"),
    (r"((GeForce|RTX)[ -]?)*4090(?! ?D)", "rtx-4090"),
    (r"MI300X", "mi300x"),
    (r"MI325X", "mi325x"),
    (r"MI355X", "mi355x"),
)
VENDOR = r"((NVIDIA|Tesla|AMD|Instinct) )*"

# (start of the GPU's name, word of the fabric) -> the sheet with that network; the first that fits. InfiniBand is the
# network of the GPUs' own sheets.
NETWORKS: tuple[tuple[str, str, str], ...] = (
    ("A100", "EFA", "aws-p4d"),
    ("H200", "EFA", "aws-p5en"),
    ("B200", "EFA", "aws-p6-b200"),
    ("B300", "EFA", "aws-p5en"),
    ("", "EFA", "aws-p5"),
    ("", "RoCE", "gcp-a4"),
    ("", "TCPXO", "gcp-a3-mega"),
    ("", "Slingshot", "perlmutter"),
    ("", "Omni-Path", "jean-zay-a100"),
)

BITS_PER_BYTE = 8.0
GIGABIT = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Bytes/s per GPU between nodes, one way, and the NICs of a node; 0 where the row says nothing."""

    bandwidth: float
    nics: int


def fabric_of(text: str, gpus_per_node: int) -> Fabric | None:
    """The inter-node network in a row's words, None where they state no figure.

    Understood: "4x100 Gb/s per node", "8x200 Gb/s HDR", "800 Gb/s per node (4xHDR)", "400 Gb/s per GPU",
    "1.6 Tb/s per node".
    """
    many = re.search(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*(G|T)b/s", text)
    if many:
        count, each = int(many[1]), float(many[2]) * _scale(many[3])
        return Fabric(bandwidth=count * each / gpus_per_node, nics=count)
    one = re.search(r"(\d+(?:\.\d+)?)\s*(G|T)b/s", text)
    if not one and re.search(r"\b400G/GPU", text):
        return Fabric(bandwidth=400 * GIGABIT / BITS_PER_BYTE, nics=gpus_per_node)
    if not one:
        return None
    rate = float(one[1]) * _scale(one[2])
    if re.search(r"per GPU|/GPU", text):
        return Fabric(bandwidth=rate, nics=gpus_per_node)
    nics = re.search(r"\((\d+)x", text)
    return Fabric(bandwidth=rate / gpus_per_node, nics=int(nics[1]) if nics else 0)


def _scale(prefix: str) -> float:
    return GIGABIT / BITS_PER_BYTE * (1000.0 if prefix == "T" else 1.0)


def sheet_name(gpu: str) -> str:
    """The sheet of a GPU by its name; "" for an unknown one."""
    fitting = (sheet for start, sheet in SHEET_OF if re.match(VENDOR + start, gpu))
    return next(fitting, "")


def sheet_cluster(name: str, root: Path) -> ClusterSpec:
    """The cluster of a sheet name from sheets/ or configs/clusters; raises ConfigError."""
    own = OWN_SHEETS / f"{name}.toml"
    return read_cluster(str(own) if own.is_file() else name, root=root)


def cluster_of(row: Row, root: Path) -> ClusterSpec:
    """The cluster of a row. Raises RowError for a GPU without a sheet.

    Nodes are as large as the row says; where it states no inter-node figure the sheet's own network
    stands (Assumption: the vendor's reference system).
    """
    gpu = row.text("gpu")
    name = sheet_name(gpu)
    if not name:
        raise RowError(f"{row.path}:{row.line}: gpu = {gpu!r}: no hardware sheet for this GPU")
    try:
        cluster = sheet_cluster(name, root)
    except ConfigError as error:
        known = ", ".join(known_clusters(root))
        raise RowError(
            f"{row.path}:{row.line}: gpu = {gpu!r}: no sheet {name!r} (there are {known})"
        ) from error
    words = row.text("inter_node")
    network = network_sheet(gpu, words)
    if network:
        cluster = with_network(cluster, sheet_cluster(network, root))
    gpus_per_node = row.whole_or("gpus_per_node", cluster.gpus_per_node)
    return with_fabric(cluster, fabric_of(words, gpus_per_node))


def network_sheet(gpu: str, words: str) -> str:
    """The sheet of the network that ``words`` name; "" where they name none but the GPU's own."""
    return next((sheet for start, word, sheet in NETWORKS if gpu.startswith(start) and word in words), "")


def with_network(cluster: ClusterSpec, other: ClusterSpec) -> ClusterSpec:
    """The cluster with another's outermost domain and NICs."""
    return replace(
        cluster, domains=(*cluster.domains[:-1], other.domains[-1]), nics_per_node=other.nics_per_node
    )


def with_fabric(cluster: ClusterSpec, fabric: Fabric | None) -> ClusterSpec:
    """The cluster with its outermost domain at the fabric's rate."""
    if fabric is None:
        return cluster
    outer = replace(cluster.domains[-1], bandwidth=fabric.bandwidth)
    return replace(
        cluster,
        domains=(*cluster.domains[:-1], outer),
        nics_per_node=fabric.nics or cluster.nics_per_node,
    )
