"""The time of an exchange of tokens with their experts: sent once to each place that holds one, and as it was measured.

Source: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.2) and DeepEP: a token crosses the network once for each
domain, to the rank of the same number there, which passes it on over the scale-up links to each rank that
wants it; both run at the same time, in one kernel.

Where a profile holds exchanges (family ``expert_exchange``), their seconds over what the curves of
collectives tell of as many bytes are a factor by size for each kernel, direction, format and group: at a
measured size the exchange takes what was measured, between two the factor is interpolated over the logarithm
of the bytes, beyond them it stays.

``Assumption:`` a backward's exchange takes what the forward's of its direction does, though DeepEP's then
knows its counts.
"""

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
    """Measured over told by the logarithm of the bytes, ascending, with the spread of the trials; 1-D of one length."""

    log_bytes: FloatArray
    log_factor: FloatArray
    relative_std: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredExchanges:
    """The factors of what was measured."""

    curves: Mapping[ExchangeKey, FactorCurve]

    def priced(self, cost_model: CostModel, op: Comm, group: Group) -> TimeEstimate:
        """The exchange of N groups, as it was measured where it was; the others by the cost model's collectives."""
        words = (op.kernel, direction(op), op.dtype)
        if any(key[:3] == words for key in self.curves):
            op = tokens_alone(op, group)
        told = even_s(cost_model, op, group)
        seconds, spread, origin, size, *shape = (
            array.copy()
            for array in np.broadcast_arrays(
                told.seconds,
                told.relative_std,
                told.origin,
                op.size_bytes,
                group.intra,
                group.inter,
                group.siblings,
            )
        )
        for key, curve in self.curves.items():
            here = np.all([part == wanted for part, wanted in zip(shape, key[3:], strict=True)], axis=0)
            rows = np.flatnonzero(here & (seconds > 0.0)) if key[:3] == words else ints([])
            asked = np.log(np.maximum(size[rows], 1))
            within = bools((asked >= curve.log_bytes[0]) & (asked <= curve.log_bytes[-1]))
            seconds[rows] *= np.exp(np.interp(asked, curve.log_bytes, curve.log_factor))
            own = np.interp(asked, curve.log_bytes, curve.relative_std)
            spread[rows] = np.where(within, own, np.hypot(own, spread[rows]))
            beyond = np.maximum(origin[rows], int(Origin.EXTRAPOLATED))
            origin[rows] = np.where(within, int(Origin.MEASURED), beyond)
        return TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)


def tokens_alone(op: Comm, group: Group) -> Comm:
    """``op`` without the probabilities beside its tokens, which a measured exchange has sent already."""
    if op.routed is None:
        return op
    beside = np.ceil(op.routed.weight_bytes * places_visited(group.ranks, op.routed.routing))
    size_bytes = op.size_bytes - beside.astype(np.int64)
    return replace(op, size_bytes=size_bytes, routed=replace(op.routed, weight_bytes=0.0))


def direction(op: Comm) -> str:
    """Returns which way tokens, or the gradients of a backward, go."""
    out = (op.role is Role.DISPATCH) is not (op.phase is Phase.INPUT_GRAD)
    return "dispatch" if out else "combine"


def measured_exchanges(cost_model: ProfileCostModel) -> MeasuredExchanges | None:
    """The factors of the cost model's profile; None where it has measured no exchange whose bytes its curves tell."""
    points: dict[ExchangeKey, dict[float, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for sample in cost_model.profile.measured_samples(Family.EXPERT_EXCHANGE):
        case = sample.case
        assert isinstance(case, ExpertExchangeCase)
        op, group = _as_operation(case)
        with suppress(MissingCurveError):
            told_s = float(even_s(cost_model, op, group).seconds[0])
            key = (case.kernel, case.direction, case.dtype, case.intra, case.inter, case.siblings)
            spread = float(np.std(sample.trials_s)) / sample.median_s
            points[key][float(np.log(op.size_bytes[0]))].append((np.log(sample.median_s / told_s), spread))
    curves = {key: _curve(by_size) for key, by_size in points.items()}
    return MeasuredExchanges(curves=curves) if curves else None


def _curve(by_size: Mapping[float, list[tuple[float, float]]]) -> FactorCurve:
    ordered = sorted(by_size)
    factor, spread = np.array([np.mean(by_size[size], axis=0) for size in ordered]).T
    return FactorCurve(log_bytes=floats(ordered), log_factor=floats(factor), relative_std=floats(spread))


def _as_operation(case: ExpertExchangeCase) -> tuple[Comm, Group]:
    """The measured exchange as a layer of so many tokens asks for it (ops.experts.exchange)."""
    group = Group(
        ranks=ints(case.intra * case.inter),
        stride=ints(1),
        intra=ints(case.intra),
        inter=ints(case.inter),
        siblings=ints(case.siblings),
        uneven=bools(np.zeros(1)),
    )
    routing = Routing(num_experts=case.experts, topk=case.topk)
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


def even_s(cost_model: CostModel, op: Comm, group: Group) -> TimeEstimate:
    """An exchange by the curves of collectives, as if its parts were equal."""
    if op.routed is not None:
        return exchanged(cost_model, op, group)
    size_bytes = np.where(group.ranks > 1, op.size_bytes, 0)
    return cost_model.collective_s(_query(op, size_bytes, group.intra, group.inter, group.siblings))


def exchanged(cost_model: CostModel, op: Comm, group: Group) -> TimeEstimate:
    """The slower of the exchange inside domains and the one between them, for N groups.

    Inside, a rank hands on what arrives for its domain, ``op.size_bytes`` in all; between domains
    it exchanges each token once with every domain that wants it.
    """
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
    """Bytes one rank exchanges with the other domains, its own part included as in any all-to-all."""
    routed = op.routed
    if routed is None:
        raise ValueError("an exchange of tokens without its routing")
    visits = places_visited(group.inter, routed.routing)
    weights = routed.weight_bytes / (group.inter if routed.weights_of_domain else 1)
    size: FloatArray = (routed.elements * dtype_bytes(op.dtype) + weights) * visits
    return np.where(group.inter > 1, size, 0.0).astype(np.int64)


def _query(op: Comm, size_bytes: IntArray, intra: IntArray, inter: IntArray, siblings: IntArray) -> CollectiveQuery:
    return CollectiveQuery(collective=op.collective, size_bytes=size_bytes, intra=intra, inter=inter, siblings=siblings)
