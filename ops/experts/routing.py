"""The routing of tokens: the number of places with experts that each token visits."""

import math
from dataclasses import dataclass

import numpy as np

from spec.arrays import FloatArray, IntArray
from spec.model import MoeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Each token goes to ``topk`` of ``num_experts``; with ``groups`` of experts, all of them in
    ``chosen_groups`` of those (arXiv 2412.19437 sec. 2.1.2, node-limited routing). ``in_turn``: to the next ``topk``
    experts after those of the token before, whatever its groups."""

    num_experts: int
    topk: int
    groups: int = 1
    chosen_groups: int = 1
    in_turn: bool = False

    @staticmethod
    def of(moe: MoeSpec, *, in_turn: bool = False) -> "Routing":
        """Returns a model's routing."""
        return Routing(
            in_turn=in_turn,
            num_experts=moe.num_experts,
            topk=moe.topk,
            groups=moe.route_groups,
            chosen_groups=moe.route_chosen_groups,
        )


def places_visited(places: IntArray, routing: Routing) -> FloatArray:
    """Returns how many of ``places`` (ranks, or domains of ranks), among which the experts are spread evenly and in
    order, hold at least one of a token's experts; float64 of the length of ``places``.

    The expectation over uniformly drawn groups and, in them, uniformly drawn distinct experts: ``p`` times
    the hypergeometric chance of meeting a place. Assumption: routing is uniform (benchmarks force it). In
    turn, runs of ``topk`` experts begin at every multiple of gcd(topk, num_experts), which comes round
    equally often.
    """
    count = np.asarray(places, dtype=np.float64)
    if routing.in_turn:
        return _span_in_turn(count, routing)
    # experts in the groups that a token may use; in_group of them each; here: experts of one place; spanned: groups
    # that a place holds a part of
    reachable = routing.num_experts * routing.chosen_groups / routing.groups
    in_group = routing.num_experts / routing.groups
    here = routing.num_experts / np.maximum(count, 1.0)
    spanned = np.maximum(np.round(routing.groups / np.maximum(count, 1.0)), 1.0)
    hit_chance = np.zeros_like(count)
    # Sum over the number of the token's groups that the place holds: the chance of that many, times the chance that
    # at least one of topk experts falls on the place's own.
    for chosen in range(1, routing.chosen_groups + 1):
        local = np.minimum(here, chosen * in_group)
        hit_chance = hit_chance + _exactly(chosen, spanned, routing) * (
            1.0 - _miss_chance(local, reachable, routing.topk)
        )
    return np.asarray(count * hit_chance, dtype=np.float64)


def _span_in_turn(count: FloatArray, routing: Routing) -> FloatArray:
    """Returns the mean number of places that a run of topk experts lies in, places holding num_experts / count
    experts one after the other."""
    here = routing.num_experts / np.maximum(count, 1.0)
    starts = np.arange(0, routing.num_experts, math.gcd(routing.topk, routing.num_experts))
    last = starts + routing.topk - 1
    spans = np.floor(last[:, None] / here) - np.floor(starts[:, None] / here) + 1.0
    return np.asarray(np.minimum(spans, count).mean(axis=0), dtype=np.float64)


def _miss_chance(local: FloatArray, reachable: float, topk: int) -> FloatArray:
    """Returns the chance that none of ``topk`` experts out of ``reachable`` is one of ``local``."""
    missed = np.ones_like(local)
    # hypergeometric: drawn one after another without replacement
    for index in range(topk):
        missed = missed * np.maximum(reachable - local - index, 0.0) / (reachable - index)
    return missed


def _exactly(chosen: int, spanned: FloatArray, routing: Routing) -> FloatArray:
    """Returns the chance that exactly ``chosen`` of a token's groups are among the ``spanned`` ones of a place."""
    others = routing.groups - spanned
    combinations = _choices(spanned, chosen) * _choices(others, routing.chosen_groups - chosen)
    total = _choices(np.full_like(spanned, routing.groups), routing.chosen_groups)
    return np.asarray(combinations / total, dtype=np.float64)


def _choices(of: FloatArray, count: int) -> FloatArray:
    """Returns binomial coefficients, 0 where there are too few to choose from."""
    combinations = np.ones_like(of)
    for index in range(count):
        combinations = combinations * np.maximum(of - index, 0.0) / (index + 1.0)
    return combinations
