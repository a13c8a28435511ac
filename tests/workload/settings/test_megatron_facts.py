"""Rotary base and scaling, epsilons and routers as Megatron-LM is told them, and what it cannot be told."""

from dataclasses import replace
from typing import Any

import pytest

from spec.mixers.rope import RopeScaling, RopeSpec
from spec.model import MlpSpec, ModelSpec, MoeSpec
from spec.readers.read_config import read_config
from tests.solver.questions import small_model
from tests.workload.generating import ROOT
from tests.workload.random_plans import EXPERTS, LATENT
from tests.workload.settings.asking import with_block
from workload.settings.megatron import fact_flags, unsaid_facts

SMALL = small_model(layers=8)
DEEP = with_block(SMALL, mixer=LATENT)
YARN = RopeScaling(
    kind="yarn", factor=40.0, original_positions=4096, slow=1.0, fast=32.0, mscale=0.707, mscale_all_dim=0.707
)
LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_positions=8192, slow=1.0, fast=4.0)


def test_what_a_config_does_not_say_is_not_told() -> None:
    assert fact_flags(SMALL) == {}
    assert unsaid_facts(SMALL) == ()


def test_deepseek_as_nvidia_launches_it() -> None:
    """Megatron-LM core 0.19, examples/post_training/modelopt/conf/deepseek-ai/DeepSeek-R1.sh and V2-Lite.sh."""
    third = fact_flags(read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model)
    assert third == {
        "--norm-epsilon": "1e-06",
        "--rotary-base": 10000,
        "--rope-type": "yarn",
        "--rotary-scaling-factor": "40.0",
        "--mscale": "1.0",
        "--mscale-all-dim": "1.0",
        "--moe-router-score-function": "sigmoid",
        "--moe-router-enable-expert-bias": None,
        "--moe-router-num-groups": 8,
        "--moe-router-group-topk": 4,
        "--moe-router-topk-scaling-factor": "2.5",
    }
    lite = fact_flags(read_config(ROOT / "configs" / "16B_deepseek_v2_lite.toml").model)
    assert (lite["--mscale"], lite["--mscale-all-dim"]) == ("0.707", "0.707")
    assert "--moe-router-pre-softmax" in lite
    assert not lite.keys() & {"--moe-router-num-groups", "--moe-router-topk-scaling-factor"}


@pytest.mark.parametrize(
    ("model", "rope", "flags"),
    [
        (SMALL, RopeSpec(base=5e5), {"--rotary-base": 500_000}),
        (SMALL, RopeSpec(share=0.25), {"--rotary-base": 10_000, "--rotary-percent": "0.25"}),
        (
            SMALL,
            RopeSpec(base=5e5, scaling=LLAMA3),
            {"--rotary-base": 500_000, "--use-rope-scaling": None, "--rope-scaling-factor": "8.0"},
        ),
        (
            SMALL,
            RopeSpec(scaling=RopeScaling(kind="linear", factor=4.0)),
            {"--rotary-base": 10_000, "--rotary-seq-len-interpolation-factor": 4},
        ),
        # unless told, latent attention runs yarn, and its fused kernel nothing else
        (DEEP, RopeSpec(), {"--rotary-base": 10_000, "--rope-type": "rope", "--no-rope-fusion": None}),
    ],
)
def test_rotation(model: ModelSpec, rope: RopeSpec, flags: dict[str, object]) -> None:
    assert fact_flags(replace(model, rope=rope)) == flags
    assert unsaid_facts(replace(model, rope=rope)) == ()


@pytest.mark.parametrize(
    ("model", "rope", "note"),
    [
        (SMALL, RopeSpec(base=10_000.5), "rotary base 10000.5"),
        (SMALL, RopeSpec(scaling=YARN), "rotary scaling yarn by 40"),
        (SMALL, RopeSpec(scaling=RopeScaling(kind="dynamic", factor=2.0)), "rotary scaling dynamic by 2"),
        (SMALL, RopeSpec(scaling=RopeScaling(kind="linear", factor=2.5)), "rotary scaling linear by 2.5"),
        (SMALL, RopeSpec(scaling=replace(LLAMA3, slow=2.0)), "llama3's slow 2, here 1"),
        (
            DEEP,
            RopeSpec(scaling=replace(YARN, original_positions=8192)),
            "original positions 8192, here 4096",
        ),
        (DEEP, RopeSpec(scaling=LLAMA3), "rotary scaling llama3 by 8"),
    ],
)
def test_rotation_that_it_cannot_be_told(model: ModelSpec, rope: RopeSpec, note: str) -> None:
    (said,) = unsaid_facts(replace(model, rope=rope))
    assert said.startswith("left out: ")
    assert note in said


def routed(**changes: Any) -> MoeSpec:
    return replace(EXPERTS, **changes)


@pytest.mark.parametrize(
    ("moe", "flags", "notes"),
    [
        (routed(), {}, 0),
        (routed(normalized=False), {"--moe-router-pre-softmax": None}, 0),
        (routed(topk=1, normalized=False), {"--moe-router-pre-softmax": None}, 0),
        # core 0.14 refuses one expert after the softmax
        (routed(topk=1), {"--moe-router-pre-softmax": None}, 1),
        (routed(score="sigmoid", normalized=False), {"--moe-router-score-function": "sigmoid"}, 1),
        (
            routed(route_groups=4, route_chosen_groups=2),
            {"--moe-router-num-groups": 4, "--moe-router-group-topk": 2},
            0,
        ),
        (routed(route_scale=2.5), {"--moe-router-topk-scaling-factor": "2.5"}, 0),
    ],
)
def test_routers(moe: MoeSpec, flags: dict[str, object], notes: int) -> None:
    model = with_block(SMALL, mlp=None, moe=moe)
    assert fact_flags(model) == flags
    assert len(unsaid_facts(model)) == notes


@pytest.mark.parametrize(
    ("bias", "activation", "notes"),
    [(True, "gelu", 1), (True, "gelu_tanh", 0), (False, "gelu", 0), (False, "gelu_tanh", 1)],
)
def test_which_gelu_is_computed(bias: bool, activation: str, notes: int) -> None:
    """bias_gelu_fusion is the tanh form (core/fusions/fused_bias_gelu.py); without a bias it is torch's own."""
    mlp = MlpSpec(ffn_hidden=64, gated=False, bias=bias, activation=activation)
    assert len(unsaid_facts(with_block(SMALL, mlp=mlp))) == notes
