"""How the reference transformer runs its layers, as job settings that replace those of a framework's preset, so that a
step of plain PyTorch is compared with the price of plain PyTorch."""

from collections.abc import Mapping

EAGER: Mapping[str, object] = {
    "layers.transformer_engine": False,
    "layers.norm_kernel": "torch",
    "layers.joined_gate": False,
    "layers.joined_qkv": False,
    "layers.splits_joined_qkv": False,
    "layers.fused_activation": False,
    "unfused": frozenset({"rotary"}),
    "loss.fused": False,
    "loss.plain": True,
    "host.code": "torch",
}
"""runner.reference.layers and runner.training.trainer: linears apart, torch's norms and cross-entropy, the rest one
operation after another."""
COMPILED: Mapping[str, object] = dict(EAGER) | {
    "layers.norm_kernel": "fused",
    "layers.fused_activation": True,
    "layers.fused_sums": True,
    "unfused": frozenset(),
    "host.code": "compiled",
}
"""The same with blocks compiled by torch.compile, the loss not."""
FLASH2: Mapping[str, object] = {"attention_kernel": "flash2"}
"""Where torch's attention is its own FlashAttention-2."""


def settings_of(*, compiled: bool) -> Mapping[str, object]:
    """Returns the settings by key (spec.settings.job)."""
    return COMPILED if compiled else EAGER
