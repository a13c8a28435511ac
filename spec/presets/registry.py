"""The presets that a user can name."""

from spec.errors import ConfigError
from spec.presets.deepspeed import DEEPSPEED
from spec.presets.fsdp import FSDP
from spec.presets.internevo import INTERNEVO
from spec.presets.megatron import MEGATRON
from spec.presets.preset import FrameworkPreset
from spec.presets.zero_bubble import ZERO_BUBBLE

PRESETS: dict[str, FrameworkPreset] = {
    preset.name: preset for preset in (MEGATRON, INTERNEVO, DEEPSPEED, FSDP, ZERO_BUBBLE)
}


def preset_named(name: str, *, where: str = "--framework") -> FrameworkPreset:
    """The preset of that name; raises ConfigError naming the known ones."""
    if name not in PRESETS:
        raise ConfigError(where=where, key="framework", value=name, allowed=f"one of {', '.join(PRESETS)}")
    return PRESETS[name]
