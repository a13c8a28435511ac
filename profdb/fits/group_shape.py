"""Collectives over a group shape nobody measured, from shapes that were.

Model: t(S) = L + body(S). L, the latency part, is the time of the smallest size and grows with the
number of steps, log2 of the ranks (a tree's depth; a lower bound for rings). The body is bytes over
bandwidth: every rank moves (n-1)/n of the array over the wire and copies its own 1/n locally, so body
is linear in 1/n at every size (reduce-scatter and all-gather halves alike, hence all-reduce too).

- Two measured shapes with the same ranks per domain (or both inside one domain): both lines, L over
  log2 n and body over 1/n, pass through them.
- One shape: L over log2 n; body by the bus-bandwidth factors of nccl-tests (spec.collectives).
- Across domains with other ranks per domain: ring traffic leaves a domain through one NIC per rank,
  so body falls with ranks per domain; all-to-all and p2p leave through each rank's own NIC and don't.
- More sibling groups than measured share the NICs: body grows in proportion. Fewer: kept (a bound).

Assumption: one NIC per GPU where ranks per domain or siblings differ from the measured ones. The error
is that seen when measured shapes are told from the others.
"""

from dataclasses import dataclass

import numpy as np

from profdb.fits.monotone_curve import MonotoneCurve, climb, fit_monotone_curve
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective, busbw_factor

UNTESTED_STD = 0.3
"""Assumption: relative error of a restated shape where too few shapes exist to test the model."""

MOST_SHAPES_TESTED = 32
"""Shapes told from the others to learn the error."""

BODY_BOUNDS = (0.5, 2.0)
"""Assumption: a body told from two shapes stays within these factors of the one told from the nearer."""

OWN_NIC = frozenset(
    {
        Collective.ALL_TO_ALL,
        Collective.P2P,
        Collective.GATHER,
        Collective.SCATTER,
        Collective.HYPERCUBE,
    }
)
"""Operations of single messages: each leaves through its rank's own NIC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCurve:
    """A measured group shape and its monotone curve."""

    intra: int
    inter: int
    siblings: int
    monotone: MonotoneCurve

    @property
    def ranks(self) -> int:
        """Members of the group."""
        return self.intra * self.inter


def nearest_first(curves: list[ShapeCurve], wanted: IntArray) -> list[ShapeCurve]:
    """Curves of the same reach (inside a domain, or across) by distance in log2 of ranks per domain,
    domains and siblings; another number of ranks per domain counts twice."""
    reach = [curve for curve in curves if (curve.inter > 1) == (int(wanted[1]) > 1)]
    target = np.log2(wanted.astype(np.float64))

    def away(curve: ShapeCurve) -> float:
        gap = np.abs(np.log2([curve.intra, curve.inter, curve.siblings]) - target)
        return float(2.0 * gap[0] + gap[1] + 0.5 * gap[2])

    return sorted(reach, key=away)


def restate(kind: Collective, curves: list[ShapeCurve], wanted: IntArray) -> MonotoneCurve | None:
    """A monotone curve for the group shape ``wanted`` (intra, inter, siblings); None when nothing of its reach
    was measured."""
    ordered = nearest_first(curves, wanted)
    if not ordered:
        return None
    near = ordered[0]
    ranks = int(wanted[0] * wanted[1])
    log_size = near.monotone.log_size
    sizes = 2.0**log_size
    latency, body = _parts(near, sizes)
    wire = float(busbw_factor(kind, ranks) / busbw_factor(kind, near.ranks))
    predicted_body = body * wire
    predicted_latency = latency * np.log2(ranks) / np.log2(near.ranks)
    second = _partner(ordered, int(wanted[0]), across=int(wanted[1]) > 1)
    if second is not None:
        other_latency, other_body = _parts(second, sizes)
        share = (1.0 / ranks - 1.0 / near.ranks) / (1.0 / second.ranks - 1.0 / near.ranks)
        line = body + share * (other_body - body)
        predicted_body = np.clip(line, BODY_BOUNDS[0] * predicted_body, BODY_BOUNDS[1] * predicted_body)
        depth = np.log2(ranks / near.ranks) / np.log2(second.ranks / near.ranks)
        predicted_latency = max(latency + depth * (other_latency - latency), 0.5 * latency)
    predicted_body = predicted_body * _sharing(kind, near, wanted)
    return fit_monotone_curve(sizes, predicted_latency + predicted_body, near.monotone.bend)


def _parts(curve: ShapeCurve, sizes: FloatArray) -> tuple[float, FloatArray]:
    """(latency part, body at ``sizes``) of a measured shape."""
    latency = float(np.exp(curve.monotone.log_seconds[0]))
    times, _ = climb(curve.monotone, sizes)
    return latency, np.asarray(np.maximum(times - latency, 0.0))


def _partner(ordered: list[ShapeCurve], intra: int, *, across: bool) -> ShapeCurve | None:
    """A second shape on the same line in 1/n as the nearest one."""
    near = ordered[0]
    for curve in ordered[1:]:
        if curve.ranks == near.ranks:
            continue
        if not across or (curve.intra == near.intra == intra and curve.siblings == near.siblings):
            return curve
    return None


def _sharing(kind: Collective, near: ShapeCurve, wanted: IntArray) -> float:
    """Factor on the body for other ranks per domain and more siblings; 1 inside a domain."""
    intra, inter, siblings = (int(value) for value in wanted)
    if inter == 1:
        return 1.0
    own_nic = kind in OWN_NIC
    nics = 1.0 if own_nic else near.intra / intra
    crowd = max(1.0, siblings * intra / (near.siblings * near.intra))
    return nics * crowd


def shape_error(kind: Collective, curves: list[ShapeCurve]) -> float:
    """Relative standard error of restating, seen on measured shapes told from the others of their reach:
    the 68th percentile of the absolute errors over all sizes; UNTESTED_STD with fewer than three shapes."""
    errors: list[FloatArray] = []
    step = -(-len(curves) // MOST_SHAPES_TESTED) if curves else 1
    for index, curve in list(enumerate(curves))[::step]:
        rest = curves[:index] + curves[index + 1 :]
        wanted = np.asarray([curve.intra, curve.inter, curve.siblings], dtype=np.int64)
        if len(nearest_first(rest, wanted)) < 2:
            continue
        predicted = restate(kind, rest, wanted)
        if predicted is not None:
            times, _ = climb(predicted, 2.0**curve.monotone.log_size)
            errors.append(np.abs(times / np.exp(curve.monotone.log_seconds) - 1.0))
    if not errors:
        return UNTESTED_STD
    return float(np.quantile(np.concatenate(errors), 0.683))
