"""Attention in fp8: its own curve, or the measured multiple of 16 bits."""

from pathlib import Path

import pytest

from ops.op import Attention, AttentionCall, Phase, declared
from ops.roles import Module, Role
from profdb.cost_model import attention_query
from profdb.modelled.attention import Heads, flash_seconds
from profdb.modelled.flash_generations import attention_price
from profdb.queries import AttentionQuery, TimeEstimate
from spec.arrays import ints
from spec.cluster.cluster import GpuSpec
from spec.cluster.reader import read_cluster
from spec.errors import MissingCurveError
from spec.origin import Origin
from tests.solver.flat_cost_model import FlatCostModel

ROOT = Path(__file__).resolve().parents[3]


def gpu_of(name: str) -> GpuSpec:
    return read_cluster(name, root=ROOT).gpu


def call(direction: str, dtype: str) -> Attention:
    return Attention(
        module=Module.ATTENTION,
        role=Role.CORE,
        phase=Phase.FORWARD,
        direction=direction,
        batch=ints(1),
        q_len=ints(4096),
        kv_len=ints(4096),
        heads=ints(64),
        kv_heads=ints(64),
        qk_dim=ints(128),
        v_dim=ints(128),
        dtype=dtype,
    )


@pytest.mark.parametrize(
    ("name", "direction", "ratio"),
    [
        ("b200", "forward", 0.846),
        ("b200", "backward", 0.756),
        ("h200", "forward", 0.665),
        ("h200", "backward", 1.45),
    ],
)
def test_fp8_attention_takes_the_measured_multiple_of_16_bits(
    name: str, direction: str, ratio: float
) -> None:
    """cuDNN 9.13 on B200 and GB300, 9.19 on H200: by the sheet alone, and over a cost model that was measured in 16 bits."""
    narrow, wide, gpu = call(direction, "fp8"), call(direction, "bf16"), gpu_of(name)
    told = [float(flash_seconds(gpu, Heads(**declared(AttentionCall, one)))[0]) for one in (narrow, wide)]
    assert told[0] == pytest.approx(ratio * told[1])
    asked = [attention_price(SixteenBitsAlone(), gpu, attention_query(one)) for one in (narrow, wide)]
    assert asked[0].seconds == pytest.approx(ratio * asked[1].seconds)
    assert asked[0].origin[0] == int(Origin.TRANSFERRED)


def test_fp8_attention_that_was_measured_is_told_by_its_own_curve() -> None:
    narrow = call("forward", "fp8")
    own = FlatCostModel().attention_s(attention_query(narrow))
    assert attention_price(FlatCostModel(), gpu_of("b200"), attention_query(narrow)).seconds == own.seconds


class SixteenBitsAlone(FlatCostModel):
    """Measured in 16 bits."""

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        if query.dtype == "fp8":
            raise MissingCurveError(key="attention fp8", command="measure")
        return super().attention_s(query)
