"""What a kind of token mixer runs: its row of the table in ops.mixers.registry."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ops.context import LayerContext
from ops.head_exchange import HeadTensors
from ops.op import Piece
from ops.roles import Module
from ops.strategies.sharding import Sharding

Spec = TypeVar("Spec")


def _never(_: object) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerRow(Generic[Spec]):
    """The operations between a layer's first norm and its first residual add, in three parts; each operation
    says what it saves, owns and moves."""

    module: Module
    """What they belong to, and the norm and the residual add around them too."""
    project: Callable[[LayerContext, Sharding, Spec], Piece]
    """From the normed hidden states to what the core reads, token by token."""
    core: Callable[[LayerContext, Sharding, Spec], Piece]
    """What needs a whole sequence: over this rank's heads. It may own weights of more heads than it works on:
    those of the projections."""
    output: Callable[[LayerContext, Sharding, Spec], Piece]
    """From what the core gives back to hidden states, token by token."""
    exchanged: Callable[[Spec], HeadTensors]
    """What the core reads and gives: it travels where ranks hold tokens outside the core and heads inside."""
    context_parallel: frozenset[str] = frozenset()
    """The ways (JobSpec.context_parallel) in which the core can work where sequences are cut over cp."""
    whole_rows: Callable[[Spec], bool] = _never
    """Whether a core needs all keys of its heads at once, so that all-to-all alone can cut sequences."""

    def cuts_sequences(self, spec: Spec, way: str) -> bool:
        """Whether the core of ``spec`` can work where sequences are cut in ``way``."""
        return way in self.context_parallel and (way == "all_to_all" or not self.whole_rows(spec))
