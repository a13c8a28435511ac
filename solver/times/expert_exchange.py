"""The time of the experts' exchange: the all-to-all that dispatches tokens to their experts and combines the results.

Two levels (``hierarchical_s``). Source: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.2) and DeepEP: a token crosses the
network once for each domain, to the rank of the same number there, which passes it on over the scale-up links to each
rank that has one of its experts; both run at the same time, in one kernel. NCCL's all-to-all instead is one collective
(``exchange_s``).

Where a profile has samples of exchanges (family ``expert_exchange``), their measured seconds over those of the curves
of collectives are a factor by size, for each kernel, direction, format and group: at a measured size the exchange takes
what was measured, between two sizes the factor is interpolated over the logarithm of the bytes, beyond them it is
constant.

``Assumption:`` a backward's exchange takes as long as the forward's in its direction, though DeepEP then knows its
counts."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ops.experts.routing import Routing, places_visited
from ops.layout import Group
from ops.op import Axis, Comm, Phase, RoutedTokens
from ops.roles import Module, Role
from profdb.cases import ExpertExchangeCase, Family
from profdb.cost_model import CostModel, ProfileCostModel
from profdb.queries import CollectiveQuery, TimeEstimate
from spec.arrays import FloatArray, IntArray, bools, floats, ints
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.errors import MissingCurveError
from spec.origin import Origin

ExchangeKey = tuple[str, str, str, int, int, int]
"""Kernel, direction, format, and the group's intra, inter and siblings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorCurve:
    """Log of measured over predicted seconds by the log of the bytes, ascending, with the relative spread of the
    trials."""

    log_bytes: FloatArray
    log_factor: FloatArray
    relative_std: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredExchanges:
    """Factors of measured exchanges over the curves of collectives."""

    curves: Mapping[ExchangeKey, FactorCurve]

    def time(self, cost_model: CostModel, op: Comm, group: Group) -> TimeEstimate:
        """Returns the time of the exchange in N groups: measured where a profile has it, else by the cost model's
        collectives."""
        words = (op.kernel, direction(op), op.dtype)
        if any(key[:3] == words for key in self.curves):
            op = without_probabilities(op, group)
        predicted = exchange_s(cost_model, op, group)
        seconds, spread, origin, size, *shape = (
            array.copy()
            for array in np.broadcast_arrays(
                predicted.seconds,
                predicted.relative_std,
                predicted.origin,
                op.size_bytes,
                group.intra,
                group.inter,
                group.siblings,
            )
        )
        for key, curve in self.curves.items():
            # Rows whose group has the curve's shape.
            here = np.all([part == of_curve for part, of_curve in zip(shape, key[3:], strict=True)], axis=0)
            rows = np.flatnonzero(here & (seconds > 0.0)) if key[:3] == words else ints([])
            log_size = np.log(np.maximum(size[rows], 1))
            within = bools((log_size >= curve.log_bytes[0]) & (log_size <= curve.log_bytes[-1]))
            seconds[rows] *= np.exp(np.interp(log_size, curve.log_bytes, curve.log_factor))
            trials = np.interp(log_size, curve.log_bytes, curve.relative_std)
            # Beyond the measured sizes the error of the collectives' curve comes on top.
            spread[rows] = np.where(within, trials, np.hypot(trials, spread[rows]))
            beyond = np.maximum(origin[rows], int(Origin.EXTRAPOLATED))
            origin[rows] = np.where(within, int(Origin.MEASURED), beyond)
        return TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)


def without_probabilities(op: Comm, group: Group) -> Comm:
    """Returns ``op`` without the bytes of probabilities that travel with its tokens: measured seconds include them."""
    if op.routed is None:
        return op
    weights = np.ceil(op.routed.weight_bytes * places_visited(group.ranks, op.routed.routing))
    size_bytes = op.size_bytes - weights.astype(np.int64)
    return replace(op, size_bytes=size_bytes, routed=replace(op.routed, weight_bytes=0.0))


def direction(op: Comm) -> str:
    """Returns whether tokens, or gradients in a backward, are dispatched or combined: a dispatch's backward
    combines."""
    out = (op.role is Role.DISPATCH) is not (op.phase is Phase.INPUT_GRAD)
    return "dispatch" if out else "combine"


def measured_exchanges(cost_model: ProfileCostModel) -> MeasuredExchanges | None:
    """Returns the factors of the cost model's profile; None where it has no exchange of bytes that its curves
    predict."""
    points: dict[ExchangeKey, dict[float, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for sample in cost_model.profile.measured_samples(Family.EXPERT_EXCHANGE):
        case = sample.case
        assert isinstance(case, ExpertExchangeCase)
        op, group = _as_operation(case)
        with suppress(MissingCurveError):
            predicted_s = float(exchange_s(cost_model, op, group).seconds[0])
            key = (case.kernel, case.direction, case.dtype, case.intra, case.inter, case.siblings)
            spread = float(np.std(sample.trials_s)) / sample.median_s
            points[key][float(np.log(op.size_bytes[0]))].append((np.log(sample.median_s / predicted_s), spread))
    curves = {key: _curve(by_size) for key, by_size in points.items()}
    return MeasuredExchanges(curves=curves) if curves else None


def _curve(by_size: Mapping[float, list[tuple[float, float]]]) -> FactorCurve:
    # Samples of one size are averaged.
    sizes = sorted(by_size)
    factor, spread = np.array([np.mean(by_size[size], axis=0) for size in sizes]).T
    return FactorCurve(log_bytes=floats(sizes), log_factor=floats(factor), relative_std=floats(spread))


def _as_operation(case: ExpertExchangeCase) -> tuple[Comm, Group]:
    """Returns the measured exchange as the operation of a layer with so many tokens (ops.experts.exchange)."""
    group = Group(
        ranks=ints(case.intra * case.inter),
        stride=ints(1),
        intra=ints(case.intra),
        inter=ints(case.inter),
        siblings=ints(case.siblings),
        uneven=bools(np.zeros(1)),
    )
    routing = Routing(num_experts=case.experts, topk=case.topk)
    # Dispatchers send a token once to each rank with one of its experts, an all-to-all once for each expert.
    once = case.kernel != "all2all"
    copies = float(places_visited(group.ranks, routing)[0]) if once else case.topk
    rows = int(np.ceil(case.tokens * copies))
    routed = RoutedTokens(elements=floats(case.tokens * case.hidden), routing=routing)
    op = Comm(
        module=Module.MOE,
        role=Role.DISPATCH,
        phase=Phase.FORWARD,
        collective=Collective.ALL_TO_ALL,
        axis=Axis.EP,
        size_bytes=ints(int(rows * case.hidden * dtype_bytes(case.dtype))),
        dtype=case.dtype,
        routed=routed if once else None,
    )
    return op, group


def exchange_s(cost_model: CostModel, op: Comm, group: Group) -> TimeEstimate:
    """Returns the time of an exchange by the curves of collectives, as if all its parts were equal."""
    if op.routed is not None:
        return hierarchical_s(cost_model, op, group)
    size_bytes = np.where(group.ranks > 1, op.size_bytes, 0)
    return cost_model.collective_s(_query(op, size_bytes, group.intra, group.inter, group.siblings))


def hierarchical_s(cost_model: CostModel, op: Comm, group: Group) -> TimeEstimate:
    """Returns the time of the slower of the exchange inside domains and the one between them, for N groups.

    Inside, a rank hands on what arrives for its domain, ``op.size_bytes`` in all; between domains it exchanges each
    token once with every domain that has one of its experts."""
    one = np.ones_like(group.ranks)
    inside = cost_model.collective_s(
        _query(op, np.where(group.intra > 1, op.size_bytes, 0), group.intra, one, group.siblings)
    )
    between = cost_model.collective_s(
        _query(op, _between_bytes(op, group), one, group.inter, group.siblings * group.intra)
    )
    slower = between.seconds > inside.seconds
    return TimeEstimate(
        seconds=np.where(slower, between.seconds, inside.seconds),
        relative_std=np.where(slower, between.relative_std, inside.relative_std),
        origin=np.where(slower, between.origin, inside.origin),
    )


def _between_bytes(op: Comm, group: Group) -> IntArray:
    """Returns the bytes that one rank exchanges with the other domains, its own part included as in any all-to-all."""
    routed = op.routed
    if routed is None:
        raise ValueError("an exchange of tokens without its routing")
    visits = places_visited(group.inter, routed.routing)
    weights = routed.weight_bytes / (group.inter if routed.weights_of_domain else 1)
    size: FloatArray = (routed.elements * dtype_bytes(op.dtype) + weights) * visits
    return np.where(group.inter > 1, size, 0.0).astype(np.int64)


def _query(op: Comm, size_bytes: IntArray, intra: IntArray, inter: IntArray, siblings: IntArray) -> CollectiveQuery:
    return CollectiveQuery(collective=op.collective, size_bytes=size_bytes, intra=intra, inter=inter, siblings=siblings)
