"""Slowdown of a collective and of matrix products that run at the same time, from samples of both together and alone.

While both run, the products proceed at ``1 - a`` of their rate alone and the collective at ``1 - b``. Let C be the
seconds of the products alone and D those of the collectives, started together. If the products last longer, the
collectives end after D / (1 - b); the products lose a D / (1 - b) in that time, so together they take C + a D / (1 - b).
If the collectives last longer, they take D + b C / (1 - a). Two mixes, one of each kind, give x = a / (1 - b) and
y = b / (1 - a), and from these a = x (1 - y) / (1 - x y) and b = y (1 - x) / (1 - x y).

Between sizes the shares are interpolated over the logarithm of the bytes, and are constant beyond the sizes. The curve
used is that of the measured group nearest in ranks, of the same reach (inside a domain, or across).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from profdb.cases import Family, OverlapCase
from profdb.sample import ProfileDatabase, Sample
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective

MAX_LOSS = 0.95
"""Assumption: neither side stops; a larger share is noise of nearly equal times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Shares of their own rate that ``compute`` (matrix products) and ``comm`` lose while both run; 1-D of one
    length."""

    compute: FloatArray
    comm: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCurve:
    """Losses of one group shape by log2 of the bytes, ascending."""

    intra: int
    inter: int
    log_size: FloatArray
    losses: Losses


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapLosses:
    """The measured curves of each collective."""

    curves: dict[Collective, tuple[SizeCurve, ...]]

    def of(self, collective: Collective, size_bytes: IntArray, intra: IntArray, inter: IntArray) -> Losses | None:
        """Returns the losses of N groups and sizes; None where this collective was not measured over every reach
        among them."""
        curves = self.curves.get(collective, ())
        sizes = np.log2(np.maximum(size_bytes, 1).astype(np.float64))
        intra, inter, _ = np.broadcast_arrays(intra, inter, sizes)
        compute, comm = np.zeros(len(intra)), np.zeros(len(intra))
        shapes, which = np.unique(np.stack([intra, inter], axis=1), axis=0, return_inverse=True)
        for index, (members, domains) in enumerate(shapes.tolist()):
            # A group of one rank sends nothing: no loss.
            if members * domains < 2:
                continue
            near = _nearest(curves, members, domains)
            if near is None:
                return None
            rows = which.reshape(-1) == index
            log_sizes = np.broadcast_to(sizes, compute.shape)[rows]
            compute[rows] = np.interp(log_sizes, near.log_size, near.losses.compute)
            comm[rows] = np.interp(log_sizes, near.log_size, near.losses.comm)
        return Losses(compute=compute, comm=comm)


def _nearest(curves: Iterable[SizeCurve], intra: int, inter: int) -> SizeCurve | None:
    """Returns the curve of the same reach with the smallest distance in log2 of ranks per domain and of domains. Of
    two equally near it is the first in ``curves``, which ascend in ranks per domain, then in domains."""
    reach = [curve for curve in curves if (curve.inter > 1) == (inter > 1)]
    return min(
        reach, key=lambda curve: abs(np.log2(curve.intra / intra)) + abs(np.log2(curve.inter / inter)), default=None
    )


def overlap_losses(profile: ProfileDatabase) -> OverlapLosses | None:
    """Returns the curves of a profile; None where it has measured none."""
    points: dict[tuple[Collective, int, int], dict[int, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for samples in _by_pair(profile).values():
        shares = _shares(samples)
        if shares is not None:
            case = _case(samples[0])
            points[case.collective, case.intra, case.inter][case.size_bytes].append(shares)
    curves: dict[Collective, tuple[SizeCurve, ...]] = {}
    for (kind, intra, inter), sizes in sorted(points.items()):
        ordered = sorted(sizes)
        both = np.asarray([np.median(sizes[size], axis=0) for size in ordered])
        losses = Losses(compute=both[:, 0], comm=both[:, 1])
        log_size = np.log2(np.asarray(ordered, dtype=np.float64))
        curve = SizeCurve(intra=intra, inter=inter, log_size=log_size, losses=losses)
        curves[kind] = (*curves.get(kind, ()), curve)
    return OverlapLosses(curves=curves) if curves else None


def _case(sample: Sample) -> OverlapCase:
    assert isinstance(sample.case, OverlapCase)
    return sample.case


def _by_pair(profile: ProfileDatabase) -> dict[tuple[object, ...], list[Sample]]:
    """Returns the measured samples of each pair of a product and a collective: those that differ in the counts alone."""
    result: dict[tuple[object, ...], list[Sample]] = defaultdict(list)
    for sample in profile.measured_samples(Family.OVERLAP):
        case = _case(sample)
        group = (case.collective, case.intra, case.inter, case.siblings, case.size_bytes)
        result[(*group, case.m, case.k, case.n, case.dtype)].append(sample)
    return result


def _shares(samples: list[Sample]) -> tuple[float, float] | None:
    """Returns (a, b) of one product and one collective; None without either alone, without a mix of each kind, or
    where the shares contradict which side lasted longer."""
    # Seconds of one product, and of one collective, from the samples of either alone.
    product_s = [s.median_s / _case(s).products for s in samples if not _case(s).collectives]
    collective_s = [s.median_s / _case(s).collectives for s in samples if not _case(s).products]
    if not product_s or not collective_s:
        return None
    one_product_s, one_collective_s = float(np.median(product_s)), float(np.median(collective_s))
    mixes = []
    for sample in samples:
        compute_s = _case(sample).products * one_product_s
        comm_s = _case(sample).collectives * one_collective_s
        if compute_s > 0.0 and comm_s > 0.0:
            mixes.append((compute_s / comm_s, compute_s, comm_s, sample.median_s))
    # Needed: a mix whose products last longer alone, and one whose collectives do. The most unequal ones are used.
    if not mixes or max(mixes)[0] <= 1.0 or min(mixes)[0] >= 1.0:
        return None
    (_, long_s, hidden_s, both_s), (_, short_s, longer_s, other_s) = max(mixes), min(mixes)
    # x = (together - C) / D = a / (1 - b), and y likewise from the other mix.
    x = float(np.clip((both_s - long_s) / hidden_s, 0.0, 1.0))
    y = float(np.clip((other_s - longer_s) / short_s, 0.0, 1.0))
    if x * y > MAX_LOSS:
        return 0.5, 0.5  # one after the other, whichever lasts longer
    # The formulas above in both roles. They assume that in each mix the side expected to last longer does so.
    a, b = (min(share * (1.0 - other) / (1.0 - x * y), MAX_LOSS) for share, other in ((x, y), (y, x)))
    ends_apart = hidden_s / (1.0 - b) <= long_s / (1.0 - a) and short_s / (1.0 - a) <= longer_s / (1.0 - b)
    return (a, b) if ends_apart else None
