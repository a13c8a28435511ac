"""Compressed attention of DeepSeek-V4: a window of keys, and entries that each stand for many tokens.

Source: transformers 5.24 ``models/deepseek_v4/modeling_deepseek_v4.py``; Megatron-LM branch dev (d48d6be)
``core/transformer/experimental_attention_variant``: deepseek_v4_hybrid_attention.py, csa.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from spec.mixers.mixer import LeafModule, linear_module, norm_module, parameter_module
from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttentionSpec:
    """``num_heads`` query heads of ``head_dim`` channels, made through ``q_lora_rank`` channels, read one key, which is the
    value too: of the last ``window`` tokens, and an entry for every ``rate`` tokens before (0: none).

    Of these entries ``index_heads`` heads of ``index_dim`` channels select ``index_topk`` (0: all are read); entries that are
    selected from overlap, each of twice as many tokens. Outputs go back to hidden states through ``out_groups`` groups of heads,
    each to ``out_rank`` channels. ``rope_dim`` channels of a head are rotated.
    """

    name: ClassVar[str] = "compressed_attention"

    num_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    window: int
    out_groups: int
    out_rank: int
    rate: int = 0
    index_topk: int = 0
    index_heads: int = 0
    index_dim: int = 0

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """Returns the layer of a config. Raises ConfigError where groups do not divide the heads, or an indexer is not whole."""
        heads = section.integer("num_heads")
        mixer = section.record(cls, num_heads=heads)
        if heads % mixer.out_groups:
            section.fail("out_groups", f"a divisor of num_heads = {heads}")
        indexer = (mixer.index_topk, mixer.index_heads, mixer.index_dim)
        if any(indexer) and not (all(indexer) and mixer.rate):
            section.fail("index_heads", "heads of index_dim channels that select index_topk entries of rate tokens")
        section.close()
        return mixer

    @property
    def series(self) -> int:
        """Returns how often a token's channels are compressed: twice where entries overlap."""
        return 2 if self.index_heads else 1

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Returns 1: every rank needs all heads (deepseek_v4_hybrid_attention.py asserts tp 1; transformers leaves them whole)."""
        return (1,)

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """None."""
        return ()

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """Projections, compressor, indexer, sinks and the two products out; the queries' second norm has no weights."""
        width, dim = self.num_heads * self.head_dim, self.head_dim
        yield linear_module(f"{prefix}.q_down", (self.q_lora_rank, hidden))
        yield norm_module(f"{prefix}.q_norm", self.q_lora_rank)
        yield linear_module(f"{prefix}.q_up", (width, self.q_lora_rank))
        yield linear_module(f"{prefix}.kv", (dim, hidden))
        yield norm_module(f"{prefix}.kv_norm", dim)
        if self.rate:
            yield from self._compressor(hidden, f"{prefix}.compress", dim)
        if self.index_heads:
            yield linear_module(f"{prefix}.index_q", (self.index_heads * self.index_dim, self.q_lora_rank))
            yield from self._compressor(hidden, f"{prefix}.index", self.index_dim)
            yield linear_module(f"{prefix}.index_weights", (self.index_heads, hidden))
        yield parameter_module(f"{prefix}.sinks", (self.num_heads,))
        latents = self.out_groups * self.out_rank
        yield linear_module(f"{prefix}.out_down", (latents, width // self.out_groups))
        yield linear_module(f"{prefix}.out", (hidden, latents))

    def _compressor(self, hidden: int, prefix: str, dim: int) -> Iterator[LeafModule]:
        channels = self.series * dim
        yield linear_module(f"{prefix}_kv", (channels, hidden))
        yield linear_module(f"{prefix}_gate", (channels, hidden))
        yield parameter_module(f"{prefix}_positions", (self.rate, channels))
        yield norm_module(f"{prefix}_norm", dim)
