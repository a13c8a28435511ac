"""Named flash generations run at the rates their authors published; fp8 by its own curve or the measured multiple."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import Attention, AttentionCall, Phase, fields_of
from ops.roles import Module, Role
from profdb.cost_model import kernel_s
from profdb.modelled.attention import AttentionShapes, flash_seconds
from profdb.modelled.flash_generations import (
    BACKWARD_FULL,
    FORWARD_CAUSAL,
    FORWARD_FULL,
    LENGTHS,
    attention_price,
    generation_seconds,
    published_rates,
    slowdown,
)
from profdb.modelled.gemm import DRAM_EFFICIENCY
from profdb.queries import AttentionQuery, TimeEstimate
from solver.times.op_times import OpTimer
from spec.arrays import ints
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_architecture, read_cluster
from spec.errors import MissingCurveError
from spec.origin import Origin
from tests.profdb.modelled.test_attention import heads
from tests.solver.flat_cost_model import FlatCostModel
from tests.solver.questions import ROOT


def cluster(name: str) -> ClusterSpec:
    return read_cluster(name, root=ROOT)


def call(direction: str, *, length: int, kernel: str = "flash2", **changes: Any) -> AttentionShapes:
    return heads(length, length, direction=direction, kernel=kernel, **changes)


def flops_per_s(
    name: str, kernel: str, direction: str, *, length: int, width: int = 128, mask: str = "causal"
) -> float:
    """Rate of a call of 16k tokens and 2048 channels, as the papers count it."""
    count = 16384 // length
    many = {"heads": 2048 // width, "kv_heads": 2048 // width, "batch": count, "width": width}
    called = call(direction, length=length, mask=mask, kernel=kernel, **many)
    seconds = generation_seconds(cluster(name).gpu, called)
    flops = 4.0 * length**2 * 2048 * count * (0.5 if mask == "causal" else 1.0)
    return float(flops * (2.5 if direction == "backward" else 1.0) / seconds[0])


@pytest.mark.parametrize(
    ("direction", "mask", "width", "length", "tflops"),
    [
        ("forward", "causal", 128, 2048, 298),
        ("forward", "full", 64, 16384, 324),
        ("forward", "causal", 256, 8192, 297),
        ("backward", "full", 128, 16384, 322),
        ("backward", "full", 64, 1024, 238),
    ],
)
def test_flash_2_on_h100_runs_as_published(direction: str, mask: str, width: int, length: int, tflops: float) -> None:
    """arXiv 2407.08608, figures 5 and 6."""
    found = flops_per_s("h100-sxm", "flash2", direction, length=length, width=width, mask=mask)
    assert found == pytest.approx(tflops * 1e12, rel=0.003)


@pytest.mark.parametrize("table", [FORWARD_FULL, FORWARD_CAUSAL, BACKWARD_FULL], ids=["full", "causal", "backward"])
def test_published_rates_rise_smoothly_with_the_length(table: dict[int, tuple[int, ...]]) -> None:
    """By 1.37 at most from one length of the figures to twice that: a slip in one number stands out."""
    for rates in table.values():
        steps = [longer / shorter for shorter, longer in pairwise(rates)]
        assert len(rates) == len(LENGTHS)
        assert min(steps) >= 1.0
        assert max(steps) <= 1.37


def test_flash_2_on_a100_runs_as_published() -> None:
    """arXiv 2307.08691: figure 5 (189 TFLOP/s), section 4.1 (73 % and 63 % of 312 TFLOP/s)."""
    assert flops_per_s("a100-sxm-80g", "flash2", "forward", length=16384) == pytest.approx(189e12, rel=1e-3)
    full = {
        direction: flops_per_s("a100-sxm-80g", "flash2", direction, length=16384, mask="full")
        for direction in ("forward", "backward")
    }
    assert full["forward"] == pytest.approx(0.73 * 312e12, rel=1e-3)
    assert full["backward"] == pytest.approx(0.63 * 312e12, rel=1e-3)


@pytest.mark.parametrize(("kernel", "forward", "backward"), [("flash1", 2.35, 2.35), ("flash_triton", 1.4, 2.0)])
def test_older_kernels_take_their_multiple(kernel: str, forward: float, backward: float) -> None:
    for direction, ratio in (("forward", forward), ("backward", backward)):
        newer = flops_per_s("a100-sxm-80g", "flash2", direction, length=8192)
        assert newer / flops_per_s("a100-sxm-80g", kernel, direction, length=8192) == pytest.approx(ratio)


class BestAlone(FlatCostModel):
    """A profile that holds the best kernel's curve and no other."""

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        if query.kernel != "flash":
            raise MissingCurveError(key=f"attention {query.kernel}", command="measure it")
        return super().attention_s(query)


def attention(**words: str) -> Attention:
    """One call of 4,096 tokens and 64 heads."""
    sizes = {name: ints(4096) for name in ("q_len", "kv_len")} | {name: ints(64) for name in ("heads", "kv_heads")}
    sizes |= {"batch": ints(1), "qk_dim": ints(128), "v_dim": ints(128)}
    return Attention(module=Module.ATTENTION, role=Role.CORE, phase=Phase.FORWARD, **sizes, **words)  # type: ignore[arg-type]


def test_a_generation_that_was_measured_is_told_by_its_own_curve() -> None:
    op = attention(kernel="flash2")
    own = kernel_s(FlatCostModel(), op).seconds[0]
    for name in ("b200", "h100-sxm"):
        told = OpTimer.on(cluster(name), FlatCostModel()).time(op, Layout.of(1)).seconds[0]
        assert told * cluster(name).gpu.training_rate_ratio == pytest.approx(own)


def test_unpublished_pairs_are_restated_by_the_book() -> None:
    assert not published_rates("flash2", cluster("b200").gpu.architecture)
    assert not published_rates("flash", cluster("h100-sxm").gpu.architecture)
    op = attention(kernel="flash2")
    seconds = {
        name: float(OpTimer.on(cluster(name), BestAlone()).time(op, Layout.of(1)).seconds[0])
        * cluster(name).gpu.training_rate_ratio
        for name in ("b200", "h100-sxm")
    }
    cost_model = float(kernel_s(BestAlone(), replace(op, kernel="flash")).seconds[0])
    assert seconds["b200"] == pytest.approx(1.75 * cost_model)
    assert seconds["h100-sxm"] == pytest.approx(2.0 * 4096**2 * 8192 / 319e12, rel=0.003)


class ShortCallsMeasured(FlatCostModel):
    """Measured up to 4,096 tokens, modelled beyond."""

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        told = super().attention_s(query)
        known = query.columns()["q_len"] <= 4096
        return replace(told, origin=np.where(known, told.origin, int(Origin.MODELLED)))


@pytest.mark.parametrize("name", ["b200", "h100-sxm"])
def test_a_call_takes_its_own_curve_whatever_others_stand_beside_it(name: str) -> None:
    """As long and from where as it is alone: short calls by their curve, long ones restated."""
    long = replace(attention(kernel="flash2"), q_len=ints(8192), kv_len=ints(8192))
    lengths, heads = ints([4096, 8192]), ints([64, 64])
    both = replace(
        attention(kernel="flash2"), batch=ints([1, 1]), q_len=lengths, kv_len=lengths, heads=heads, kv_heads=heads
    )
    op_timer = OpTimer.on(cluster(name), ShortCallsMeasured())
    together = op_timer.time(both, Layout.of(1, tp=[1, 1]))
    alone = [op_timer.time(one, Layout.of(1)) for one in (attention(kernel="flash2"), long)]
    assert together.seconds == pytest.approx([one.seconds[0] for one in alone])
    short = float(kernel_s(ShortCallsMeasured(), attention(kernel="flash2")).seconds[0])
    assert together.seconds[0] * cluster(name).gpu.training_rate_ratio == pytest.approx(short)


def test_longer_calls_than_published_keep_the_last_rate() -> None:
    rates = [flops_per_s("h100-sxm", "flash2", "forward", length=n, mask="full") for n in (8192, 16384)]
    assert np.isclose(rates[0], rates[1], rtol=1e-9)


def one_sequence_tflops(name: str, direction: str, heads: int) -> float:
    """Causal rate of one sequence of 4096 tokens with heads of 128."""
    seconds = generation_seconds(cluster(name).gpu, call(direction, length=4096, heads=heads, kv_heads=heads))
    return float(2e-12 * 4096**2 * 128 * heads * (2.5 if direction == "backward" else 1.0) / seconds[0])


@pytest.mark.parametrize(
    ("direction", "heads", "tflops"),
    [
        ("forward", 64, 185),
        ("forward", 16, 155),
        ("forward", 8, 121),
        ("backward", 64, 157),
        ("backward", 16, 138),
        ("backward", 8, 119),
    ],
)
def test_calls_of_few_heads_on_a100_run_as_measured(direction: str, heads: int, tflops: float) -> None:
    """SimuMax, configs/system/a100_pcie.json, sdp_fwd and sdp_bwd: half the whole matrix over 312 TFLOP/s."""
    assert one_sequence_tflops("a100-pcie-80g", direction, heads) == pytest.approx(tflops, rel=0.12)


def test_a100_keeps_published_rates_in_a_step_and_h100_its_ratio() -> None:
    op = attention(kernel="flash2")
    kept = {}
    for name in ("a100-sxm-80g", "h100-sxm"):
        step = float(OpTimer.on(cluster(name), BestAlone()).time(op, Layout.of(1)).seconds[0])
        kept[name] = 2e-12 * 4096**2 * 128 * 64 / one_sequence_tflops(name, "forward", 64) / step
    assert kept["a100-sxm-80g"] == pytest.approx(1.0)
    assert kept["h100-sxm"] == pytest.approx(cluster("h100-sxm").gpu.training_rate_ratio)


def test_older_flash_kernels_take_their_published_ratio() -> None:
    """arXiv 2407.08608 (1.5-2.0 forward) and 2307.08691 (1.7-3.0), middles."""
    ampere, hopper, blackwell = (read_architecture(name, root=ROOT) for name in ("ampere", "hopper", "blackwell"))
    assert slowdown("flash2", "forward", hopper) == 1.75
    assert slowdown("flash2", "forward", ampere) == 1.0
    assert slowdown("flash1", "backward", ampere) == 2.35
    assert slowdown("flash_triton", "backward", blackwell) == 1.625 * 2.0
    assert slowdown("flash", "forward", hopper) == 1.0


def test_heads_of_two_widths_take_what_the_wider_does() -> None:
    """Multi-head latent attention, 192 and 128: padded to 192 (Transformer Engine; flash-attn takes one width)."""
    gpu = cluster("a100-sxm-80g").gpu
    told = [
        generation_seconds(gpu, call("forward", length=8192, qk_dim=qk_dim, v_dim=v_dim))[0]
        for qk_dim, v_dim in ((192, 128), (128, 192), (192, 192), (128, 128))
    ]
    assert told[0] == told[1] == pytest.approx(told[2])
    assert told[3] < told[0]


def test_the_backward_of_a_call_without_arithmetic_moves_twice_the_bytes() -> None:
    """One token a head: q, k, v and the output once forward, their gradients beside them backward; nothing of
    nothing.
    """
    gpu = cluster("a100-sxm-80g").gpu
    ahead, back = (
        generation_seconds(gpu, call(direction, length=1, width=8, heads=1 << 26, kv_heads=1 << 26))[0]
        for direction in ("forward", "backward")
    )
    assert ahead == pytest.approx(4 * 8 * 2 * 2**26 / (gpu.memory_bandwidth * DRAM_EFFICIENCY), rel=0.01)
    assert back == pytest.approx(2.0 * ahead, rel=0.01)
    nothing = replace(call("forward", length=128), batch=ints(0))
    assert generation_seconds(gpu, nothing).tolist() == [0.0]


class SixteenBitsAlone(FlatCostModel):
    """Measured in 16 bits."""

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        if query.dtype == "fp8":
            raise MissingCurveError(key="attention fp8", command="measure")
        return super().attention_s(query)


@pytest.mark.parametrize(
    ("name", "direction", "ratio"),
    [("b200", "forward", 0.846), ("b200", "backward", 0.756), ("h200", "forward", 0.665), ("h200", "backward", 1.45)],
)
def test_fp8_attention_takes_the_measured_multiple_of_16_bits(name: str, direction: str, ratio: float) -> None:
    """cuDNN 9.13 on B200 and GB300, 9.19 on H200: by the sheet alone, and over a cost model that was measured in 16 bits."""
    narrow, wide, gpu = (
        attention(direction=direction, dtype="fp8"),
        attention(direction=direction, dtype="bf16"),
        cluster(name).gpu,
    )
    told = [float(flash_seconds(gpu, AttentionShapes(**fields_of(AttentionCall, one)))[0]) for one in (narrow, wide)]
    assert told[0] == pytest.approx(ratio * told[1])
    asked = [attention_price(SixteenBitsAlone(), gpu, one) for one in (narrow, wide)]
    assert asked[0].seconds == pytest.approx(ratio * asked[1].seconds)
    assert asked[0].origin[0] == int(Origin.TRANSFERRED)


def test_fp8_attention_that_was_measured_is_told_by_its_own_curve() -> None:
    narrow = attention(dtype="fp8")
    own = kernel_s(FlatCostModel(), narrow)
    assert attention_price(FlatCostModel(), cluster("b200").gpu, narrow).seconds == own.seconds
