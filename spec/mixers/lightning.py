"""Lightning attention (arXiv 2405.17381; MiniMax-01, arXiv 2501.08313 sec. 2.2.1): linear attention whose state decays by a fixed
rate a head, in chunks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from spec.mixers.mixer import LeafModule, linear_module, norm_module
from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSpec:
    """``num_heads`` heads, each with a state of ``head_dim`` x ``head_dim``, of which ``chunk_size`` tokens become products."""

    name: ClassVar[str] = "lightning"

    num_heads: int
    head_dim: int
    chunk_size: int = 256

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """Returns the layer of a config; heads are as wide as they share the hidden size where it does not say."""
        heads = section.integer("num_heads")
        mixer = section.record(cls, num_heads=heads, head_dim=section.integer("head_dim", max(hidden // heads, 1)))
        section.close()
        return mixer

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Heads."""
        return (self.num_heads,)

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """None."""
        return ()

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """transformers ``models/minimax/modeling_minimax.py``, MiniMaxLightningAttention."""
        inner = self.num_heads * self.head_dim
        yield linear_module(f"{prefix}.qkv_proj", (3 * inner, hidden))
        yield norm_module(f"{prefix}.norm", inner)
        yield linear_module(f"{prefix}.output_gate", (inner, hidden))
        yield linear_module(f"{prefix}.out_proj", (hidden, inner))
