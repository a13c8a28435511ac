"""What a collective and the matrix products beside it lose to each other, from samples of both together and alone.

While both run, the products do ``1 - a`` of what they do alone and the collective ``1 - b``. With C seconds of products
and D of collectives alone, started together: where the products last longer, the collectives end after D / (1 - b), in
which a D / (1 - b) of the products is lost, so together they take C + a D / (1 - b); where the collectives last
longer, D + b C / (1 - a). Two mixes, one of each kind, give x = a / (1 - b) and y = b / (1 - a), and from these
a = x (1 - y) / (1 - x y) and b = y (1 - x) / (1 - x y).

Between sizes the shares are interpolated over the logarithm of the bytes, beyond the sizes kept as at the last one; of
the measured groups of the same reach (inside a domain, or across) the one nearest in ranks answers.
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
"""Assumption: neither side comes to a stop; a share beyond is noise of nearly equal times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Shares of their rate alone that ``compute`` (matrix products) and ``comm`` lose while both run; 1-D of one
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
        """Losses of N groups and sizes; None where this collective was not measured over every reach asked for."""
        curves = self.curves.get(collective, ())
        sizes = np.log2(np.maximum(size_bytes, 1).astype(np.float64))
        intra, inter, _ = np.broadcast_arrays(intra, inter, sizes)
        compute, comm = np.zeros(len(intra)), np.zeros(len(intra))
        shapes, which = np.unique(np.stack([intra, inter], axis=1), axis=0, return_inverse=True)
        for index, (members, domains) in enumerate(shapes.tolist()):
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
    """Of the same reach, by the distance in log2 of ranks of a domain and of domains; of two as near the one first in
    ``curves``, which ascend in ranks of a domain, then in domains."""
    reach = [curve for curve in curves if (curve.inter > 1) == (inter > 1)]
    return min(
        reach,
        key=lambda curve: abs(np.log2(curve.intra / intra)) + abs(np.log2(curve.inter / inter)),
        default=None,
    )


def overlap_losses(profile: ProfileDatabase) -> OverlapLosses | None:
    """The curves of a profile; None where it has measured none."""
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
    """Measured samples of each product beside each collective: those that differ in the counts alone."""
    result: dict[tuple[object, ...], list[Sample]] = defaultdict(list)
    for sample in profile.measured_samples(Family.OVERLAP):
        case = _case(sample)
        group = (case.collective, case.intra, case.inter, case.siblings, case.size_bytes)
        result[(*group, case.m, case.k, case.n, case.dtype)].append(sample)
    return result


def _shares(samples: list[Sample]) -> tuple[float, float] | None:
    """(a, b) of one product beside one collective; None without either alone, without a mix of each kind, or where the
    shares contradict which side lasted longer."""
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
    if not mixes or max(mixes)[0] <= 1.0 or min(mixes)[0] >= 1.0:
        return None
    (_, long_s, hidden_s, both_s), (_, short_s, longer_s, other_s) = max(mixes), min(mixes)
    x = float(np.clip((both_s - long_s) / hidden_s, 0.0, 1.0))
    y = float(np.clip((other_s - longer_s) / short_s, 0.0, 1.0))
    if x * y > MAX_LOSS:
        return 0.5, 0.5  # one after the other, whichever lasts longer
    a, b = (min(share * (1.0 - other) / (1.0 - x * y), MAX_LOSS) for share, other in ((x, y), (y, x)))
    ends_apart = hidden_s / (1.0 - b) <= long_s / (1.0 - a) and short_s / (1.0 - a) <= longer_s / (1.0 - b)
    return (a, b) if ends_apart else None
