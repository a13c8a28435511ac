"""Attention and Mamba-2 side by side in a layer: both read its norm, and their outputs are added (Falcon-H1, arXiv 2507.22448
sec. 2.1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from spec.mixers.attention import AttentionSpec
from spec.mixers.mamba2 import Mamba2Spec
from spec.mixers.mixer import LeafModule
from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySideSpec:
    """Both halves, each with heads of its own."""

    name: ClassVar[str] = "side_by_side"

    attention: AttentionSpec
    mamba2: Mamba2Spec

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """Returns both from their tables."""
        attention = AttentionSpec.read(section.section("attention"), hidden)
        mixer = cls(attention=attention, mamba2=Mamba2Spec.read(section.section("mamba2"), hidden))
        section.close()
        return mixer

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Those of both."""
        return (*self.attention.cut_heads, *self.mamba2.cut_heads)

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """Those of attention."""
        return self.attention.repeatable_heads

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """Attention's, then Mamba-2's."""
        yield from self.attention.modules(hidden, f"{prefix}.attention")
        yield from self.mamba2.modules(hidden, f"{prefix}.mamba2")
