"""How well a sheet tells the exchange of tokens that sends each once to every place, against published DeepEP runs.

    python benchmarks/dispatch_accuracy.py --runs FILE

FILE is a CSV file with a row for each run: gpu, ranks, type, op, hidden, tokens, topk, dtype, bandwidth_GBps,
bottleneck, quality. Good runs of DeepEP's normal kernels on a GPU that has a sheet count. Their bandwidth is
the bytes of a rank's tokens, once for each rank (NVLink) or each node of 8 (RDMA) that has one of their
experts, its own included, over the time (DeepEP, README, "logical bandwidth"; tests/test_internode.py,
num_rdma_token_sent). Prints told and published GB/s and mean |log(told / published)|; exits with 1 when that
misses 0.2.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.published_runs import read_table  # noqa: E402
from ops.experts.routing import Routing, places_visited  # noqa: E402
from ops.layout import Layout, group_of  # noqa: E402
from ops.op import Axis, Comm, Phase, RoutedTokens  # noqa: E402
from ops.roles import Module, Role  # noqa: E402
from profdb.modelled.cost_model import ModelledCostModel  # noqa: E402
from solver.times.expert_exchange import exchanged  # noqa: E402
from spec.arrays import ints  # noqa: E402
from spec.cluster.cluster import ClusterSpec  # noqa: E402
from spec.cluster.reader import read_cluster  # noqa: E402
from spec.collectives import Collective  # noqa: E402
from spec.dtypes import dtype_bytes  # noqa: E402
from spec.errors import ProfileError, UserError  # noqa: E402

# "SM90" are GPUs with whole NVLinks: over 2 nodes they hand on 290 GB/s inside one, an H800 at most 200.
SHEETS = {"H800": "h800", "SM90": "h100-sxm", "SM100": "b200", "H20": "h20"}
COLUMNS = ("gpu", "ranks", "type", "op", "hidden", "tokens", "topk", "dtype", "bandwidth_GBps")
COLUMNS += ("bottleneck", "quality")
NUMBERS = ("ranks", "hidden", "tokens", "topk", "bandwidth_GBps")
DTYPES = ("bf16", "fp8")
# DeepSeek-V3's experts; between nodes its runs limit a token to four of them (tests/test_internode.py).
EXPERTS, MOST_NODES = 256, 4
TARGET = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One run in GB/s."""

    what: str
    told: float
    published: float

    @property
    def log_error(self) -> float:
        """log(told / published)."""
        return float(np.log(self.told / self.published))


def main(argv: Sequence[str] | None = None) -> int:
    """Read, price, print; 1 when the target is missed, 2 for what the user can mend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="CSV file of DeepEP runs")
    try:
        runs = told(read_runs(parser.parse_args(argv).runs))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for one in runs:
        print(f"{one.what:44} told {one.told:6.1f} published {one.published:6.1f} {one.log_error:+6.2f}")
    errors = np.asarray([one.log_error for one in runs])
    mean = float(np.abs(errors).mean())
    verdict = "ok" if mean <= TARGET else "MISSED"
    print(f"{len(runs)} runs, mean |log| {mean:.3f}, bias {errors.mean():+.3f}, limit {TARGET} {verdict}")
    return 0 if mean <= TARGET else 1


def read_runs(path: Path) -> pd.DataFrame:
    """Good runs of normal kernels on GPUs with a sheet. Raises ProfileError for a file of another form or none."""
    frame = read_table(path)
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise ProfileError(
            f"--runs {path}: columns must be {', '.join(COLUMNS)}; missing {', '.join(missing)}"
        )
    normal = frame["type"].astype(str).str.startswith("normal") & (frame["quality"] == "good")
    kept = frame[normal & frame["gpu"].isin(list(SHEETS))]
    if kept.empty:
        raise ProfileError(f"--runs {path}: no good run of normal kernels on {', '.join(SHEETS)}")
    numbers = kept[list(NUMBERS)].apply(pd.to_numeric, errors="coerce")
    if not (numbers >= 1).all(axis=None) or not set(kept["dtype"]) <= set(DTYPES):
        raise ProfileError(
            f"--runs {path}: {', '.join(NUMBERS)} must be numbers of 1 or more, dtype one of {', '.join(DTYPES)}"
        )
    return kept.assign(**numbers)


def told(frame: pd.DataFrame) -> list[Told]:
    """Every run as its sheet tells it."""
    found = []
    for row in frame.to_dict("records"):
        cluster = read_cluster(SHEETS[str(row["gpu"])], root=ROOT)
        found.append(
            Told(
                what=f"{row['gpu']} {row['ranks']} {row['type']} {row['op']}",
                told=logical_rate(cluster, row) / 1e9,
                published=float(row["bandwidth_GBps"]),
            )
        )
    return found


def logical_rate(cluster: ClusterSpec, row: dict[str, object]) -> float:
    """Bytes/s as DeepEP counts them: once for each node, or inside one for each rank."""
    ranks, width = int(float(str(row["ranks"]))), dtype_bytes(str(row["dtype"]))
    nodes = max(ranks // cluster.gpus_per_node, 1)
    routing = Routing(
        num_experts=EXPERTS,
        topk=int(float(str(row["topk"]))),
        groups=nodes,
        chosen_groups=min(nodes, MOST_NODES),
    )
    elements = float(str(row["tokens"])) * float(str(row["hidden"]))
    arriving = elements * places_visited(ints(ranks), routing)
    op = Comm(
        module=Module.MOE,
        role=Role.DISPATCH,
        phase=Phase.FORWARD,
        collective=Collective.ALL_TO_ALL,
        axis=Axis.EP,
        size_bytes=(arriving * width).astype(np.int64),
        dtype=str(row["dtype"]),
        routed=RoutedTokens(elements=np.asarray([elements]), routing=routing),
    )
    group = group_of(Axis.EP, Layout.of(ranks, ep=ranks), cluster.scale_up_ranks)
    seconds = float(exchanged(ModelledCostModel(cluster=cluster), op, group).seconds[0])
    places = nodes if row["bottleneck"] == "RDMA" else ranks
    return float(elements * places_visited(ints(places), routing)[0] * width) / seconds


if __name__ == "__main__":
    raise SystemExit(main())
