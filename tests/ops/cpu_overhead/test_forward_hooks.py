"""Hooks before every module's forward: what holds parameters that are gathered, what has none, graphs."""

from dataclasses import replace

import numpy as np
import pytest

from ops.cpu_overhead import (
    HOOK_CALLS,
    HOOKED_PARAMETER_CALLS,
    NARROW_HOOKED_PARAMETER_CALLS,
    gather_hook_calls,
    gathers_before_forwards,
)
from ops.layout import Layout
from ops.op import BatchedGemm, GroupedGemm, MemoryBound, Op, Phase
from ops.roles import Module, Role
from spec.frameworks import framework_preset
from spec.job import JobSpec
from tests.ops.layouts import job

ONE = np.ones(1, dtype=np.int64)
SHARDED, WHOLE = Layout.of(8, zero_stage=1), Layout.of(8)
UP = BatchedGemm(
    module=Module.MLP, role=Role.UP, phase=Phase.FORWARD, batch=ONE, m=ONE, k=ONE, n=ONE, scale_recipe="mx"
)
EXPERTS = GroupedGemm(
    module=Module.MOE,
    role=Role.UP,
    phase=Phase.FORWARD,
    groups=16 * ONE,
    m=ONE,
    k=ONE,
    n=ONE,
    scale_recipe="mx",
)
RESIDUAL = MemoryBound(
    module=Module.MLP, role=Role.RESIDUAL, phase=Phase.FORWARD, kernel="residual", rows=ONE, width=ONE
)


def calls(op: Op, asked: JobSpec, layout: Layout = SHARDED) -> float:
    if not gathers_before_forwards(asked):
        return 0.0
    return float(gather_hook_calls(op, asked, layout)[0])


def test_a_linear_is_a_module_with_a_parameter_and_experts_have_one_each() -> None:
    """On the CPU where a call takes 8.7 us: 2.3 us a module and 0.7 a parameter."""
    assert calls(UP, job()) * 8.7 == pytest.approx(2.3 + 0.7)
    assert calls(EXPERTS, job()) * 8.7 == pytest.approx(2.3 + 16 * 0.7)
    assert calls(UP, job()) == pytest.approx(HOOK_CALLS + HOOKED_PARAMETER_CALLS)


def test_parameters_held_in_fp8_take_longer_to_look_up() -> None:
    narrow = replace(job(), precision=replace(job().precision, narrow_parameters=True))
    assert calls(EXPERTS, narrow) * 8.7 == pytest.approx(2.3 + 16 * 2.4)
    assert calls(replace(EXPERTS, scale_recipe=""), narrow) == calls(EXPERTS, job())
    more = calls(EXPERTS, narrow) - calls(EXPERTS, job())
    assert more == pytest.approx(16 * (NARROW_HOOKED_PARAMETER_CALLS - HOOKED_PARAMETER_CALLS))


def test_modules_without_parameters_are_hooked_too() -> None:
    """The layer, the block in it and the two identities of a cross attention, over two residual adds."""
    assert 2 * calls(RESIDUAL, job()) * 8.7 == pytest.approx(5 * 2.3)


def test_backwards_and_graphs_have_none_and_what_runs_again_has() -> None:
    assert calls(replace(UP, phase=Phase.RECOMPUTE), job()) == calls(UP, job())
    for phase in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD):
        assert calls(replace(UP, phase=phase), job()) == 0.0
    assert calls(EXPERTS, replace(job(), cuda_graphs=frozenset({"full_iteration"}))) == 0.0


def test_whole_optimizers_and_other_code_have_none() -> None:
    """--overlap-param-gather is of the distributed optimizer."""
    late = framework_preset("megatron").changed({"data_parallel.overlap_param_gather": False})
    assert (
        calls(UP, job(), WHOLE)
        == calls(UP, job(preset=late))
        == calls(UP, job(preset=framework_preset("fsdp")))
        == 0.0
    )
