"""The presets that a user can name."""

from dataclasses import replace

from spec.errors import ConfigError
from spec.presets.deepspeed import DEEPSPEED
from spec.presets.fsdp import FSDP
from spec.presets.hai_llm import HAI_LLM
from spec.presets.internevo import INTERNEVO
from spec.presets.megatron import MEGATRON
from spec.presets.preset import FrameworkPreset
from spec.presets.variants.aleph_alpha import ALEPH_ALPHA
from spec.presets.variants.composer import COMPOSER
from spec.presets.variants.deepspeed_2021 import DEEPSPEED_2021
from spec.presets.variants.deepspeed_bf16 import DEEPSPEED_BF16
from spec.presets.variants.hf_trainer import HF_TRAINER
from spec.presets.variants.internlm import INTERNLM
from spec.presets.variants.maxtext import MAXTEXT
from spec.presets.variants.megatron_2021 import MEGATRON_2021
from spec.presets.variants.megatron_bridge import MEGATRON_BRIDGE
from spec.presets.variants.megatron_fsdp import MEGATRON_FSDP
from spec.presets.variants.nanotron import NANOTRON, PICOTRON
from spec.presets.variants.nemo import NEMO, NEMO2
from spec.presets.variants.torchtitan import FSDP_COMPILED, TORCHTITAN
from spec.presets.variants.variant import Variant
from spec.presets.variants.xtuner import XTUNER, XTUNER_V1
from spec.presets.zero_bubble import ZERO_BUBBLE

WHOLE: dict[str, FrameworkPreset] = {
    preset.name: preset for preset in (MEGATRON, INTERNEVO, DEEPSPEED, FSDP, ZERO_BUBBLE, HAI_LLM)
}
VARIANTS: tuple[Variant, ...] = (
    MEGATRON_BRIDGE,
    MEGATRON_FSDP,
    NEMO,
    NEMO2,
    FSDP_COMPILED,
    TORCHTITAN,
    MAXTEXT,
    COMPOSER,
    HF_TRAINER,
    NANOTRON,
    PICOTRON,
    XTUNER,
    XTUNER_V1,
    MEGATRON_2021,
    DEEPSPEED_2021,
    DEEPSPEED_BF16,
    INTERNLM,
    ALEPH_ALPHA,
)


def changed_by(variant: Variant) -> FrameworkPreset:
    """The preset that a variant tells."""
    ground = WHOLE[variant.of]
    source = f"{variant.source}; otherwise {ground.source}"
    return replace(ground, name=variant.name, source=source).changed(variant.choices)


PRESETS: dict[str, FrameworkPreset] = WHOLE | {one.name: changed_by(one) for one in VARIANTS}


def preset_named(name: str, *, where: str = "--framework") -> FrameworkPreset:
    """The preset of that name; raises ConfigError naming the known ones."""
    if name not in PRESETS:
        raise ConfigError(where=where, key="framework", value=name, allowed=f"one of {', '.join(PRESETS)}")
    return PRESETS[name]
