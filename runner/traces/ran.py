"""One operation that a rank ran, whoever told of it: a trace or a log."""

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What an operation is, as a comparison adds it up."""

    PRODUCT = "products"
    ATTENTION = "attention"
    KERNEL = "memory-bound"
    OPTIMIZER = "optimizer"
    COLLECTIVE = "communication"


FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """By what an operation of a run is known again; None is what its source does not say.

    ``what``: the collective's name (profdb's; p2p for a message either way), else the part. ``direction``: in which
    pass it ran, of an attention which of its kernels. ``shape``: of a product (batch, smaller of m and n, k, larger),
    as a weight gradient may be computed as its transpose; of an attention the elements of its queries.
    ``size_bytes`` and ``ranks`` of a collective.
    """

    part: Part
    what: str
    direction: str | None = None
    shape: tuple[int, ...] | None = None
    size_bytes: int | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A launch: seconds on the device, when it began, and the name that its source gives it. ``pairs`` of
    queries and keys that an attention looks at, of all heads; None where that is unknown."""

    key: Key
    name: str
    start_s: float
    seconds: float
    pairs: float | None = None


Issued = tuple[float, Ran]
"""When the host issued a launch, and the launch."""


def product_key(batch: int, m: int, k: int, n: int, direction: str | None) -> Key:
    """Of C = A B with A of m x k."""
    shape = (batch, min(m, n), k, max(m, n))
    return Key(part=Part.PRODUCT, what="product", direction=direction, shape=shape)


def collective_key(what: str, size_bytes: int | None, ranks: int | None) -> Key:
    """Of a collective, by the whole array on one rank."""
    return Key(part=Part.COLLECTIVE, what=what, size_bytes=size_bytes, ranks=ranks)
