"""One thing a rank would run: compute seconds, a collective, or both names for it."""

from dataclasses import dataclass

from ops.op import Axis, Lane, Phase
from ops.roles import Identity
from profdb.cases import AttentionCase
from spec.collectives import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem(Identity):
    """One operation of one rank in plain numbers.

    Compute items have ``collective`` None and take ``seconds``; a collective moves ``size_bytes`` (whole
    array on one rank) over ``axis``, in groups of ``ranks``, and takes ``seconds`` when nothing hides it.
    ``count`` identical launches, already inside ``seconds`` but not inside ``size_bytes``. ``shape`` of a
    matrix product is (batch, m, k, n), otherwise empty; ``attention`` is the call of one. ``host_bytes`` of
    each launch travel between the rank and its host; other items have none.
    """

    phase: Phase
    seconds: float
    collective: Collective | None = None
    axis: Axis | None = None
    size_bytes: int = 0
    ranks: int = 1
    lane: Lane = Lane.MAIN
    count: int = 1
    shape: tuple[int, ...] = ()
    attention: AttentionCase | None = None
    host_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of all launches."""
        return self.size_bytes * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceWork:
    """A layer, the embedding or the head: ``repeat`` times in a row on this stage, per micro-batch."""

    name: str
    repeat: int
    forward: tuple[WorkItem, ...]
    backward: tuple[WorkItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """All one rank of one pipeline stage runs in one step.

    ``pieces`` in forward order, ``num_micro`` times; ``step`` once; ``hops`` transfers to and from
    neighbouring stages per micro-batch of ``hop_bytes`` and ``hop_s`` each. ``chunk_layers[c][k]`` is how
    many layers of block kind k virtual chunk c holds; empty: the layers are dealt evenly.
    """

    position: int
    count: int
    num_micro: int
    pieces: tuple[PieceWork, ...]
    step: tuple[WorkItem, ...]
    hops: int
    hop_bytes: int
    hop_s: float
    chunk_layers: tuple[tuple[int, ...], ...] = ()

    def per_micro_batch(self) -> list[tuple[int, WorkItem]]:
        """Every item of one micro-batch with how often it runs."""
        return [(piece.repeat, item) for piece in self.pieces for item in (*piece.forward, *piece.backward)]
