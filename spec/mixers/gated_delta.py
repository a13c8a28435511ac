"""Gated DeltaNet (arXiv 2412.06464): a state per head, decayed, corrected and read token by token, in chunks; and Kimi Delta
Attention (arXiv 2510.26692), which decays every channel of a key apart."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from spec.mixers.mixer import LeafModule, Tensor, linear_module, norm_module, parameter_module
from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaSpec:
    """``num_value_heads`` heads, each with a state of ``key_dim`` x ``value_dim``; groups of them share one of
    ``num_key_heads`` queries and keys. The convolution over queries, keys and values spans ``conv_kernel`` tokens.
    ``channel_decay`` is Kimi's; there ``gate_rank`` channels stand between the hidden states and decays, and between them and
    output gates (0: one product each).
    """

    name: ClassVar[str] = "gated_delta"

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4
    channel_decay: bool = False
    gate_rank: int = 0

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """Returns the layer of a config, with as many key heads as value heads and keys as wide as values where it does not
        say."""
        heads = section.integer("num_value_heads")
        key_heads = section.integer("num_key_heads", heads)
        key_dim = section.integer("key_dim", section.integer("value_dim"))
        mixer = section.record(cls, num_key_heads=key_heads, key_dim=key_dim)
        if heads % mixer.num_key_heads:
            section.fail("num_key_heads", f"a divisor of num_value_heads = {heads}")
        if mixer.channel_decay and mixer.num_key_heads != heads:
            section.fail(
                "num_key_heads", f"num_value_heads = {heads}: decays of channels are priced with as many heads of both"
            )
        if mixer.gate_rank and not mixer.channel_decay:
            section.fail("gate_rank", "0, or channel_decay")
        section.close()
        return mixer

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Both kinds of heads (Megatron-LM, transformer_config.py, asserts both)."""
        return (self.num_key_heads, self.num_value_heads)

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """None."""
        return ()

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """transformers ``models/qwen3_next/modular_qwen3_next.py``, Qwen3NextGatedDeltaNet: queries, keys, values and
        output gates in one product, write strengths and decays in another; the convolution without biases; per
        head a bias of the decay and its rate; one norm for all heads; the output."""
        keys, values = self.num_key_heads * self.key_dim, self.num_value_heads * self.value_dim
        if self.channel_decay:
            yield from self._channel_projections(hidden, prefix)
        else:
            yield linear_module(f"{prefix}.in_proj_qkvz", (2 * keys + 2 * values, hidden))
            yield linear_module(f"{prefix}.in_proj_ba", (2 * self.num_value_heads, hidden))
        taps = Tensor(name=f"{prefix}.conv1d.weight", shape=(2 * keys + values, 1, self.conv_kernel))
        yield LeafModule(name=f"{prefix}.conv1d", tensors=(taps,))
        yield parameter_module(f"{prefix}.dt_bias", (keys if self.channel_decay else self.num_value_heads,))
        yield parameter_module(f"{prefix}.A_log", (self.num_value_heads,))
        yield norm_module(f"{prefix}.norm", self.value_dim)
        yield linear_module(f"{prefix}.out_proj", (hidden, values))

    def _channel_projections(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """transformers ``models/kimi_linear/modeling_kimi_linear.py``, KimiLinearDeltaAttention: queries, keys, values, write
        strengths; decays and output gates through a few channels, or as BailingHybridDeltaAttention at once."""
        keys, values = self.num_key_heads * self.key_dim, self.num_value_heads * self.value_dim
        yield linear_module(f"{prefix}.qkv_proj", (2 * keys + values, hidden))
        yield linear_module(f"{prefix}.b_proj", (self.num_value_heads, hidden))
        for name, width in (("f", keys), ("g", values)):
            if self.gate_rank:
                yield linear_module(f"{prefix}.{name}_a_proj", (self.gate_rank, hidden))
            yield linear_module(f"{prefix}.{name}_b_proj", (width, self.gate_rank or hidden))
