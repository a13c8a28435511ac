"""ProfileCostModel: the times of all operations, read from one profile.

Each method takes a query (profdb.queries) and returns seconds, relative error and origin for each of
its N shapes. Equal shapes are computed once. Nothing is guessed: a family, label or reach without samples in the
profile raises MissingCurveError, unless the cost model was opened with ``missing="modelled"`` and another cost model.
The estimates of that one have the origin MODELLED.

One curve may stand in for another. If the labels of a query (layout, dtype, kernel, ...) were never measured, the curve
with the smallest total penalty among those that RULES allow is read. FLOPs and bytes are those of the query; only the
efficiency is borrowed. Such an estimate is EXTRAPOLATED, or keeps the origin of modelled or transferred samples, and the
penalty is part of its error. Labels without a rule never stand in for each other: no bf16 curve for fp8, no flash kernel
for unfused attention, no all-gather for an all-to-all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Protocol

import numpy as np

from ops.memory_bound import KERNELS
from ops.op import (
    Attention,
    AttentionCall,
    BatchedGemm,
    GroupedGemm,
    GroupedProductCall,
    KernelCall,
    MemoryBound,
    Op,
    ProductCall,
    Update,
    fields_of,
)
from profdb.cases import Family
from profdb.fits.families import FITTERS
from profdb.fitting import Curve, curves_of
from profdb.modelled.errors import model_error
from profdb.on_demand import OnDemand
from profdb.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
    Query,
    TimeEstimate,
    busy_rows,
    curve_of,
    names_of,
)
from profdb.sample import MachineFacts, ProfileDatabase
from spec.arrays import FloatArray, IntArray
from spec.errors import ConfigError, MissingCurveError
from spec.origin import Origin

Columns = dict[str, IntArray]
Labels = Mapping[str, str]

MUCH_SURER = 0.5
"""Assumption: between the samples of a curve, one of worse origin replaces it only with less than half of its error."""

SAME_WIDTH = frozenset({"bf16", "fp16"})
"""16-bit formats run at one rate on tensor cores (vendors' data sheets list one figure for both)."""

ANY_KERNEL = 0.25
"""Assumption: relative standard error of a memory-bound kernel estimated by another one's bytes/s; chosen by us."""
BY_COPY = 0.2
"""Assumption: the same by those of a copy, which streams as fused kernels do; chosen by us."""

MOST_UNSURE = 1.0
"""Relative standard error above which a curve far from its samples says nothing: the hardware spec's model, where allowed,
is surer (profdb.modelled.errors)."""

FP8_RECIPES = ("tensor", "row", "block", "mx")
"""How fp8 operands are scaled; the products themselves run at one rate."""

RULES: dict[tuple[Family, str], dict[tuple[str, str], float]] = {
    (Family.GEMM, "layout"): {
        ("TN", "NN"): 0.15,
        ("TN", "NT"): 0.2,
        ("NN", "NT"): 0.15,
        ("NN", "TN"): 0.15,
        ("NT", "NN"): 0.15,
        ("NT", "TN"): 0.2,
    },
    (Family.GEMM, "scale_recipe"): {
        (requested, measured): 0.25 for requested in FP8_RECIPES for measured in FP8_RECIPES if requested != measured
    },
    (Family.GEMM, "bias"): {("1", "0"): 0.05, ("0", "1"): 0.05},
    (Family.ATTENTION, "direction"): {("backward", "forward"): 0.3},
    (Family.ATTENTION, "mask"): {
        ("full", "causal"): 0.15,
        ("causal", "full"): 0.2,
        ("varlen", "causal"): 0.15,
        ("window", "causal"): 0.25,
        ("window", "full"): 0.3,
    },
    (Family.ATTENTION, "kernel"): {("flash", "cudnn"): 0.25, ("cudnn", "flash"): 0.25},
    (Family.MEMORY_BOUND, "direction"): {("backward", "forward"): 0.2, ("forward", "backward"): 0.2},
    (Family.COLLECTIVE, "collective"): {("reduce_scatter", "all_gather"): 0.2, ("all_gather", "reduce_scatter"): 0.2},
}
"""(family, label): {(requested, measured): penalty}. Assumption: every penalty is a relative standard error chosen by us,
none is measured; profiles that hold the requested labels never use them. Reduce-scatter and all-gather move the same
bytes along the same ring in opposite order (Chan et al. 2007, Concurrency Computat. 19, sec. 5)."""

RULES[(Family.GROUPED_GEMM, "layout")] = RULES[(Family.GEMM, "layout")]
RULES[(Family.GROUPED_GEMM, "scale_recipe")] = RULES[(Family.GEMM, "scale_recipe")]

DTYPE_LABELS = frozenset({"dtype", "dtype_in"})
BYTES_ONLY = frozenset({Family.MEMORY_BOUND, Family.OPTIMIZER})
"""Families whose time is bytes moved: another number format costs its bytes."""


class CostModel(Protocol):
    """Anything that estimates times for queries: a ProfileCostModel over a profile, or profdb.modelled's roofline and
    NCCL models."""

    def linear_s(self, query: LinearQuery) -> TimeEstimate: ...  # noqa: D102
    def grouped_linear_s(self, query: GroupedLinearQuery) -> TimeEstimate: ...  # noqa: D102
    def attention_s(self, query: AttentionQuery) -> TimeEstimate: ...  # noqa: D102
    def memory_bound_s(self, query: MemoryBoundQuery) -> TimeEstimate: ...  # noqa: D102
    def collective_s(self, query: CollectiveQuery) -> TimeEstimate: ...  # noqa: D102
    def p2p_s(self, query: P2PQuery) -> TimeEstimate: ...  # noqa: D102
    def optimizer_s(self, query: OptimizerQuery) -> TimeEstimate: ...  # noqa: D102
    def cpu_s(self, kind: str) -> TimeEstimate: ...  # noqa: D102


def ask(cost_model: CostModel, query: Query) -> TimeEstimate:
    """Returns the cost model's times for a query of any kind."""
    kind: type = type(query)
    estimate: TimeEstimate = getattr(cost_model, METHODS[kind])(query)
    return estimate


METHODS: dict[type, str] = {
    LinearQuery: "linear_s",
    GroupedLinearQuery: "grouped_linear_s",
    AttentionQuery: "attention_s",
    MemoryBoundQuery: "memory_bound_s",
    CollectiveQuery: "collective_s",
    P2PQuery: "p2p_s",
    OptimizerQuery: "optimizer_s",
}
"""The method of a cost model that answers a query."""


@dataclass(slots=True)
class Memo:
    """Shapes already computed for one set of labels. ``places`` maps the bytes of a shape to its column of ``times``,
    whose three rows are seconds, relative error and origin."""

    places: dict[bytes, int]
    times: FloatArray


class ProfileCostModel:
    """Times from one profile. ``missing`` is "error" or "modelled" (then ``modelled`` answers where no curve does).
    ``on_demand`` measures what lies outside the samples (profdb.on_demand)."""

    def __init__(
        self,
        profile: ProfileDatabase,
        *,
        missing: str = "error",
        modelled: CostModel | None = None,
        on_demand: OnDemand | None = None,
    ) -> None:
        if missing not in ("error", "modelled"):
            raise ConfigError(where="ProfileCostModel", key="missing", value=missing, allowed="error or modelled")
        if missing == "modelled" and modelled is None:
            raise ConfigError(where="ProfileCostModel", key="modelled", value=None, allowed="a cost model")
        self.profile = profile
        self._modelled = modelled if missing == "modelled" else None
        self._on_demand = on_demand
        self._curves: dict[Family, list[Curve]] = {}
        self._memo: dict[tuple[object, ...], Memo] = {}

    def cpu_s(self, kind: str) -> TimeEstimate:
        """Returns the CPU time of one launch, layer or micro-batch, in arrays of length 1."""
        estimate = self._from_curves(Family.HOST, {"kind": kind}, {})
        if np.isnan(estimate.seconds[0]):
            return self.model_for(Family.HOST, {"kind": kind}, across=False).cpu_s(kind)
        return estimate

    def curves(self, family: Family) -> list[Curve]:
        """Returns the family's curves, fitted or read once."""
        if family not in self._curves:
            self._curves[family] = curves_of(self.profile, family)
        return self._curves[family]

    def answer(self, query: Query) -> TimeEstimate:
        """Returns the times of a query, 0 where there is nothing to do; each different shape is computed once per set of
        labels. Shapes that may still be measured on demand are not remembered."""
        kind: type = type(query)
        words = tuple(getattr(query, name) for name in names_of(kind).words)
        memo = Memo(places={}, times=np.zeros((3, 0)))
        if self._on_demand is None:
            memo = self._memo.setdefault((kind, *words), memo)
        columns = query.columns()
        # Rows of one shape mostly follow each other: of every run of equal rows the first is looked up.
        shapes = np.stack(list(columns.values()))
        begins = np.flatnonzero(np.append(True, (shapes[:, 1:] != shapes[:, :-1]).any(axis=0))[: shapes.shape[1]])
        # A shape is viewed as one opaque value of 8 bytes per column: such keys are hashable, and a list of them is
        # much faster than tuples of numbers.
        keys = np.ascontiguousarray(shapes[:, begins].T).view(f"V{shapes.itemsize * len(shapes)}").reshape(-1).tolist()
        if not memo.places.keys() >= set(keys):
            # Shapes seen for the first time, each with one row that has it: equal shapes of one query are computed once
            # too.
            fresh = {key: row for key, row in zip(keys, begins.tolist(), strict=True) if key not in memo.places}
            different = query
            if len(fresh) < query.size:
                rows = np.fromiter(fresh.values(), np.int64, len(fresh))
                different = replace(query, **{name: column[rows] for name, column in columns.items()})
            estimate = self._price(different)
            memo.places.update(zip(fresh, range(len(memo.places), len(memo.places) + len(fresh)), strict=True))
            # Columns are appended in the order in which ``places`` numbered the new shapes.
            added = np.stack([estimate.seconds, estimate.relative_std, estimate.origin.astype(np.float64)])
            memo.times = np.concatenate([memo.times, added], axis=1)
        runs = memo.times[:, list(map(memo.places.__getitem__, keys))]
        seconds, relative_std, origin = np.repeat(runs, np.diff(begins, append=query.size), axis=1)
        return TimeEstimate(seconds=seconds, relative_std=relative_std, origin=origin.astype(np.int64))

    # The curves of every family are read alike.
    linear_s = grouped_linear_s = attention_s = memory_bound_s = collective_s = p2p_s = optimizer_s = answer

    def _price(self, query: Query) -> TimeEstimate:
        """Returns times of different shapes by the curves, or by the other cost model where no curve reaches; 0 where
        there is nothing to do."""
        family, labels = curve_of(query)
        columns, busy = query.columns(), busy_rows(query)
        seconds, spread = np.zeros(len(busy)), np.zeros(len(busy))
        origin = np.full(len(busy), int(Origin.DERIVED), dtype=np.int64)
        if not busy.any():
            return TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)
        if not busy.all():
            columns = {name: column[busy] for name, column in columns.items()}
        estimate = self._from_curves(family, labels, columns)
        if self._on_demand is not None:
            estimate = self._on_demand.fill(family, labels, columns, estimate)
        seconds[busy], spread[busy], origin[busy] = estimate.seconds, estimate.relative_std, estimate.origin
        # A curve marks with NaN what it cannot tell: no curve of these labels, or no measured group of this reach.
        missing = np.isnan(seconds)
        if self._modelled is not None:
            # A kernel without samples near is modelled rather than read from another's curve, or from far outside.
            missing |= spread >= (BY_COPY if family is Family.MEMORY_BOUND else MOST_UNSURE)
        if not missing.any():
            return TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)
        across = "inter" in columns and bool((query.columns()["inter"][missing] > 1).any())
        model = self.model_for(family, labels, across=across)
        # The whole query goes to the other model, and its times are used only where the curves have none.
        whole = TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)
        return ask(model, query).where(missing, whole)

    def _from_curves(self, family: Family, labels: dict[str, str], columns: Columns) -> TimeEstimate:
        """Returns times of different shapes, with NaN seconds where no curve reaches."""
        size = next(iter(columns.values())).shape[0] if columns else 1
        seconds, spread = np.full(size, np.nan), np.zeros(size)
        origin = np.zeros(size, dtype=np.int64)
        settled, surrounded = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        last_penalty = 0.0
        for penalty, curve in candidate_curves(family, labels, self.curves(family), seconds):
            # Curves come in order of penalty. A shape is final once a curve of a smaller penalty has a time for it; among
            # curves of the same penalty, one of worse origin still answers where the better one has no sample near.
            settled |= ~np.isnan(seconds) & (penalty > last_penalty)
            last_penalty = penalty
            rows = np.flatnonzero(~settled)
            if not rows.size:
                break
            shapes = columns
            if rows.size < size:
                shapes = {name: column[rows] for name, column in columns.items()}
            predicted = FITTERS[family].predict(curve.arrays, shapes, labels)
            # A curve through modelled samples is no better than the model they came from.
            modelled = model_error(family, shapes) if curve.origin is Origin.MODELLED else 0.0
            error = np.sqrt(predicted.relative_std**2 + penalty**2 + modelled**2)
            # ``surrounded``: the shape lies between samples of the curve in use. There another curve has to be much
            # surer; outside the samples a smaller error is enough.
            surer = error < np.where(surrounded[rows], MUCH_SURER, 1.0) * spread[rows]
            better = ~np.isnan(predicted.seconds) & (np.isnan(seconds[rows]) | surer)
            updated = rows[better]
            seconds[updated], spread[updated] = predicted.seconds[better], error[better]
            # A measured curve read outside its samples, or for other labels, is an extrapolation. Curves of other
            # origins keep theirs, which already says that nobody measured this shape here.
            outside = Origin.EXTRAPOLATED if curve.origin is Origin.MEASURED else curve.origin
            own = predicted.inside[better] & (penalty == 0.0)
            origin[updated] = np.where(own, int(curve.origin), int(outside))
            surrounded[updated] = predicted.inside[better]
        return TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)

    def model_for(self, family: Family, labels: dict[str, str], *, across: bool) -> CostModel:
        """Returns the cost model that answers where no curve does; raises MissingCurveError if there is none."""
        if self._modelled is None:
            raise MissingCurveError(
                key=curve_name(family, labels, across=across),
                command=measuring_command(family, labels, self.profile.machine, across=across),
            )
        return self._modelled


def candidate_curves(
    family: Family, requested: Labels, curves: Sequence[Curve], seconds: FloatArray
) -> Iterator[tuple[float, Curve]]:
    """Yields (penalty, curve) for the curves that may answer ``requested``, best first: by penalty, then by origin.
    Curves of the requested labels have the penalty 0; penalties of several labels add as independent errors. Curves
    of other labels come only if the former leave ``seconds`` unknown (NaN)."""
    others: list[tuple[float, list[tuple[str, str]], Origin, int]] = []
    own = (curve for curve in curves if curve.key == requested)
    for curve in sorted(own, key=attrgetter("origin")):
        yield 0.0, curve
    # The consumer writes into ``seconds`` while it iterates, so this sees what the first curves left unknown.
    if not np.isnan(seconds).any():
        return
    # A curve is a candidate if each label that differs has a rule; the loop ends early at the first that has none.
    for place, curve in enumerate(curves):
        total = 0.0
        for word, requested_word in requested.items():
            penalty = (
                0.0
                if curve.key[word] == requested_word
                else label_penalty(family, word, requested_word, curve.key[word])
            )
            if penalty is None:
                break
            total += penalty**2
        else:
            if curve.key != requested:
                others.append((float(np.sqrt(total)), sorted(curve.key.items()), curve.origin, place))
    for penalty, _, _, place in sorted(others):
        yield penalty, curves[place]


def label_penalty(family: Family, word: str, requested: str, measured: str) -> float | None:
    """Returns the relative error of using curves labelled ``measured`` where ``requested`` is asked for; None if that
    is not allowed."""
    if family is Family.MEMORY_BOUND and word == "kernel":
        if measured == "copy":
            return BY_COPY
        # One that is written out, operation by operation, says nothing of a fused one.
        fused = {getattr(KERNELS.get(name), "fused", True) for name in (requested, measured)}
        return ANY_KERNEL if len(fused) == 1 else None
    if family in BYTES_ONLY and word.endswith("dtype"):
        return 0.15
    if word in DTYPE_LABELS and {requested, measured} <= SAME_WIDTH:
        return 0.05
    return RULES.get((family, word), {}).get((requested, measured))


BENCHMARK_OF: dict[Family, str] = {
    Family.GEMM: "linear",
    Family.GROUPED_GEMM: "grouped_gemm",
    Family.ATTENTION: "attention",
    Family.MEMORY_BOUND: "memory_bound",
    Family.OPTIMIZER: "optimizer",
    Family.HOST: "host",
}
"""Names that gen_profiler_data.py --only takes; collectives go by their own."""


def curve_name(family: Family, labels: dict[str, str], *, across: bool = False) -> str:
    """Returns the curve in words: family and labels, or a collective and its reach."""
    if family is Family.COLLECTIVE:
        return f"{labels['collective']} {'across domains' if across else 'inside a domain'}"
    words = ", ".join(f"{name} {word}" for name, word in labels.items() if word not in ("", "0"))
    return f"{family.value} ({words})"


def measuring_command(family: Family, labels: dict[str, str], machine: MachineFacts, *, across: bool = False) -> str:
    """Returns the torchrun command that measures a missing curve. Collectives need every GPU of a node, and a second
    node for groups ``across`` scale-up domains."""
    benchmark = BENCHMARK_OF.get(family) or labels["collective"]
    ranks = max(machine.gpus_per_node, 1 if across else 2) if family is Family.COLLECTIVE else 1
    nodes = "--nnodes=2 " if across else ""
    return f"torchrun {nodes}--nproc-per-node={ranks} gen_profiler_data.py --only {benchmark}"


def kernel_s(cost_model: CostModel, op: Op) -> TimeEstimate | None:
    """Returns the cost model's times (seconds, one per shape of ``op``) for work of a single rank; None for a
    collective. Raises MissingCurveError as the cost model does.

    A product in TF32 takes twice the time of 16 bits: half the rate (docs/clusters.md; peaks of A100 156 of 312
    TFLOP/s, H100 494.7 of 989.4, B200 1,125 of 2,250) and twice the bytes. No profile has such products.
    """
    match op:
        case BatchedGemm():
            tf32 = op.dtype == "tf32"
            query = LinearQuery(**fields_of(ProductCall, op), dtype="bf16" if tf32 else op.dtype)
            estimate = cost_model.linear_s(query)
            if not tf32:
                return estimate
            # A measured time of 16 bits, doubled, is not measured any more.
            origin = np.where(estimate.origin < int(Origin.MODELLED), int(Origin.DERIVED), estimate.origin)
            return replace(estimate, seconds=2.0 * estimate.seconds, origin=origin)
        case GroupedGemm():
            return cost_model.grouped_linear_s(GroupedLinearQuery(**fields_of(GroupedProductCall, op), dtype=op.dtype))
        case Attention():
            return cost_model.attention_s(AttentionQuery(**fields_of(AttentionCall, op)))
        case MemoryBound():
            direction = "backward" if op.backward else "forward"
            return cost_model.memory_bound_s(MemoryBoundQuery(**fields_of(KernelCall, op), direction=direction))
        case Update():
            return cost_model.optimizer_s(OptimizerQuery(elements=op.elements))
        case _:
            return None


CAST_KERNELS = frozenset({"quantize", "quantize_transpose"})


def has_measured_casts(cost_model: CostModel) -> bool:
    """Returns whether the profile has both cast kernels: with one of them, plans of a table would get times from
    different sources."""
    if not isinstance(cost_model, ProfileCostModel):
        return False
    curves = cost_model.curves(Family.MEMORY_BOUND)
    return {curve.key["kernel"] for curve in curves if curve.origin is Origin.MEASURED} >= CAST_KERNELS


def kernel_calls_s(cost_model: CostModel, op: MemoryBound) -> TimeEstimate:
    """Returns the time of the calls that ``op`` stands for, one after another, with the worst origin among those that
    take time. Raises MissingCurveError as the cost model does."""
    seconds, error_s = np.zeros(len(op.rows)), np.zeros(len(op.rows))
    origin = np.full(len(op.rows), int(Origin.MEASURED))
    for call in op.stands_for:
        if not call.times.any():
            continue
        query = MemoryBoundQuery(
            kernel=call.kernel, rows=call.rows, width=op.width, dtype=op.dtype, direction="forward"
        )
        one = cost_model.memory_bound_s(query)
        seconds = seconds + call.times * one.seconds
        # Errors of one kernel's calls are one error, so they add up rather than cancel.
        error_s = error_s + call.times * one.seconds * one.relative_std
        origin = np.where(call.times * one.seconds > 0.0, np.maximum(origin, one.origin), origin)
    # No call of a shape takes time: its error is 0, not 0 / 0.
    relative = np.divide(error_s, seconds, out=np.zeros_like(seconds), where=seconds > 0.0)
    return TimeEstimate(seconds=seconds, relative_std=relative, origin=origin)
