"""What each kind of token mixer runs, by the type of its sizes; spec.mixers.registry has what each is."""

from typing import Any

from ops.mixers.attention import ATTENTION
from ops.mixers.compressed import COMPRESSED
from ops.mixers.gated_delta import GATED_DELTA
from ops.mixers.lightning import LIGHTNING
from ops.mixers.mamba2 import MAMBA2
from ops.mixers.mixer import MixerRow
from ops.mixers.rg_lru import RG_LRU
from ops.mixers.short_convolution import SHORT_CONVOLUTION
from ops.mixers.side_by_side import SIDE_BY_SIDE
from spec.mixers.attention import AttentionSpec
from spec.mixers.compressed import CompressedAttentionSpec
from spec.mixers.gated_delta import GatedDeltaSpec
from spec.mixers.lightning import LightningSpec
from spec.mixers.mamba2 import Mamba2Spec
from spec.mixers.mixer import Mixer
from spec.mixers.rg_lru import RgLruSpec
from spec.mixers.short_convolution import ShortConvolutionSpec
from spec.mixers.side_by_side import SideBySideSpec

MIXERS: dict[type[Mixer], MixerRow[Any]] = {
    # A mixer is a line.
    AttentionSpec: ATTENTION,
    CompressedAttentionSpec: COMPRESSED,
    Mamba2Spec: MAMBA2,
    GatedDeltaSpec: GATED_DELTA,
    ShortConvolutionSpec: SHORT_CONVOLUTION,
    SideBySideSpec: SIDE_BY_SIDE,
    LightningSpec: LIGHTNING,
    RgLruSpec: RG_LRU,
}
