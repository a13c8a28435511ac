"""A model as InternEvo's types have it, and what they have no key for."""

from dataclasses import replace
from typing import Any

import pytest

from spec.errors import ExportError
from spec.mixers.attention import QkNormWeights
from spec.mixers.rope import RopeSpec
from spec.model import MlpSpec, NormKind, NormPlace, PositionKind
from tests.solver.questions import small_model
from tests.workload.random_plans import EXPERTS, LATENT
from tests.workload.settings.asking import with_block
from workload.settings.internevo import model_section, model_type, unsaid

SMALL = small_model(layers=8)
ATTENTION = SMALL.blocks[0].block.mixer
SHARED = replace(EXPERTS, shared_ffn_hidden=2 * EXPERTS.expert_ffn_hidden)


@pytest.mark.parametrize(
    ("changes", "kind", "keys"),
    [
        ({}, "INTERNLM2_PUBLIC", {"no_bias": True}),
        (
            {
                "mixer": replace(ATTENTION, qkv_bias=True, out_bias=True),
                "mlp": MlpSpec(ffn_hidden=512, gated=True, bias=True),
            },
            "INTERNLM2_PUBLIC",
            {"no_bias": False},
        ),
        ({"mixer": replace(ATTENTION, qkv_bias=True)}, "QWEN2", {"qkv_bias": True, "o_bias": False}),
        (
            {"mlp": MlpSpec(ffn_hidden=512, gated=True, bias=True)},
            "QWEN2",
            {"qkv_bias": False, "mlp_bias": True},
        ),
        (
            {"mixer": replace(ATTENTION, window=512)},
            "QWEN2",
            {"use_sliding_window": True, "sliding_window": 512},
        ),
        (
            {"mlp": MlpSpec(ffn_hidden=512, gated=True, activation="gelu")},
            "INTERNLM2_PUBLIC",
            {"use_swiglu": False},
        ),
        ({"mlp": None, "moe": SHARED}, "MIXTRALMOE", {"num_shared_experts": 2, "moe_type": "Dropless"}),
        ({"mlp": None, "moe": replace(SHARED, shared_gate=True)}, "QWEN2MOE", {"num_experts": 8}),
        (
            {"mlp": None, "moe": replace(SHARED, capacity_factor=1.5)},
            "MIXTRALMOE",
            {"moe_type": "GShard", "moe_layer_kwargs": {"capacity_factor": 1.5}},
        ),
        (
            {
                "mixer": replace(ATTENTION, qk_norm=True, qk_dim=128, v_dim=128),
                "mlp": None,
                "moe": replace(EXPERTS, shared_ffn_hidden=0, normalized=False, route_scale=2.5),
            },
            "QWEN3MOE",
            {
                "head_dim": 128,
                "moe_layer_kwargs": {
                    "scoring_func": "softmax",
                    "normalize_expert_weights": False,
                    "routed_scaling_factor": 2.5,
                },
            },
        ),
    ],
)
def test_types(changes: dict[str, Any], kind: str, keys: dict[str, object]) -> None:
    model = with_block(SMALL, **changes)
    assert model_type(model) == kind
    section = model_section(model)
    assert keys == {key: section[key] for key in keys}


def test_facts_of_the_config() -> None:
    model = replace(SMALL, rope=RopeSpec(base=5e5), norm_epsilon=1e-6, max_positions=8192)
    section = model_section(model)
    assert (section["rope_base"], section["layer_norm_epsilon"]) == (500_000, 1e-6)
    assert section["max_position_embeddings"] == 8192
    assert not {"rope_base", "layer_norm_epsilon", "max_position_embeddings"} & model_section(SMALL).keys()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"parallel_residual": True}, "parallel residuals"),
        ({"mixer": LATENT}, "the attention of"),
        ({"norm_place": NormPlace.AFTER}, "norms elsewhere"),
        ({"mixer": replace(ATTENTION, chunk=64)}, "chunked"),
        ({"mixer": replace(ATTENTION, alibi=True)}, "ALiBi"),
        (
            {
                "mlp": None,
                "moe": SHARED,
                "mixer": replace(ATTENTION, qk_norm=True, qk_norm_weights=QkNormWeights.NONE),
            },
            "one weight vector",
        ),
        ({"mixer": replace(ATTENTION, qk_norm=True)}, "dense layers"),
        ({"mixer": replace(ATTENTION, qk_dim=128, v_dim=128)}, "heads of 128 channels"),
        ({"mlp": MlpSpec(ffn_hidden=512, gated=False, activation="gelu")}, "without a gate"),
        ({"mlp": MlpSpec(ffn_hidden=512, gated=True, activation="relu")}, "gates by relu"),
        ({"mlp": None, "moe": replace(SHARED, activation="gelu")}, "gates by gelu"),
        ({"mlp": None, "moe": replace(SHARED, bias=True)}, "biases of experts"),
        ({"mlp": None, "moe": replace(SHARED, router_bias=True)}, "score corrections"),
        ({"mlp": None, "moe": EXPERTS}, "another width"),
        ({"mlp": None, "moe": SHARED, "mixer": replace(ATTENTION, qk_norm=True)}, "these shared experts"),
    ],
)
def test_layers_that_internevo_does_not_have(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ExportError, match=match):
        model_section(with_block(SMALL, **changes))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tied_embeddings": True}, "tied"),
        ({"logit_softcap": True}, "soft-capped logits"),
        ({"head_bias": True}, "head bias"),
        ({"position": PositionKind.NONE}, "rotary positions"),
        (
            {"blocks": (*SMALL.blocks, replace(with_block(SMALL, norm=NormKind.LAYER).blocks[0]))},
            "mixed layers",
        ),
    ],
)
def test_models_that_internevo_does_not_have(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ExportError, match=match):
        model_section(replace(SMALL, **changes))


def test_what_it_has_no_key_for() -> None:
    assert unsaid(SMALL) == ()
    routed = replace(
        SHARED, route_groups=4, route_chosen_groups=2, score="sigmoid", normalized=False, route_scale=2.5
    )
    (groups, score, sums, scale) = unsaid(with_block(SMALL, mlp=None, moe=routed))
    assert "2 of 4 groups" in groups
    assert "sigmoid" in score
    assert "divided by their sum" in sums
    assert "times 2.5" in scale
    partial = replace(
        with_block(SMALL, mlp=MlpSpec(ffn_hidden=512, gated=True, activation="gelu_tanh")),
        rope=RopeSpec(share=0.25),
    )
    (share, form) = unsaid(partial)
    assert "0.25 of a head" in share
    assert "tanh form" in form
