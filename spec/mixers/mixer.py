"""What every kind of token mixer says of itself; models, rules and readers are written once against it."""

from collections.abc import Iterator
from typing import ClassVar, Protocol, Self

from spec.section import Section
from spec.weights import Module


class Mixer(Protocol):
    """What mixes tokens in a layer, between its first norm and its first residual add.

    A kind is a frozen dataclass of its sizes (elements, never bytes), so that equal layers compare equal.
    """

    name: ClassVar[str]
    """Its key in a block's table of a config, and the first word of its operations and weights."""

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """The mixer of a block's table in a model of ``hidden`` channels; closes the section. Raises
        ConfigError."""
        ...

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Numbers of heads (or groups) that tensor parallelism deals out whole: tp must divide each."""
        ...

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """Numbers of heads that others share: tp must divide each, or be a multiple of it where the
        framework repeats them."""
        ...

    def modules(self, hidden: int, prefix: str) -> Iterator[Module]:
        """Its weights in forward order, whole; names begin with ``prefix``."""
        ...


def mixer_parameters(mixer: Mixer, hidden: int) -> int:
    """Parameters of one mixer: the elements of its weights."""
    return sum(module.elements for module in mixer.modules(hidden, mixer.name))
