"""Named precisions: how the products of linear layers are narrowed, as the libraries that do it do.

Parameters, activations and optimizer state keep their formats; only the operands of the linears' products, their
scales and the casts before them change, and, where a framework's own recipes say so (``data_parallel.held_narrow``,
``casts_shards``), the format in which weights are held and gathered. Sources, read 2026-11:

- fp8-tensor, fp8-rowwise: torchao ``float8/config.py``, recipes "tensorwise" and "rowwise" (scales of the tensor at
  hand; inputs and weights kept in 16 bits and cast again in the backward).
- fp8-current: Transformer Engine ``common/recipe``, Float8CurrentScaling (Megatron-Core --fp8-recipe tensorwise).
- fp8-blockwise: DeepSeek-V3, arXiv 2412.19437 sec. 3.3.2, 1 x 128 of activations and 128 x 128 of weights;
  Transformer Engine's Float8BlockScaling (--fp8-recipe blockwise).
- mxfp8, nvfp4: Transformer Engine, MXFP8BlockScaling and NVFP4BlockScaling (scales of 32 and of 16 numbers). Where a framework's
  MXFP8 is torchao's (``layers.casts_again``; ``prototype/mx_formats/mx_linear.py``, mx_mm), it casts as torchao does.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spec.frameworks import FrameworkPreset
from spec.job import Precision, Wide, precision_of

WIDE: tuple[Wide, ...] = ("bf16", "fp16")
NARROW: Mapping[str, Mapping[str, Any]] = {
    "fp8-tensor": {
        "linear": "fp8",
        "scale_recipe": "tensor",
        "scaling": "dynamic",
        "casts_every_forward": True,
    },
    "fp8-current": {"linear": "fp8", "scale_recipe": "tensor", "scaling": "current"},
    "fp8-rowwise": {"linear": "fp8", "scale_recipe": "row", "scaling": "row", "casts_every_forward": True},
    "fp8-blockwise": {"linear": "fp8", "scale_recipe": "block", "scaling": "block"},
    "mxfp8": {"linear": "fp8", "scale_recipe": "mx", "scaling": "block"},
    "nvfp4": {"linear": "fp4", "scale_recipe": "block", "scaling": "block"},
}
PRECISIONS: tuple[str, ...] = (*WIDE, *NARROW)


def named_precision(name: str, preset: FrameworkPreset) -> Precision:
    """The precision of that name (one of PRECISIONS) as the framework trains with it."""
    for wide in WIDE:
        if name == wide:
            return precision_of(preset, wide)
    said, choices = NARROW[name], preset.data_parallel
    held = said["scale_recipe"] in choices.held_narrow
    travels = said["scale_recipe"] == "tensor" and (held or choices.casts_shards)
    gathered = {"parameter_gather": said["linear"]} if travels else {}
    again = said["scale_recipe"] == "mx" and preset.layers.casts_again
    casts = {**said, "scaling": "dynamic", "casts_every_forward": True} if again else said
    return replace(precision_of(preset), **casts, narrow_parameters=held, **gathered)
