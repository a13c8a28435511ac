"""Who is slower than its peers, by how many deviations: ranks, nodes, NICs, links."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spec.arrays import FloatArray

MOST_DEVIATIONS = 3.0
LEAST_SHARE = 0.05
"""A peer that is slower by less is no finding, however even the others are."""
LEAST_DEVIATION = 0.01
"""Deviation of peers that are more even than a measurement can tell."""
LEAST_PEERS = 3
"""Of two, nobody knows which one is odd."""


@dataclass(frozen=True, slots=True)
class SlowPeer:
    """One of several peers: its place among them, its seconds over their median, and how many deviations that is."""

    place: int
    ratio: float
    deviations: float

    def text(self) -> str:
        """``1.31 x the median of its peers (5.2 deviations)``."""
        return f"{self.ratio:.2f} x the median of its peers ({min(self.deviations, 99.0):.1f} deviations)"


def slow_peers(seconds: Sequence[float] | FloatArray) -> list[SlowPeer]:
    """Peers that take longer than the median by more than MOST_DEVIATIONS and LEAST_SHARE, the slowest first; NaN is nobody.

    The deviation is 1.4826 times the median absolute deviation of the logarithms, which the slow ones themselves do not
    widen (Rousseeuw and Croux 1993).
    """
    values = np.asarray(seconds, dtype=np.float64)
    logs = np.log(values)
    known = logs[np.isfinite(logs)]
    if known.size < LEAST_PEERS:
        return []
    middle = float(np.median(known))
    deviation = max(1.4826 * float(np.median(np.abs(known - middle))), LEAST_DEVIATION)
    slow = [
        SlowPeer(place=place, ratio=float(np.exp(log - middle)), deviations=float((log - middle) / deviation))
        for place, log in enumerate(logs)
        if log - middle > max(MOST_DEVIATIONS * deviation, np.log1p(LEAST_SHARE))
    ]
    return sorted(slow, key=lambda one: -one.ratio)


@dataclass(slots=True, kw_only=True)
class PeerTimes:
    """Seconds of every rank beside the median of all, by kind of work, over the cases of a run."""

    sums: dict[str, FloatArray] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, seconds: FloatArray) -> None:
        """The seconds of one case on every rank."""
        logs = np.log(seconds / np.median(seconds))
        self.sums[kind] = self.sums.get(kind, np.zeros(seconds.shape)) + logs
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def slow_ranks(self, kind: str) -> list[SlowPeer]:
        """Ranks that are slower than the others in a kind of work, in the mean of its cases."""
        return slow_peers(np.exp(self.sums[kind] / self.counts[kind]))


def slow_rank_lines(times: PeerTimes, hosts: Sequence[str]) -> list[str]:
    """A line for each kind of work and host with slow ranks; ``hosts`` has every rank's."""
    lines = []
    for kind in times.sums:
        slow: dict[str, list[SlowPeer]] = {}
        for one in times.slow_ranks(kind):
            slow.setdefault(hosts[one.place], []).append(one)
        for host, ranks in slow.items():
            places = sorted(one.place for one in ranks)
            whole = len(places) == sum(other == host for other in hosts)
            who = host if whole and len(set(hosts)) > 1 else f"{host}, rank {', '.join(map(str, places))}"
            lines.append(f"slow: {who}: {kind} take {ranks[0].text()}{leave_out(host, hosts)}")
    return lines


def leave_out(host: str, hosts: Sequence[str]) -> str:
    """How to run without a host, where there are others."""
    return f"; leave it out with launch --exclude {host}" if len(set(hosts)) > 1 else ""
