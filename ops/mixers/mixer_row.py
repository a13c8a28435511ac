"""What a kind of token mixer runs: its row of the table in ops.mixers.registry."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ops.context import LayerContext
from ops.op import Piece
from ops.strategies.sharding import Sharding

Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerRow(Generic[Spec]):
    """``operations`` are all between the layer's first norm and its first residual add, with what each saves,
    owns and moves; ``context_parallel`` names the ways (JobSpec.context_parallel) in which it can work on
    a sequence cut over cp ranks, none where it cannot."""

    operations: Callable[[LayerContext, Sharding, Spec], Piece]
    context_parallel: frozenset[str] = frozenset()
