"""Every kind of token mixer, by its key in a block's table of a config; ops.mixers.registry has what each runs."""

from spec.mixers.attention import AttentionSpec
from spec.mixers.compressed import CompressedAttentionSpec
from spec.mixers.gated_delta import GatedDeltaSpec
from spec.mixers.lightning import LightningSpec
from spec.mixers.mamba2 import Mamba2Spec
from spec.mixers.mixer import Mixer
from spec.mixers.rg_lru import RgLruSpec
from spec.mixers.short_convolution import ShortConvolutionSpec
from spec.mixers.side_by_side import SideBySideSpec

KNOWN: tuple[type[Mixer], ...] = (
    AttentionSpec,
    CompressedAttentionSpec,
    Mamba2Spec,
    GatedDeltaSpec,
    ShortConvolutionSpec,
    SideBySideSpec,
    LightningSpec,
    RgLruSpec,
)
MIXERS: dict[str, type[Mixer]] = {kind.name: kind for kind in KNOWN}
