"""Adding up the times of operations: seconds by part of the step and by origin, and standard errors by curve family.

Estimates of one curve family err together, so their errors add; families are independent, so theirs add in quadrature.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ops.op import Axis
from profdb.queries import NOTHING_CARRIED
from spec.arrays import FloatArray, IntArray
from spec.origin import Origin

Name = TypeVar("Name")

CARRIED = "carried"
"""The family of constants carried from another GPU or shape: whatever rests on them errs together."""

PARTS: tuple[str, ...] = (
    "gemm",
    "grouped_gemm",
    "attention",
    "memory_bound",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "wp_comm",
    "dp_comm",
    "optimizer",
    "offload",
    "host",
)

COMM_PART: dict[Axis, str] = {
    Axis.TP: "tp_comm",
    Axis.CP: "cp_comm",
    Axis.EP: "ep_comm",
    Axis.ETP: "ep_comm",
    Axis.WP: "wp_comm",
    Axis.DP: "dp_comm",
    Axis.DP_CP: "dp_comm",
    Axis.EDP: "dp_comm",
    Axis.WDP: "dp_comm",
    Axis.SDP: "dp_comm",
    Axis.SDP_SHARD: "dp_comm",
    Axis.SDP_REPLICATE: "dp_comm",
    Axis.ZERO_SHARD: "dp_comm",
    Axis.ZERO_REPLICATE: "dp_comm",
    Axis.EMBEDDING: "dp_comm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SumByPart:
    """Sums over operations for N rows.

    ``parts[name]`` and ``origins[origin]`` are seconds, and both add up to ``seconds``; ``std_s[family]`` are standard
    errors in seconds.
    """

    parts: dict[str, FloatArray] = field(default_factory=dict)
    origins: dict[Origin, FloatArray] = field(default_factory=dict)
    std_s: dict[str, FloatArray] = field(default_factory=dict)
    length: int = 1

    @property
    def seconds(self) -> FloatArray:
        """Returns the sum of the parts."""
        total = np.zeros(self.length)
        for value in self.parts.values():
            total = total + value
        return total

    def take(self, rows: IntArray, times: FloatArray | IntArray | float = 1) -> "SumByPart":
        """Returns these rows, each so many times."""
        return SumByPart(
            parts={key: value[rows] * times for key, value in self.parts.items()},
            origins={key: value[rows] * times for key, value in self.origins.items()},
            std_s={key: value[rows] * times for key, value in self.std_s.items()},
            length=len(rows),
        )

    @staticmethod
    def stacked(parts: Sequence["SumByPart"]) -> "SumByPart":
        """Returns the rows of all ``parts``, one after another; what one of them has nothing of is 0 there."""

        def columns(of: Sequence[dict[Name, FloatArray]]) -> dict[Name, FloatArray]:
            names = dict.fromkeys(name for one in of for name in one)
            nothing = [np.zeros(one.length) for one in parts]
            return {
                name: np.concatenate([one.get(name, zero) for one, zero in zip(of, nothing, strict=True)])
                for name in names
            }

        return SumByPart(
            parts=columns([one.parts for one in parts]),
            origins=columns([one.origins for one in parts]),
            std_s=columns([one.std_s for one in parts]),
            length=sum(one.length for one in parts),
        )

    @property
    def standard_error_s(self) -> FloatArray:
        """Returns the standard error of ``seconds``."""
        total = np.zeros(self.length)
        for value in self.std_s.values():
            total = total + value**2
        return np.sqrt(total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Seconds of N rows in one part of the step, from one curve family, with the origin of each row; ``carried_std`` is
    the relative error of constants carried from elsewhere (CARRIED), besides the family's own."""

    part: str
    family: str
    seconds: FloatArray
    relative_std: FloatArray
    origin: IntArray
    carried_std: FloatArray = field(default_factory=lambda: NOTHING_CARRIED)


def sum_by_part(shares: Iterable[Share], length: int) -> SumByPart:
    """Returns the sum of shares of ``length`` rows each."""
    parts: dict[str, FloatArray] = {}
    origins: dict[Origin, FloatArray] = {}
    errors: dict[str, FloatArray] = {}
    zero = np.zeros(length)
    for share in shares:
        parts[share.part] = parts.get(share.part, zero) + share.seconds
        errors[share.family] = errors.get(share.family, zero) + share.seconds * share.relative_std
        if share.carried_std.any():
            errors[CARRIED] = errors.get(CARRIED, zero) + share.seconds * share.carried_std
        for code, seconds in _by_origin(share):
            origins[code] = origins.get(code, zero) + seconds
    return SumByPart(parts=parts, origins=origins, std_s=errors, length=length)


def _by_origin(share: Share) -> Iterator[tuple[Origin, FloatArray]]:
    """Yields each origin and its seconds, 0 in rows of another."""
    # Most shares have one origin throughout.
    first = share.origin[:1]
    if (share.origin == first).all():
        yield from ((Origin(int(code)), share.seconds) for code in first)
        return
    for code in np.unique(share.origin):
        yield Origin(int(code)), np.where(share.origin == code, share.seconds, 0.0)


def total_by_part(sums: Iterable[SumByPart], length: int) -> SumByPart:
    """Returns the sum of several sums over the same rows."""
    parts: dict[str, FloatArray] = {}
    origins: dict[Origin, FloatArray] = {}
    errors: dict[str, FloatArray] = {}
    for one in sums:
        for part, value in one.parts.items():
            parts[part] = parts[part] + value if part in parts else value
        for origin, value in one.origins.items():
            origins[origin] = origins[origin] + value if origin in origins else value
        for family, value in one.std_s.items():
            errors[family] = errors[family] + value if family in errors else value
    return SumByPart(parts=parts, origins=origins, std_s=errors, length=length)
