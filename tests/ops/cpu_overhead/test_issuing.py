"""What the host does for an operation: published ratios, experts one by one, graphs that replay."""

from dataclasses import replace

import numpy as np
import pytest

from ops.cpu_overhead import CALLS, FP8_CALLS_RATIO, NARROW_GRADIENT_CALLS, REPLAY_CALLS, cpu_overhead
from ops.op import Axis, BatchedGemm, Comm, CpuOverhead, GroupedGemm, MemoryBound, Phase
from ops.roles import Module, OpKey, Role
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import JobSpec
from tests.ops.layouts import job

ONE = np.ones(1, dtype=np.int64)


UP = OpKey(Module.MLP, Role.UP)


def gemm(key: OpKey = UP, phase: Phase = Phase.FORWARD, recipe: str = "") -> BatchedGemm:
    return BatchedGemm(
        module=key.module, role=key.role, phase=phase, batch=ONE, m=ONE, k=ONE, n=ONE, scale_recipe=recipe
    )


def kernel(key: OpKey, word: str, phase: Phase = Phase.FORWARD) -> MemoryBound:
    return MemoryBound(module=key.module, role=key.role, phase=phase, kernel=word, rows=ONE, width=ONE)


def grouped(experts: int, phase: Phase = Phase.FORWARD, recipe: str = "") -> GroupedGemm:
    return GroupedGemm(
        module=Module.MOE,
        role=Role.UP,
        phase=phase,
        groups=experts * ONE,
        m=ONE,
        k=ONE,
        n=ONE,
        scale_recipe=recipe,
    )


def test_transformer_engines_linear_takes_2_7_plain_ones_and_fp8_nearly_twice_that() -> None:
    modules, plain = job(), job(preset=framework_preset("fsdp"))
    ratio = cpu_overhead(gemm(), modules).calls[0] / cpu_overhead(gemm(), plain).calls[0]
    assert ratio == pytest.approx(99.66 / 37.08, rel=0.15)
    fp8 = cpu_overhead(gemm(recipe="tensor"), modules)
    assert fp8.calls[0] == pytest.approx(FP8_CALLS_RATIO * cpu_overhead(gemm(), modules).calls[0])
    assert fp8.launches[0] == 0


def test_a_product_of_a_recurrence_is_one_kernel_and_no_linear() -> None:
    """A Triton kernel that its mixer's autograd function launches."""
    core = OpKey(Module.MAMBA2, Role.CORE)
    for phase in (Phase.FORWARD, Phase.RECOMPUTE, Phase.INPUT_GRAD):
        assert cpu_overhead(gemm(core, phase), job()).calls[0] == 1.0
        assert cpu_overhead(gemm(core, phase, "tensor"), job()).launches[0] == 0.0


def test_both_products_of_a_backward_are_one_call_and_one_more_launch() -> None:
    products = [cpu_overhead(gemm(phase=phase), job()) for phase in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)]
    assert sum(work.calls[0] for work in products) == CALLS["modules"].linear
    assert sum(work.launches[0] for work in products) == 1


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD])
def test_every_expert_is_a_product_of_its_own(phase: Phase) -> None:
    few, many = cpu_overhead(grouped(2, phase), job()), cpu_overhead(grouped(16, phase), job())
    assert many.launches[0] - few.launches[0] == 14
    assert many.calls[0] > few.calls[0]
    assert cpu_overhead(grouped(16, phase, "block"), job()).calls[0] >= many.calls[0]


def test_gradients_of_weights_held_in_fp8_take_python_more() -> None:
    """7.5 us of a call's 8.7 each, where Transformer Engine's tensors are Python's, not where a copy is narrow."""
    precision = replace(job().precision, narrow_parameters=True)
    narrow = replace(job(), precision=precision)
    for one, weights in (
        (gemm(phase=Phase.WEIGHT_GRAD, recipe="mx"), 1),
        (grouped(16, Phase.WEIGHT_GRAD, "mx"), 16),
    ):
        more = cpu_overhead(one, narrow).calls[0] - cpu_overhead(one, job()).calls[0]
        assert more == pytest.approx(weights * NARROW_GRADIENT_CALLS)
        assert more * 8.7 == pytest.approx(weights * 7.5)
        wide = replace(one, scale_recipe="")
        assert cpu_overhead(wide, narrow) == cpu_overhead(wide, job())
        compiled = job(preset=framework_preset("fsdp"))
        assert cpu_overhead(one, replace(compiled, precision=precision)) == cpu_overhead(one, compiled)
    forward = grouped(16, recipe="mx")
    assert cpu_overhead(forward, narrow) == cpu_overhead(forward, job())


@pytest.mark.parametrize(
    ("recipe", "held", "microseconds"),
    [
        ("", False, (96, 235)),
        ("mx", False, (187, 257)),
        ("mx", True, (187, 377)),
        ("tensor", False, (257, 257)),
        ("tensor", True, (257, 377)),
    ],
)
def test_a_grouped_linear_of_16_experts_takes_what_the_page_of_formulas_says(
    recipe: str, held: bool, microseconds: tuple[int, int]
) -> None:
    """docs/formulas.md, the host: told, at 8.7 us a call, forward and backward, launches apart."""
    asked = replace(job(), precision=replace(job().precision, narrow_parameters=held))
    forward, back, weights = (
        8.7 * float(cpu_overhead(grouped(16, phase, recipe), asked).calls[0])
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
    )
    assert (forward, back + weights) == pytest.approx(microseconds, abs=1.5)


def test_a_cast_of_experts_is_launched_from_c_plus_plus_and_a_replay_is_three_calls() -> None:
    """Half a launch, without dispatch and autograd; graphs are replayed by a module's call, of Python alone."""
    cast = cpu_overhead(kernel(OpKey(Module.MOE, Role.CAST), "cast"), job())
    assert (cast.calls[0], cast.launches[0]) == (0.0, 0.5)
    router = gemm(OpKey(Module.MOE, Role.ROUTER))
    assert cpu_overhead(router, graphed("moe_router")).calls[0] == 3.0


def test_rows_with_scales_of_blocks_are_allocated_for_all_experts_at_once() -> None:
    """10.8 and 4.4 us an expert of a call's 8.7, the first told as a call."""
    wide, tensor, block, mx = (
        cpu_overhead(grouped(16, recipe=name), job()) for name in ("", "tensor", "block", "mx")
    )
    linear = CALLS["modules"].linear * (FP8_CALLS_RATIO - 1.0)
    assert tensor.calls[0] - wide.calls[0] == pytest.approx(linear + 16)
    assert block.calls[0] - wide.calls[0] == pytest.approx(linear + 16 * 4.4 / 8.7)
    assert mx == block


def test_repeats_and_rows_are_each_counted() -> None:
    broadcast = Comm(
        module=Module.STEP,
        role=Role.PARAMETER_GATHER,
        phase=Phase.STEP,
        collective=Collective.BROADCAST,
        axis=Axis.DP,
        size_bytes=ONE,
        repeat=np.array([1, 8]),
    )
    calls = cpu_overhead(broadcast, job()).calls
    assert calls[1] == 8 * calls[0]


def graphed(*scopes: str) -> JobSpec:
    return replace(job(), cuda_graphs=frozenset(scopes))


def test_graphs_replay_what_they_hold_and_nothing_else() -> None:
    router, up = gemm(OpKey(Module.MOE, Role.ROUTER)), grouped(16)
    eager = cpu_overhead(router, job())
    assert eager.calls[0] * 13 + eager.launches[0] * 5 > 100
    replay = cpu_overhead(router, graphed("moe_router"))
    assert (replay.calls[0], replay.launches[0]) == (REPLAY_CALLS, 0)
    assert cpu_overhead(up, graphed("moe_router", "attn")).launches[0] == 16
    whole = [cpu_overhead(one, graphed("full_iteration")) for one in (router, up)]
    assert all(work.calls[0] == 0 and work.launches[0] == 0 for work in whole)


def test_a_fused_router_launches_a_kernel_where_elementwise_ones_were() -> None:
    """Megatron-Core 0.15.3, moe_utils.py, counted by PyTorch's dispatcher: the best experts 8 kernels and 4
    backward, their scores 6 and the balancing loss 4, 3 backward together; fused three and three. Python is
    as long."""
    fused = replace(job(), moe_router_fusion=True)
    for phase, fewer in ((Phase.FORWARD, 8 + 6 + 4 - 3), (Phase.INPUT_GRAD, 4 + 3 - 3)):
        router = replace(gemm(OpKey(Module.MOE, Role.ROUTER)), phase=phase)
        plain, less = cpu_overhead(router, job()), cpu_overhead(router, fused)
        assert plain.launches[0] - less.launches[0] == fewer
        assert plain.calls[0] == less.calls[0]
    up = gemm(OpKey(Module.MLP, Role.UP))
    assert cpu_overhead(up, fused) == cpu_overhead(up, job())


def test_compiled_code_launches_and_calls_nothing() -> None:
    compiled = job(preset=framework_preset("fsdp").changed({"host.code": "compiled"}))
    norm = kernel(OpKey(Module.MLP, Role.NORM), "rmsnorm")
    for one in (gemm(), norm, grouped(4)):
        work = cpu_overhead(one, compiled)
        assert work.calls[0] == 0
        assert work.launches[0] >= 1


def test_reading_token_counts_takes_calls_of_its_own() -> None:
    permute = kernel(OpKey(Module.MOE, Role.PERMUTE), "permute")
    padded, counted = cpu_overhead(permute, job()), cpu_overhead(replace(permute, synchronises=True), job())
    assert counted.calls[0] - padded.calls[0] == CALLS["modules"].token_counts


def test_waiting_before_an_activation_takes_a_copys_launch() -> None:
    activation = kernel(OpKey(Module.MOE, Role.ACTIVATION), "swiglu")
    plain, waited = (
        cpu_overhead(activation, job()),
        cpu_overhead(replace(activation, synchronises=True), job()),
    )
    assert waited.calls[0] == plain.calls[0]
    assert waited.launches[0] - plain.launches[0] == 1.0


def test_host_time_that_is_an_operation_itself_is_not_counted_again() -> None:
    slices = CpuOverhead(
        module=Module.LAYER, role=Role.SLICES, phase=Phase.FORWARD, launches=np.asarray([30.0])
    )
    work = cpu_overhead(slices, job())
    assert (work.calls[0], work.launches[0]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("word", "launches"), [("accumulate_fp32", 0.0), ("accumulate_16bit", 0.0), ("accumulate", 1.0)]
)
def test_a_product_accumulates_by_itself_or_a_kernel_does(word: str, launches: float) -> None:
    work = cpu_overhead(kernel(OpKey(Module.MLP, Role.ACCUMULATE), word, Phase.WEIGHT_GRAD), job())
    assert (float(np.sum(work.calls)), float(np.sum(work.launches))) == (0.0, launches)
