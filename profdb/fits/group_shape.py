"""Collectives over group shapes that were not measured, estimated from those that were.

Model: t(S) = L + body(S). L, the latency part, is the time of the smallest size and grows with the
number of steps, log2 of the ranks (a tree's depth; a lower bound for rings). The body is bytes over
bandwidth: every rank moves (n-1)/n of the array over the wire and copies its own 1/n locally, so body
is linear in 1/n at every size (reduce-scatter and all-gather halves alike, hence all-reduce too).

- Two measured shapes with the same ranks per domain (or both inside one domain): both lines, L over
  log2 n and body over 1/n, pass through them.
- One shape: L over log2 n; body by the bus-bandwidth factors of nccl-tests (spec.collectives).
- Across domains with other ranks per domain: ring traffic leaves a domain through one NIC per rank,
  so body falls with ranks per domain; all-to-all and p2p leave through each rank's own NIC and don't.
- More sibling groups than measured share the NICs: body grows in proportion. Fewer: unchanged (an upper bound).

Assumption: one NIC per GPU where ranks per domain or siblings differ from the measured ones. The error
is that of measured shapes when each is estimated from the others.
"""

from dataclasses import dataclass

import numpy as np

from profdb.fits.monotone_curve import MonotoneCurve, climb, fit_monotone_curve
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective, busbw_factor

UNTESTED_STD = 0.3
"""Assumption: relative error of a restated shape where too few shapes exist to test the model."""

MOST_SHAPES_TESTED = 32
"""Shapes that are estimated from the others to learn the error."""

BODY_BOUNDS = (0.5, 2.0)
"""Assumption: a body on the line through two shapes stays within these factors of the one from the nearer alone."""

OWN_NIC = frozenset(
    {Collective.ALL_TO_ALL, Collective.P2P, Collective.GATHER, Collective.SCATTER, Collective.HYPERCUBE}
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
        """Returns the number of ranks of the group."""
        return self.intra * self.inter


def nearest_first(curves: list[ShapeCurve], shape: IntArray) -> list[ShapeCurve]:
    """Returns the curves of the same reach (inside a domain, or across), nearest first: by distance in log2 of ranks
    per domain, domains and siblings. A difference in ranks per domain counts twice, one in siblings half."""
    reach = (curve for curve in curves if (curve.inter > 1) == (int(shape[1]) > 1))
    target = np.log2(shape.astype(np.float64))

    def away(curve: ShapeCurve) -> float:
        gap = np.abs(np.log2([curve.intra, curve.inter, curve.siblings]) - target)
        return float(2.0 * gap[0] + gap[1] + 0.5 * gap[2])

    return sorted(reach, key=away)


def restate(kind: Collective, curves: list[ShapeCurve], shape: IntArray) -> MonotoneCurve | None:
    """Returns a monotone curve for the group shape ``shape`` (intra, inter, siblings); None when nothing of its
    reach was measured."""
    ordered = nearest_first(curves, shape)
    if not ordered:
        return None
    near = ordered[0]
    ranks = int(shape[0] * shape[1])
    log_size = near.monotone.log_size
    sizes = 2.0**log_size
    # t(S) = L + body(S) of the nearest measured shape, at the sizes where it was measured.
    latency, body = _parts(near, sizes)
    # From one shape: the body by nccl-tests' bus-bandwidth factors, e.g. 2 (n - 1) / n of all-reduce; L by the depth
    # log2 n of a tree.
    wire = float(busbw_factor(kind, ranks) / busbw_factor(kind, near.ranks))
    predicted_body = body * wire
    predicted_latency = latency * np.log2(ranks) / np.log2(near.ranks)
    second = _partner(ordered, int(shape[0]), across=int(shape[1]) > 1)
    if second is not None:
        other_latency, other_body = _parts(second, sizes)
        # From two shapes: the body on the line in 1/n through both, L on the line in log2 n.
        share = (1.0 / ranks - 1.0 / near.ranks) / (1.0 / second.ranks - 1.0 / near.ranks)
        line = body + share * (other_body - body)
        predicted_body = np.clip(line, BODY_BOUNDS[0] * predicted_body, BODY_BOUNDS[1] * predicted_body)
        depth = np.log2(ranks / near.ranks) / np.log2(second.ranks / near.ranks)
        # The line in log2 n may fall below any plausible latency if the two shapes are noisy.
        predicted_latency = max(latency + depth * (other_latency - latency), 0.5 * latency)
    predicted_body = predicted_body * _sharing(kind, near, shape)
    return fit_monotone_curve(sizes, predicted_latency + predicted_body, near.monotone.bend)


def _parts(curve: ShapeCurve, sizes: FloatArray) -> tuple[float, FloatArray]:
    """Returns (latency part, body at ``sizes``) of a measured shape."""
    latency = float(np.exp(curve.monotone.log_seconds[0]))
    times, _ = climb(curve.monotone, sizes)
    return latency, np.asarray(np.maximum(times - latency, 0.0))


def _partner(ordered: list[ShapeCurve], intra: int, *, across: bool) -> ShapeCurve | None:
    """Returns the nearest second shape on the same line in 1/n as the first one, or None."""
    near = ordered[0]
    for curve in ordered[1:]:
        if curve.ranks == near.ranks:
            continue
        # Across domains the body also depends on the NICs per group: only shapes with the same ranks per domain and
        # siblings lie on one line.
        if not across or (curve.intra == near.intra == intra and curve.siblings == near.siblings):
            return curve
    return None


def _sharing(kind: Collective, near: ShapeCurve, shape: IntArray) -> float:
    """Returns the factor on the body for other ranks per domain and more siblings; 1 inside a domain."""
    intra, inter, siblings = (int(value) for value in shape)
    if inter == 1:
        return 1.0
    # Rings leave a domain through one NIC for each of the group's ranks there: fewer ranks per domain, fewer NICs.
    own_nic = kind in OWN_NIC
    nics = 1.0 if own_nic else near.intra / intra
    # siblings x intra: ranks of one domain that use its NICs at once.
    crowd = max(1.0, siblings * intra / (near.siblings * near.intra))
    return nics * crowd


def shape_error(kind: Collective, curves: list[ShapeCurve]) -> float:
    """Returns the relative standard error of ``restate``: the 68th percentile of its absolute errors on measured
    shapes, each estimated from the others, over all sizes; UNTESTED_STD with fewer than three shapes of a reach."""
    errors: list[FloatArray] = []
    step = -(-len(curves) // MOST_SHAPES_TESTED) if curves else 1
    for index, curve in list(enumerate(curves))[::step]:
        rest = curves[:index] + curves[index + 1 :]
        shape = np.asarray([curve.intra, curve.inter, curve.siblings], dtype=np.int64)
        if len(nearest_first(rest, shape)) < 2:
            continue
        predicted = restate(kind, rest, shape)
        if predicted is not None:
            times, _ = climb(predicted, 2.0**curve.monotone.log_size)
            errors.append(np.abs(times / np.exp(curve.monotone.log_seconds) - 1.0))
    if not errors:
        return UNTESTED_STD
    return float(np.quantile(np.concatenate(errors), 0.683))
