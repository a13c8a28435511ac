"""How well times from a hardware sheet, and times restated from another GPU, match measured curves.

    python benchmarks/modelled_accuracy.py --curves DIR [--json F]

DIR holds gemm.csv, attention_context.csv and nccl.csv in the generic form (docs/data_format.md).
Prints relative errors by GPU: GEMM and attention above 1 GFLOP, collectives above 1 MiB.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from profdb.cases import AttentionCase, GemmCase  # noqa: E402
from profdb.modelled.book import ModelledBook  # noqa: E402
from profdb.priced import Priced  # noqa: E402
from profdb.queries import (  # noqa: E402
    AttentionQuery,
    CollectiveQuery,
    LinearQuery,
    MemoryBoundQuery,
)
from profdb.transfer import by_model  # noqa: E402
from spec.arrays import FloatArray, ints  # noqa: E402
from spec.cluster import ClusterSpec  # noqa: E402
from spec.collectives import Collective  # noqa: E402
from spec.errors import ConfigError, UserError  # noqa: E402
from spec.origin import Origin  # noqa: E402
from spec.read_cluster import read_cluster  # noqa: E402

# Prefix of the name in the files' "gpu" column -> sheet.
SHEETS = {"A100": "a100-sxm-80g", "H100": "h100-sxm", "H200": "h200", "B200": "b200"}
SHEETS |= {"A800": "a800", "H800": "h800", "H20-": "h20", "B300": "b300", "GB20": "gb200-nvl72"}
SHEETS |= {"L40S": "l40s", "V100": "dgx2-v100"}
KINDS = {"alltoall": "all2all"}
TRANSFERS = (("A100", "H100"), ("H100", "H200"), ("H100", "B200"), ("A100", "B200"), ("H200", "B200"))
GEMM_KEYS = ["m", "n", "k"]
ATTENTION_KEYS = ["batch", "seq", "heads", "kv_heads", "head_dim"]


Pricing = Callable[[ModelledBook, pd.DataFrame], Priced]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one table row: relative, against the measured time."""

    what: str
    gpu: str
    points: int
    median: float
    p90: float
    bias: float


def main() -> int:
    """Read the curves, print the tables; 2 for what the user can mend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True, help="folder with the CSV files")
    parser.add_argument("--json", type=Path, help="write the scores to this file as well")
    options = parser.parse_args()
    try:
        scores = all_scores(options.curves)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for score in scores:
        print(
            f"{score.what:34} {score.gpu:14} {score.points:6d} points  median {score.median:6.1%}"
            f"  p90 {score.p90:6.1%}  bias {score.bias:+6.1%}"
        )
    if options.json:
        temporary = options.json.with_suffix(".tmp")
        temporary.write_text(json.dumps([asdict(score) for score in scores], indent=1))
        os.replace(temporary, options.json)
    return 0


def all_scores(folder: Path) -> list[Score]:
    """Every row of the tables; OSError for a missing file, ConfigError for a missing column."""
    gemm = _table(folder / "gemm.csv", ["gpu", *GEMM_KEYS, "latency_us"])
    gemm = gemm[2.0 * gemm.m * gemm.n * gemm.k > 1e9]
    attention = _table(folder / "attention_context.csv", ["gpu", *ATTENTION_KEYS, "latency_us"])
    causal_flops = 2.0 * attention.batch * attention.heads * attention.head_dim * attention.seq**2
    attention = attention[causal_flops > 1e9]
    nccl = _table(folder / "nccl.csv", ["gpu", "collective", "num_gpus", "bytes", "latency_us"])
    nccl = nccl[nccl.bytes > 2**20]
    scores = _modelled("gemm", gemm, price_gemm)
    scores += _modelled("attention forward", attention, _attention)
    scores += _modelled("nccl", nccl, price_collectives)
    for kind in sorted(nccl.collective.unique()):
        scores += _modelled(f"nccl {kind}", nccl[nccl.collective == kind], price_collectives)
    scores += _transferred("gemm", gemm, GEMM_KEYS)
    scores += _transferred("attention", attention, ATTENTION_KEYS)
    return scores


def _table(path: Path, columns: list[str]) -> pd.DataFrame:
    """A CSV file with at least these columns; ConfigError when one is missing."""
    table = pd.read_csv(path)
    missing = [column for column in columns if column not in table]
    if missing:
        raise ConfigError(
            where=str(path), key="columns", value=missing, allowed=f"needed: {', '.join(columns)}"
        )
    return table


def sheet_of(gpu: str) -> ClusterSpec:
    """The cluster whose sheet belongs to a name in the files' gpu column."""
    return read_cluster(SHEETS[gpu[:4]], root=ROOT)


def _score(what: str, gpu: str, told_s: FloatArray, measured_us: FloatArray) -> Score:
    error = told_s * 1e6 / measured_us - 1.0
    return Score(
        what=what,
        gpu=gpu,
        points=len(error),
        median=float(np.median(np.abs(error))),
        p90=float(np.quantile(np.abs(error), 0.9)),
        bias=float(np.median(error)),
    )


def _modelled(what: str, table: pd.DataFrame, price: Pricing) -> list[Score]:
    """One score for each GPU that has a sheet."""
    rows = []
    for gpu, measured in table.groupby("gpu"):
        if gpu[:4] in SHEETS:
            told = price(ModelledBook(cluster=sheet_of(gpu)), measured).seconds
            rows.append(_score(f"modelled {what}", gpu, told, measured.latency_us.to_numpy()))
    return rows


def price_gemm(book: ModelledBook, table: pd.DataFrame) -> Priced:
    """Forward products of the rows of a table."""
    return book.linear_s(LinearQuery(m=ints(table.m), k=ints(table.k), n=ints(table.n)))


def _attention(book: ModelledBook, table: pd.DataFrame) -> Priced:
    """Attention and the pass before it: the curves are of a serving engine, which turns queries and keys
    (rotary) and writes keys and values to its cache, so all of them are read and written once more."""
    seq, dim = ints(table.seq), ints(table.head_dim)
    core = book.attention_s(
        AttentionQuery(
            batch=ints(table.batch),
            q_len=seq,
            kv_len=seq,
            heads=ints(table.heads),
            kv_heads=ints(table.kv_heads),
            qk_dim=dim,
            v_dim=dim,
        )
    )
    width = (ints(table.heads) + 2 * ints(table.kv_heads)) * dim
    rows = ints(table.batch) * seq
    copied = book.memory_bound_s(MemoryBoundQuery(kernel="copy", rows=rows, width=width))
    return replace(core, seconds=core.seconds + copied.seconds)


def price_collectives(book: ModelledBook, table: pd.DataFrame) -> Priced:
    """Collectives inside one node; priced kind by kind, in the table's order."""
    seconds = np.empty(len(table))
    for kind in table.collective.unique():
        rows = (table.collective == kind).to_numpy()
        priced = book.collective_s(
            CollectiveQuery(
                collective=Collective(KINDS.get(kind, kind)),
                size_bytes=ints(table.bytes[rows]),
                intra=ints(table.num_gpus[rows]),
                inter=1,
            )
        )
        seconds[rows] = priced.seconds
    return Priced(
        seconds=seconds, relative_std=np.zeros(len(table)), origin=ints(np.full(len(table), Origin.MODELLED))
    )


def _transferred(what: str, table: pd.DataFrame, keys: list[str]) -> list[Score]:
    """Shapes measured on both GPUs of a pair, the first restated for the second."""
    rows = []
    for source, target in TRANSFERS:
        first = table[table.gpu.str.startswith(source)]
        second = table[table.gpu.str.startswith(target)]
        if first.empty or second.empty:
            continue
        both = first.merge(second, on=keys, suffixes=("", "_target"))
        told = by_model(
            [_case(what, row) for row in both[keys].to_numpy().tolist()],
            both.latency_us.to_numpy() * 1e-6,
            sheet_of(source),
            sheet_of(target),
        )
        measured = both.latency_us_target.to_numpy()
        rows.append(_score(f"transferred {what}", f"{source} -> {target}", told.seconds, measured))
    return rows


def _case(what: str, numbers: list[int]) -> GemmCase | AttentionCase:
    if what == "gemm":
        m, n, k = numbers
        return GemmCase(m=m, k=k, n=n)
    batch, seq, heads, kv_heads, dim = numbers
    return AttentionCase(
        batch=batch, q_len=seq, kv_len=seq, heads=heads, kv_heads=kv_heads, qk_dim=dim, v_dim=dim
    )


if __name__ == "__main__":
    sys.exit(main())
