"""Accuracy of collectives between nodes from a hardware spec, against published nccl-tests runs.

    python benchmarks/multinode_accuracy.py --runs FILE

FILE is a CSV file with a row for each message of a run: run, gpu, gpus_per_node, nodes, nics_per_node, nic_gbps,
fabric, collective, bytes (nccl-tests' size), time_us, quality. A run is predicted from the hardware spec of its GPU with
the row's NICs, and with the latency and line efficiency of a spec that has its fabric. Prints mean
|log(predicted / measured)|: the mean of a run's rows, then the mean over runs. Only good runs count, split at 1 MiB;
the series of unknown quality over 4 to 128 nodes is listed separately. Exits with 1 when a target is missed.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measured_times import SPECS  # noqa: E402
from profdb.modelled.cost_model import ModelledCostModel  # noqa: E402
from profdb.queries import CollectiveQuery  # noqa: E402
from spec.arrays import ints  # noqa: E402
from spec.cluster.cluster import ClusterSpec  # noqa: E402
from spec.cluster.reader import read_cluster  # noqa: E402
from spec.collectives import Collective  # noqa: E402
from spec.errors import ProfileError  # noqa: E402
from spec.program.command import exit_status  # noqa: E402
from spec.units import MIB  # noqa: E402

KINDS = {one.value: one for one in Collective} | {"sendrecv": Collective.P2P, "all_to_all": Collective.ALL_TO_ALL}
# (start of the GPU's name, word of the fabric, hardware spec with that network); the first that fits. InfiniBand is the
# network of the GPUs' own specs.
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
GIGABIT = 1e9 / 8.0
COLUMNS = ("run", "gpu", "gpus_per_node", "nodes", "nics_per_node", "nic_gbps", "fabric", "collective", "bytes")
COLUMNS += ("time_us", "quality")
NUMBERS = ("gpus_per_node", "nodes", "nics_per_node", "nic_gbps", "bytes", "time_us")
LEAST = {"nodes": 2, "bytes": 1, "gpus_per_node": 1}
FEWEST_RUNS = 3  # of a fabric, to have a target of its own
TARGETS = {"all": 0.15, "small": 0.30, "fabric": 0.20, "series": 0.15}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkScore:
    """Mean |log error| of ``runs`` runs, their mean log error (positive: predicted too slow), and the limit of the first
    (0: only reported)."""

    what: str
    runs: int
    rows: int
    error: float
    bias: float
    target: float

    @property
    def passed(self) -> bool:
        """True if the error is within its target."""
        return not self.target or self.error <= self.target


def main() -> int:
    """Read, predict, print. The exit status: 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="CSV file of nccl-tests runs")
    options = parser.parse_args()
    rows, passed_over = price_runs(read_runs(options.runs))
    scores = all_scores(rows)
    print(f"{'between nodes':28} {'runs':>5} {'rows':>5} {'|log|':>6} {'bias':>6}   limit")
    for score in scores:
        limit = f"{score.target:.2f}  {'ok' if score.passed else 'MISSED'}" if score.target else "-"
        print(f"{score.what:28} {score.runs:5d} {score.rows:5d} {score.error:6.3f} {score.bias:+6.3f}   {limit}")
    if passed_over:
        print(f"not predicted, without a hardware spec: {', '.join(passed_over)}")
    return 0 if all(score.passed for score in scores) else 1


def read_runs(path: Path) -> pd.DataFrame:
    """The rows of the file. Raises ProfileError for a file that is missing or no CSV, a missing column, and for values
    out of range."""
    try:
        rows = pd.read_csv(path)
    except (OSError, ValueError) as error:  # pandas' errors of parsing are ValueErrors
        raise ProfileError(f"--runs {path}: not a CSV file ({' '.join(str(error).split())})") from error
    missing = [name for name in COLUMNS if name not in rows]
    if missing:
        raise ProfileError(f"--runs {path}: no column {', '.join(missing)}")
    unknown = sorted(set(rows.collective) - set(KINDS))
    if unknown:
        raise ProfileError(f"--runs {path}: collective {', '.join(unknown)}; allowed: {', '.join(KINDS)}")
    try:
        rows = rows.astype(dict.fromkeys(NUMBERS, float))
    except ValueError as error:
        raise ProfileError(f"--runs {path}: {', '.join(NUMBERS)} must be numbers ({error})") from error
    wrong = [name for name, least in LEAST.items() if not (rows[name] >= least).all()]
    if wrong or not (rows.time_us > 0.0).all():
        raise ProfileError(
            f"{path}: {', '.join(wrong) or 'time_us'}: time_us must be positive, nodes two or more, bytes and "
            "gpus_per_node one or more"
        )
    return rows.fillna({"fabric": "", "nics_per_node": 0.0, "nic_gbps": 0.0})


def price_runs(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows of runs that a hardware spec can predict, with their ``log_error``, and the names of the other runs."""
    priced, passed_over = [], []
    for name, run in rows.groupby("run", sort=False):
        first = run.iloc[0]
        cluster = spec_of(first)
        if cluster is None:
            passed_over.append(str(name))
            continue
        query = CollectiveQuery(
            collective=KINDS[first.collective],
            size_bytes=ints(run.bytes),
            intra=ints(run.gpus_per_node),
            inter=ints(run.nodes),
            siblings=ints(np.ones(len(run))),
        )
        seconds = ModelledCostModel(cluster=cluster).collective_s(query).seconds
        priced.append(run.assign(log_error=np.log(seconds * 1e6 / run.time_us.to_numpy())))
    if not priced:
        raise ProfileError("no run of a GPU and a fabric that have a hardware spec")
    return pd.concat(priced, ignore_index=True), passed_over


def spec_of(row: pd.Series) -> ClusterSpec | None:
    """The GPU's hardware spec with the row's NICs and the network of its fabric's spec; None without such specs."""
    gpu = next((spec for start, spec in SPECS.items() if row.gpu.startswith(start)), None)
    network = network_spec(row.gpu, row.fabric) or (gpu if row.fabric.startswith("IB") else None)
    if gpu is None or network is None or not row.nics_per_node or not row.nic_gbps:
        return None
    own = read_cluster(gpu, root=ROOT)
    nics = int(row.nics_per_node)
    node = int(row.gpus_per_node) if row.gpus_per_node > 1 else own.gpus_per_node
    if row.gpus_per_node == 1:
        nics *= node
    outer = replace(read_cluster(network, root=ROOT).domains[-1], bandwidth=row.nic_gbps * GIGABIT * nics / node)
    inner = replace(own.domains[0], ranks=node)
    return replace(own, domains=(inner, outer), nics_per_node=nics, gpus_per_node=node)


def network_spec(gpu: str, words: str) -> str:
    """The hardware spec of the network that ``words`` name; "" for the GPU's own network."""
    return next((spec for start, word, spec in NETWORKS if gpu.startswith(start) and word in words), "")


def all_scores(rows: pd.DataFrame) -> list[NetworkScore]:
    """The scores of large and small messages, of each fabric and collective above 1 MiB, and of the series."""
    good = rows[rows.quality == "good"]
    large = good[good.bytes >= MIB]
    scores = [
        _score("1 MiB and more", large, TARGETS["all"]),
        _score("below 1 MiB", good[good.bytes < MIB], TARGETS["small"]),
    ]
    for fabric, part in large.groupby("fabric"):
        has_target = part.run.nunique() >= FEWEST_RUNS
        scores.append(_score(f"  {fabric}", part, TARGETS["fabric"] if has_target else 0.0))
    for kind, part in large.groupby("collective"):
        scores.append(_score(f"  {kind}", part, 0.0))
    series = rows[(rows.quality == "unknown") & (rows.collective == Collective.REDUCE_SCATTER.value)]
    scores.append(_score("reduce-scatter, 4-128 nodes", series, TARGETS["series"]))
    return [score for score in scores if score.runs]


def _score(what: str, rows: pd.DataFrame, target: float) -> NetworkScore:
    by = rows.assign(size=rows.log_error.abs()).groupby("run")[["size", "log_error"]].mean()
    return NetworkScore(
        what=what,
        runs=len(by),
        rows=len(rows),
        error=float(by["size"].mean()) if len(by) else 0.0,
        bias=float(by["log_error"].mean()) if len(by) else 0.0,
        target=target,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
