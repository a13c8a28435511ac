"""What Transformer Engine holds all the time, held against its allocations written out."""

from dataclasses import replace
from typing import Any

import pytest

from ops.context import LayerContext
from ops.layout import Layout
from ops.strategies import STRATEGIES
from solver.estimate import estimate_memory
from solver.memory.user_buffers import user_buffer_bytes, workspace_bytes
from solver.plans.plan_table import PlanTable
from solver.typed_plan import parse_plan, plan_of
from spec.cluster.reader import read_architecture
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from spec.units import MIB
from tests.ops.layouts import job
from tests.solver.plans.test_rules import EXPERTS
from tests.solver.questions import ROOT, question, small_model

TOKENS, HIDDEN, TP = 256, 512, 4
ONE = TOKENS * HIDDEN
BRIDGE = framework_preset("megatron-bridge")


def held(
    strategy: str = "fsp",
    framework: str = "megatron-bridge",
    linear: str = "bf16",
    tp: int = TP,
    **choices: Any,
) -> float:
    preset = framework_preset(framework).changed(
        {f"tensor_parallel.{key}": value for key, value in choices.items()}
    )
    asked = job(seq_len=TOKENS, preset=preset)
    asked = replace(asked, precision=replace(asked.precision, linear=linear))
    sharding = STRATEGIES[strategy]
    context = LayerContext(sharding=sharding, model=small_model(), job=asked, layout=Layout.of(tp, tp=tp))
    return float(user_buffer_bytes(context, sharding)[0])


def test_a_buffer_for_every_overlapped_product() -> None:
    """initialize_ub: eight gather and four reduce, tokens x hidden in 16 bits; a byte where fp8 is gathered."""
    assert held() == held(tp=2) == (8 + 4) * 2 * ONE
    assert held(tp=1) == 0.0
    assert held(linear="fp8") == (8 * 1 + 4 * 2) * ONE
    # Input gradients reduced in place of being gathered for: the weight gradients' two stay.
    assert held(linear="fp8", overlap_rs_dgrad=True) == (6 * 1 + 6 * 2) * ONE


def test_a_ring_exchange_that_reduces_has_room_for_what_all_send() -> None:
    """CommOverlapP2PBase: buffer / tp x (2 tp - 1)."""
    assert held(overlap_rs_method="ring_exchange") == (10 + 2 * (2 * TP - 1) / TP) * 2 * ONE


def test_no_buffers_without_sequences_cut_or_overlap_of_its_own() -> None:
    assert held("mtp") == held(overlap=False) == held(framework="fsdp", overlap=True) == 0.0


@pytest.mark.parametrize(
    ("model", "overlapped", "count"), [(small_model(), 0.0, 1), (EXPERTS, 0.0, 5), (small_model(), 1.0, 4)]
)
def test_workspaces(model: ModelSpec, overlapped: float, count: int) -> None:
    """get_cublas_workspace: one, four for grouped products, three for overlapped ones; 32 MiB on Hopper, 4 before."""
    context = LayerContext(
        sharding=STRATEGIES["mtp"], model=model, job=job(preset=BRIDGE), layout=Layout.of(1)
    )
    for name, each in (("hopper", 32), ("blackwell", 32), ("ampere", 4)):
        architecture = read_architecture(name, root=ROOT)
        assert (
            workspace_bytes(context, Layout.of(1).constant(1) * overlapped, architecture)
            == count * each * MIB
        )
    torch = replace(context, job=job(preset=framework_preset("fsdp")))
    assert workspace_bytes(torch, Layout.of(1).constant(1) * overlapped, architecture) == 0.0


def test_a_device_holds_them_beside_its_tensors() -> None:
    asked = question(world_size=TP, preset=BRIDGE)
    plan = PlanTable.of(plan_of(parse_plan(f"strategy=fsp,tp={TP}"), asked, "--plan"))
    without = BRIDGE.changed({"tensor_parallel.overlap": False})
    more, less = (
        estimate_memory(asked.model, asked.job.with_preset(preset), plan, asked.cluster).memory
        for preset in (BRIDGE, without)
    )
    buffers = 12 * 2 * asked.job.seq_len * HIDDEN + 3 * 32 * MIB
    assert (more.nccl_bytes - less.nccl_bytes)[0] == pytest.approx(buffers)
