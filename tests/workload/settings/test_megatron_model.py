"""A model's shapes as Megatron-LM's flags; tests/workload/settings/test_handed_over.py counts what they build."""

from dataclasses import replace
from typing import Any

import pytest

from solver.plans.plan_table import Plan
from spec.errors import ExportError
from spec.mixers.attention import QkNormWeights
from spec.model import BlockRun, MlpSpec, MoeSpec, NormKind, NormPlace
from tests.solver.questions import small_model
from tests.workload.random_plans import EXPERTS, LATENT
from tests.workload.settings.asking import known, with_block
from workload.settings.megatron_flags import model_flags

PLAN = Plan(strategy="fsp", preset="megatron")
SMALL = small_model(layers=8)


def flags_of(**changes: Any) -> dict[str, object]:
    return dict(model_flags(*known(PLAN, model=with_block(SMALL, **changes))))


def test_norms_of_latents_are_asked_for() -> None:
    assert "--qk-layernorm" in flags_of(mixer=LATENT)
    assert "--qk-layernorm" not in flags_of()
    assert "--qk-layernorm" in flags_of(mixer=replace(SMALL.blocks[0].block.mixer, qk_norm=True))


@pytest.mark.parametrize(
    ("mlp", "written"),
    [
        (MlpSpec(ffn_hidden=64, gated=True), {"--swiglu"}),
        (MlpSpec(ffn_hidden=64, gated=False, activation="gelu"), set()),
        (MlpSpec(ffn_hidden=64, gated=False, activation="squared_relu"), {"--squared-relu"}),
    ],
)
def test_activations(mlp: MlpSpec, written: set[str]) -> None:
    flags = flags_of(mlp=mlp)
    assert written == flags.keys() & {"--swiglu", "--squared-relu", "--no-bias-gelu-fusion"}


def test_a_bias_is_fused_with_gelu_alone() -> None:
    attention = replace(SMALL.blocks[0].block.mixer, qkv_bias=True, out_bias=True)
    mlp = MlpSpec(ffn_hidden=64, gated=False, bias=True, activation="squared_relu")
    assert "--no-bias-gelu-fusion" in flags_of(mixer=attention, mlp=mlp)


def test_experts_beside_dense_layers() -> None:
    dense, routed = SMALL.blocks[0].block, replace(SMALL.blocks[0].block, mlp=None, moe=EXPERTS)
    runs = (BlockRun(block=dense, count=1), BlockRun(block=routed, count=7))
    flags = model_flags(*known(PLAN, model=replace(SMALL, blocks=runs)))
    assert flags["--moe-layer-freq"] == "([0]*1+[1]*7)"
    assert flags["--moe-shared-expert-intermediate-size"] == EXPERTS.shared_ffn_hidden
    gated = flags_of(mlp=None, moe=replace(EXPERTS, shared_gate=True))
    assert "--moe-shared-expert-gate" in gated


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"parallel_residual": True}, "parallel residuals"),
        ({"norm": NormKind.LAYER}, "norms of two kinds"),
        ({"mlp": MlpSpec(ffn_hidden=64, gated=True, activation="gelu")}, "gates by gelu"),
        ({"mlp": MlpSpec(ffn_hidden=64, gated=False, activation="relu")}, "activations by relu"),
        ({"mlp": None, "moe": replace(EXPERTS, bias=True)}, "biases"),
        ({"mlp": None, "moe": replace(EXPERTS, clamped=True)}, "clamped"),
        ({"mlp": None, "moe": replace(EXPERTS, router_bias=True)}, "softmax router"),
        ({"mixer": replace(SMALL.blocks[0].block.mixer, v_dim=32)}, "another width"),
        ({"norm_place": NormPlace.AROUND}, "norms elsewhere"),
        ({"mixer": replace(SMALL.blocks[0].block.mixer, softcap=True)}, "soft-capped"),
        ({"mixer": replace(SMALL.blocks[0].block.mixer, alibi=True)}, "ALiBi"),
        ({"mixer": replace(SMALL.blocks[0].block.mixer, chunk=64)}, "chunked"),
        (
            {
                "mixer": replace(
                    SMALL.blocks[0].block.mixer, qk_norm=True, qk_norm_weights=QkNormWeights.ALL_HEADS
                )
            },
            "one weight vector",
        ),
    ],
)
def test_layers_that_megatron_does_not_have(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ExportError, match=match):
        flags_of(**changes)


def test_ends_that_megatron_does_not_have() -> None:
    with pytest.raises(ExportError, match="soft-capped logits"):
        model_flags(*known(PLAN, model=replace(SMALL, logit_softcap=True)))


def test_experts_and_dense_layers_share_their_activation() -> None:
    dense = replace(SMALL.blocks[0].block, mlp=MlpSpec(ffn_hidden=64, gated=False, activation="gelu"))
    routed = replace(
        SMALL.blocks[0].block, mlp=None, moe=MoeSpec(num_experts=4, topk=1, expert_ffn_hidden=64)
    )
    runs = (BlockRun(block=dense, count=1), BlockRun(block=routed, count=7))
    with pytest.raises(ExportError, match="another activation"):
        model_flags(*known(PLAN, model=replace(SMALL, blocks=runs)))
