"""ProfileCostModel: the one door to every time.

Each method takes a query (profdb.lookup.queries) and returns seconds, relative error and origin for each of
its N shapes. Equal shapes are priced once. Nothing is guessed: a family, word or reach of which the
profile holds nothing raises MissingCurveError, unless the cost model was opened with ``missing="modelled"``
and a cost model, whose answers say so.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from profdb.cases import Family
from profdb.fits import FITTERS
from profdb.fitting import Curve, curves_of
from profdb.lookup.asked_again import Answers
from profdb.lookup.missing_curve import curve_name, measuring_command
from profdb.lookup.priced import TimeEstimate
from profdb.lookup.priced_shapes import PricedShapes
from profdb.lookup.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
    Query,
)
from profdb.lookup.query_words import busy_rows, curve_of
from profdb.lookup.reuse import stand_ins
from profdb.lookup.unique_shapes import unique_shapes
from profdb.modelled.errors import model_error
from profdb.on_demand import OnDemand
from profdb.sample import ProfileDatabase
from profdb.store.data_file import load_profile
from spec.arrays import BoolArray, IntArray
from spec.errors import ConfigError, MissingCurveError
from spec.origin import Origin

Columns = dict[str, IntArray]

MUCH_SURER = 0.5
"""Assumption: between samples, however far apart, a curve of worse origin answers only when it tells less
than half of the error."""


class CostModel(Protocol):
    """What answers queries: a ProfileCostModel over a profile, or a cost model."""

    def linear_s(self, query: LinearQuery) -> TimeEstimate: ...  # noqa: D102
    def grouped_linear_s(self, query: GroupedLinearQuery) -> TimeEstimate: ...  # noqa: D102
    def attention_s(self, query: AttentionQuery) -> TimeEstimate: ...  # noqa: D102
    def memory_bound_s(self, query: MemoryBoundQuery) -> TimeEstimate: ...  # noqa: D102
    def collective_s(self, query: CollectiveQuery) -> TimeEstimate: ...  # noqa: D102
    def p2p_s(self, query: P2PQuery) -> TimeEstimate: ...  # noqa: D102
    def optimizer_s(self, query: OptimizerQuery) -> TimeEstimate: ...  # noqa: D102
    def cpu_s(self, kind: str) -> TimeEstimate: ...  # noqa: D102


class ProfileCostModel:
    """Times of one profile. ``missing`` is "error" or "modelled" (then ``modelled`` answers);
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
            raise ConfigError(
                where="ProfileCostModel", key="missing", value=missing, allowed="error or modelled"
            )
        if missing == "modelled" and modelled is None:
            raise ConfigError(where="ProfileCostModel", key="modelled", value=None, allowed="a cost model")
        self.profile = profile
        self._modelled = modelled if missing == "modelled" else None
        self._on_demand = on_demand
        self._curves: dict[Family, list[Curve]] = {}
        self._answers = Answers()
        self._asked: dict[tuple[Family, tuple[tuple[str, str], ...]], PricedShapes] = {}
        self._choices: dict[tuple[Family, tuple[tuple[str, str], ...]], list[tuple[float, Curve]]] = {}

    @classmethod
    def open(
        cls, path: str | Path, *, missing: str = "error", modelled: CostModel | None = None
    ) -> "ProfileCostModel":
        """A cost model over the profile in a file; raises ProfileError as load_profile does."""
        return cls(load_profile(path), missing=missing, modelled=modelled)

    def linear_s(self, query: LinearQuery) -> TimeEstimate:
        """Batched matrix products. A product with a size of 0 takes no time."""
        return self._answer(query, lambda cost_model: cost_model.linear_s(query))

    def grouped_linear_s(self, query: GroupedLinearQuery) -> TimeEstimate:
        """Grouped matrix products of experts."""
        return self._answer(query, lambda cost_model: cost_model.grouped_linear_s(query))

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        """Attention calls, forward or backward alone."""
        return self._answer(query, lambda cost_model: cost_model.attention_s(query))

    def memory_bound_s(self, query: MemoryBoundQuery) -> TimeEstimate:
        """Memory-bound kernels of ops.memory_bound; one that moves nothing in a direction takes no time."""
        return self._answer(query, lambda cost_model: cost_model.memory_bound_s(query))

    def collective_s(self, query: CollectiveQuery) -> TimeEstimate:
        """Collectives. A group of one rank or a size of 0 takes no time."""
        return self._answer(query, lambda cost_model: cost_model.collective_s(query))

    def p2p_s(self, query: P2PQuery) -> TimeEstimate:
        """Messages between two ranks."""
        return self._answer(query, lambda cost_model: cost_model.p2p_s(query))

    def optimizer_s(self, query: OptimizerQuery) -> TimeEstimate:
        """Optimizer steps."""
        return self._answer(query, lambda cost_model: cost_model.optimizer_s(query))

    def cpu_s(self, kind: str) -> TimeEstimate:
        """Host-side cost of one launch, layer or micro-batch; arrays of length 1."""
        ones = np.ones(1, dtype=np.bool_)
        return self._price(Family.HOST, {"kind": kind}, {}, (ones, lambda cost_model: cost_model.cpu_s(kind)))

    def curves(self, family: Family) -> list[Curve]:
        """The family's curves, fitted or read once."""
        return list(self._family(family))

    def _family(self, family: Family) -> list[Curve]:
        if family not in self._curves:
            self._curves[family] = curves_of(self.profile, family)
        return self._curves[family]

    def _candidates(self, family: Family, labels: dict[str, str]) -> list[tuple[float, Curve]]:
        """(penalty, curve) in the order of preference: own words first, then best-known origin."""
        key = tuple(sorted(labels.items()))
        if (family, key) not in self._choices:
            curves = self._family(family)
            of_words: dict[tuple[tuple[str, str], ...], list[Curve]] = {}
            for curve in curves:
                of_words.setdefault(tuple(sorted(curve.key.items())), []).append(curve)
            self._choices[(family, key)] = [
                (penalty, curve)
                for penalty, held in stand_ins(family, labels, [same[0].key for same in of_words.values()])
                for curve in sorted(of_words[tuple(sorted(held.items()))], key=lambda curve: curve.origin)
            ]
        return self._choices[(family, key)]

    def _answer(self, query: Query, ask: Callable[[CostModel], TimeEstimate]) -> TimeEstimate:
        def priced() -> TimeEstimate:
            family, labels = curve_of(query)
            return self._price(family, labels, query.columns(), (busy_rows(query), ask))

        # What may yet be measured is not remembered.
        return priced() if self._on_demand is not None else self._answers.answer(query, priced)

    def _price(
        self,
        family: Family,
        labels: dict[str, str],
        columns: Columns,
        ask: tuple[BoolArray, Callable[[CostModel], TimeEstimate]],
    ) -> TimeEstimate:
        busy, ask_modelled = ask
        size = busy.shape[0]
        seconds, spread = np.zeros(size), np.zeros(size)
        origin = np.full(size, int(Origin.DERIVED), dtype=np.int64)
        rows = np.flatnonzero(busy)
        if rows.size:
            unique, inverse = unique_shapes({name: column[rows] for name, column in columns.items()})
            priced = self._price_once(family, labels, unique)
            missing = np.isnan(priced.seconds)
            seconds[rows], spread[rows] = priced.seconds[inverse], priced.relative_std[inverse]
            origin[rows] = priced.origin[inverse]
            if missing.any():
                lacking = rows[missing[inverse]]
                reach = unique["inter"][missing] if "inter" in unique else np.ones(1, dtype=np.int64)
                predicted = self._model(family, labels, bool((reach > 1).any()), ask_modelled)
                seconds[lacking], spread[lacking] = (
                    predicted.seconds[lacking],
                    predicted.relative_std[lacking],
                )
                origin[lacking] = predicted.origin[lacking]
        return TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)

    def _price_once(self, family: Family, labels: dict[str, str], columns: Columns) -> TimeEstimate:
        """As _price_unique, which is asked about no shape twice; what may yet be measured is not remembered."""
        if self._on_demand is not None or not columns:
            return self._price_unique(family, labels, columns)
        shapes = self._asked.setdefault((family, tuple(sorted(labels.items()))), PricedShapes())
        return shapes.priced(columns, lambda new: self._price_unique(family, labels, new))

    def _price_unique(self, family: Family, labels: dict[str, str], columns: Columns) -> TimeEstimate:
        """Seconds of different shapes, NaN where no curve reaches."""
        size = next(iter(columns.values())).shape[0] if columns else 1
        seconds, spread = np.full(size, np.nan), np.zeros(size)
        origin = np.zeros(size, dtype=np.int64)
        settled: BoolArray = np.zeros(size, dtype=np.bool_)
        surrounded: BoolArray = np.zeros(size, dtype=np.bool_)
        held_penalty = 0.0
        for penalty, curve in self._candidates(family, labels):
            # A curve of worse origin but the same words answers where the better one has nothing near.
            settled |= ~np.isnan(seconds) & (penalty > held_penalty)
            held_penalty = penalty
            rows = np.flatnonzero(~settled)
            if not rows.size:
                break
            asked = {name: column[rows] for name, column in columns.items()}
            predicted = FITTERS[family].predict(curve.arrays, asked, labels)
            # A curve through modelled samples is no better than the model they came from.
            modelled = model_error(family, asked) if curve.origin is Origin.MODELLED else 0.0
            error = np.sqrt(predicted.relative_std**2 + penalty**2 + modelled**2)
            surer = error < np.where(surrounded[rows], MUCH_SURER, 1.0) * spread[rows]
            better = ~np.isnan(predicted.seconds) & (np.isnan(seconds[rows]) | surer)
            taken = rows[better]
            seconds[taken], spread[taken] = predicted.seconds[better], error[better]
            outside = Origin.EXTRAPOLATED if curve.origin is Origin.MEASURED else curve.origin
            own = predicted.inside[better] & (penalty == 0.0)
            origin[taken] = np.where(own, int(curve.origin), int(outside))
            surrounded[taken] = predicted.inside[better]
        predicted_all = TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)
        if self._on_demand is None:
            return predicted_all
        return self._on_demand.fill(family, labels, columns, predicted_all)

    def _model(
        self, family: Family, labels: dict[str, str], across: bool, ask: Callable[[CostModel], TimeEstimate]
    ) -> TimeEstimate:
        if self._modelled is None:
            raise MissingCurveError(
                key=curve_name(family, labels, across=across),
                command=measuring_command(family, labels, self.profile.machine, across=across),
            )
        return ask(self._modelled)
