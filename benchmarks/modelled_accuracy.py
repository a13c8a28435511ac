"""Relative errors of times from a hardware spec, and of times transferred from another GPU, against measured curves.

GEMM and attention above 1 GFLOP, collectives above 1 MiB, by GPU. benchmarks/curve_accuracy.py prints them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from benchmarks.measured_times import SPECS
from profdb.cases import AttentionCase, Family, GemmCase
from profdb.modelled.cost_model import ModelledCostModel
from profdb.queries import AttentionQuery, CollectiveQuery, LinearQuery, MemoryBoundQuery, TimeEstimate
from profdb.store.columns import SampleTable
from profdb.transfer import by_model
from spec.arrays import FloatArray, ints
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.files import shipped_folder
from spec.origin import Origin
from spec.units import MIB

TRANSFERS = (("A100", "H100"), ("H100", "H200"), ("H100", "B200"), ("A100", "B200"), ("H200", "B200"))
GEMM_KEYS = ["batch", "m", "n", "k"]
ATTENTION_KEYS = ["batch", "q_len", "kv_len", "heads", "kv_heads", "qk_dim", "v_dim"]
# Targets of the medians: from a hardware spec for every GPU, transferred for pairs of neighbouring generations.
TARGETS = {"modelled gemm": 0.12, "modelled nccl": 0.20, "transferred gemm": 0.10, "transferred attention": 0.15}
NOTHING_TO_SCORE = "nothing large enough of a GPU that has a hardware spec, so nothing to score"
TARGET_PAIRS = ("A100 -> H100", "H100 -> H200", "H100 -> B200")

Pricing = Callable[[ModelledCostModel, pd.DataFrame], TimeEstimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecScore:
    """Errors of one table row: relative, against the measured time."""

    what: str
    gpu: str
    points: int
    median: float
    p90: float
    bias: float

    @property
    def target(self) -> float:
        """Limit of the median; 0 for a row that is only reported."""
        has_target = not self.what.startswith("transferred") or self.gpu in TARGET_PAIRS
        return TARGETS.get(self.what, 0.0) if has_target else 0.0

    @property
    def passed(self) -> bool:
        """True if the median is within its target."""
        return not self.target or self.median <= self.target


def score_lines(scores: Sequence[SpecScore]) -> list[str]:
    """A table for printing."""
    lines = [
        f"{'from a spec, or transferred':28} {'gpu':14} {'points':>6} {'median%':>7} {'p90%':>6} {'bias%':>6}   limit"
    ]
    for score in scores:
        limit = f"{100 * score.target:2.0f}  {'ok' if score.passed else 'MISSED'}" if score.target else " -"
        lines.append(
            f"{score.what:28} {score.gpu:14} {score.points:6d} {100 * score.median:7.1f}"
            f" {100 * score.p90:6.1f} {100 * score.bias:+6.1f}   {limit}"
        )
    return lines


def all_scores(tables: dict[str, dict[Family, SampleTable]]) -> list[SpecScore]:
    """The scores of all GPUs' samples; a family that no GPU has gives none."""
    gemm = frame(tables, Family.GEMM, {"layout": "NT", "dtype_in": "bf16", "scale_recipe": ""})
    gemm = gemm[2.0 * gemm.batch * gemm.m * gemm.n * gemm.k > 1e9] if len(gemm) else gemm
    words = {"mask": "causal", "direction": "forward", "dtype": "bf16"}
    attention = frame(tables, Family.ATTENTION, words)
    if len(attention):
        flops = 2.0 * attention.batch * attention.heads * attention.qk_dim * attention.q_len**2
        attention = attention[flops > 1e9]
    nccl = frame(tables, Family.COLLECTIVE, {})
    if len(nccl):
        nccl = nccl[(nccl.size_bytes > MIB) & (nccl.collective != Collective.P2P.value)]
    scores = _modelled("gemm", gemm, price_gemm)
    scores += _modelled("attention forward", attention, _attention)
    scores += _modelled("nccl", nccl, price_collectives)
    for kind in sorted(nccl.collective.unique()) if len(nccl) else ():
        scores += _modelled(f"nccl {kind}", nccl[nccl.collective == kind], price_collectives)
    scores += _transferred("gemm", gemm, GEMM_KEYS)
    scores += _transferred("attention", attention, ATTENTION_KEYS)
    return scores


def frame(tables: dict[str, dict[Family, SampleTable]], family: Family, labels: dict[str, str]) -> pd.DataFrame:
    """The samples of a family with these ``labels``, of all GPUs: the column ``gpu``, numbers, labels, and ``latency_us``
    (medians)."""
    parts = []
    for gpu, families in sorted(tables.items()):
        if family in families:
            table = families[family]
            columns = {name: np.asarray(column) for name, column in table.numbers.items()}
            columns |= {name: np.asarray(column.labels()) for name, column in table.labels.items()}
            parts.append(pd.DataFrame(columns | {"latency_us": table.medians_s() * 1e6, "gpu": gpu}))
    if not parts:
        return pd.DataFrame({"gpu": []})
    rows = pd.concat(parts, ignore_index=True)
    selected = np.all([rows[name] == word for name, word in labels.items()], axis=0)
    return rows[selected] if labels else rows


def spec_of(gpu: str) -> ClusterSpec:
    """The hardware spec of a name in the files' gpu column."""
    return read_cluster(SPECS[gpu[:4]], root=shipped_folder())


def _score(what: str, gpu: str, predicted_s: FloatArray, measured_us: FloatArray) -> SpecScore:
    error = predicted_s * 1e6 / measured_us - 1.0
    return SpecScore(
        what=what,
        gpu=gpu,
        points=len(error),
        median=float(np.median(np.abs(error))),
        p90=float(np.quantile(np.abs(error), 0.9)),
        bias=float(np.median(error)),
    )


def _modelled(what: str, table: pd.DataFrame, price: Pricing) -> list[SpecScore]:
    """One score for each GPU that has a hardware spec."""
    rows = []
    for gpu, measured in table.groupby("gpu"):
        if gpu[:4] in SPECS:
            predicted = price(ModelledCostModel(cluster=spec_of(gpu)), measured).seconds
            rows.append(_score(f"modelled {what}", gpu, predicted, measured.latency_us.to_numpy()))
    return rows


def price_gemm(cost_model: ModelledCostModel, table: pd.DataFrame) -> TimeEstimate:
    """Times of the forward products of a table."""
    return cost_model.linear_s(LinearQuery(batch=ints(table.batch), m=ints(table.m), k=ints(table.k), n=ints(table.n)))


def _attention(cost_model: ModelledCostModel, table: pd.DataFrame) -> TimeEstimate:
    """Times of attention and of a copy before it: the curves are of a serving engine, which rotates queries and keys and
    writes keys and values to its cache, so that all of them are read and written once more."""
    sizes = {name: ints(table[name]) for name in ATTENTION_KEYS}
    core = cost_model.attention_s(AttentionQuery(**sizes))
    width = sizes["heads"] * sizes["qk_dim"] + sizes["kv_heads"] * (sizes["qk_dim"] + sizes["v_dim"])
    rows = sizes["batch"] * sizes["q_len"]
    copied = cost_model.memory_bound_s(MemoryBoundQuery(kernel="copy", rows=rows, width=width))
    return replace(core, seconds=core.seconds + copied.seconds)


def price_collectives(cost_model: ModelledCostModel, table: pd.DataFrame) -> TimeEstimate:
    """Times of the collectives of a table, in its order."""
    seconds = np.empty(len(table))
    for kind in table.collective.unique():
        rows = (table.collective == kind).to_numpy()
        sizes = {name: ints(table[name][rows]) for name in ("size_bytes", "intra", "inter", "siblings")}
        priced = cost_model.collective_s(CollectiveQuery(collective=Collective(kind), **sizes))
        seconds[rows] = priced.seconds
    return TimeEstimate(
        seconds=seconds, relative_std=np.zeros(len(table)), origin=ints(np.full(len(table), Origin.MODELLED))
    )


def _transferred(what: str, table: pd.DataFrame, keys: list[str]) -> list[SpecScore]:
    """Scores of the shapes that both GPUs of a pair were measured with, transferred from the first to the second."""
    rows = []
    if table.empty:
        return []
    for source, target in TRANSFERS:
        first = table[table.gpu.str.startswith(source)]
        second = table[table.gpu.str.startswith(target)]
        if first.empty or second.empty:
            continue
        both = first.merge(second, on=keys, suffixes=("", "_target"))
        if both.empty:
            continue
        predicted = by_model(
            [_case(what, row) for row in both[keys].to_numpy().tolist()],
            both.latency_us.to_numpy() * 1e-6,
            spec_of(source),
            spec_of(target),
        )
        measured = both.latency_us_target.to_numpy()
        rows.append(_score(f"transferred {what}", f"{source} -> {target}", predicted, measured))
    return rows


def _case(what: str, numbers: list[int]) -> GemmCase | AttentionCase:
    if what == "gemm":
        return GemmCase(**dict(zip(GEMM_KEYS, numbers, strict=True)))
    return AttentionCase(**dict(zip(ATTENTION_KEYS, numbers, strict=True)))
