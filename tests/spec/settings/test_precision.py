"""Named precisions narrow the linears' products and nothing else."""

from dataclasses import fields, replace

import pytest

from ops.low_precision import RECIPES
from profdb.cost_model import FP8_RECIPES
from spec.dtypes import dtype_bytes
from spec.frameworks import framework_names, framework_preset
from spec.job import Precision, precision_of
from spec.settings.job import NARROW, PRECISIONS, named_precision

PRODUCTS = {"linear", "scale_recipe", "scaling", "casts_every_forward"}
HELD = {"parameter_gather", "narrow_parameters"}


@pytest.mark.parametrize("framework", framework_names(legacy=True))
@pytest.mark.parametrize("name", NARROW)
def test_only_products_scales_and_casts_change(name: str, framework: str) -> None:
    preset = framework_preset(framework)
    wide, narrow = precision_of(preset), named_precision(name, preset)
    assert replace(narrow, **{one: getattr(wide, one) for one in PRODUCTS | HELD}) == wide
    assert dtype_bytes(narrow.linear) < dtype_bytes(narrow.parameter) == dtype_bytes(narrow.activation) == 2.0


@pytest.mark.parametrize(
    ("framework", "name", "expected"),
    [
        # NeMo v2.3.0 and Megatron-Bridge v0.2.0, mixed_precision.py: fp8_param_gather of each recipe
        ("nemo2", "fp8-current", ("fp8", True)),
        ("nemo2", "mxfp8", ("bf16", False)),
        ("megatron-bridge", "fp8-current", ("fp8", True)),
        ("megatron-bridge", "mxfp8", ("bf16", True)),
        ("megatron-bridge", "fp8-blockwise", ("bf16", False)),
        ("megatron-bridge", "nvfp4", ("bf16", False)),
        # XLA casts before it gathers, and holds fp32 shards
        ("maxtext", "fp8-current", ("fp8", False)),
        ("maxtext", "mxfp8", ("bf16", False)),
        # an option that is off: Megatron-LM --fp8-param-gather, torchao enable_fsdp_float8_all_gather
        ("megatron", "fp8-current", ("bf16", False)),
        ("fsdp-compiled", "fp8-tensor", ("bf16", False)),
    ],
)
def test_weights_are_held_and_gathered_as_own_recipes_say(
    framework: str, name: str, expected: tuple[str, bool]
) -> None:
    found = named_precision(name, framework_preset(framework))
    assert (found.parameter_gather, found.narrow_parameters) == expected


def test_the_sixteen_bit_ones_are_the_frameworks_own() -> None:
    for name in ("bf16", "fp16"):
        assert named_precision(name, framework_preset("megatron")) == precision_of(
            framework_preset("megatron"), name
        )


@pytest.mark.parametrize(
    ("name", "scales", "scaling"),
    [
        ("fp8-tensor", "tensor", "dynamic"),
        ("fp8-current", "tensor", "current"),
        ("fp8-rowwise", "row", "row"),
        ("fp8-blockwise", "block", "block"),
        ("mxfp8", "mx", "block"),
        ("nvfp4", "block", "block"),
    ],
)
def test_scales_and_casts_are_those_of_the_library(name: str, scales: str, scaling: str) -> None:
    precision = named_precision(name, framework_preset("megatron"))
    assert (precision.scale_recipe, precision.scaling) == (scales, scaling)
    assert scales in FP8_RECIPES
    assert scaling in RECIPES
    assert precision.casts_every_forward == (name in ("fp8-tensor", "fp8-rowwise"))  # torchao's


def test_mxfp8_casts_as_the_frameworks_library_does() -> None:
    found = {
        name: named_precision("mxfp8", framework_preset(name))
        for name in ("torchtitan", "fsdp-compiled", "maxtext")
    }
    assert [found[name].scaling for name in found] == ["dynamic", "dynamic", "block"]
    assert [found[name].casts_every_forward for name in found] == [True, True, False]


def test_all_names() -> None:
    assert PRECISIONS == (
        "bf16",
        "fp16",
        "fp8-tensor",
        "fp8-current",
        "fp8-rowwise",
        "fp8-blockwise",
        "mxfp8",
        "nvfp4",
    )
    assert {one.name for one in fields(Precision)} >= PRODUCTS
