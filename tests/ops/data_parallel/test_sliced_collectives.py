"""Collectives over lists of slices cost the host one copy a rank, parameter and pass."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.sliced_collectives import GATHERED_SLICE, REDUCED_SLICE, RETURNED_SLICE, return_slices
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import CpuOverhead, Lane, MemoryBound, Phase
from ops.roles import Module, Role
from profdb.modelled.cost_model import ModelledCostModel
from solver.times.op_times import OpTimer
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import ROOT, small_model

SLICED = framework_preset("deepspeed").changed({"data_parallel.sliced_collectives": True})


def launches(recompute: str, *, ranks: int = 4, stage: int = 3) -> dict[tuple[str, str], float]:
    """Launches' worth of host work of one layer by (name, phase)."""
    asked = job(world_size=ranks, seq_len=1024, preset=SLICED)
    layout = Layout.of(ranks, zero_size=ranks, zero_stage=stage)
    layer = written(small_model(), asked, "mtp", layout, recompute).blocks[0]
    return {
        (op.name.split(".")[-1], op.phase.value): float(op.launches[0])
        for op in (*layer.forward, *layer.backward)
        if isinstance(op, CpuOverhead)
    }


@pytest.mark.parametrize(("recompute", "backward_gathers"), [("none", 1), ("selective", 1), ("full", 2)])
def test_every_matrix_and_rank_is_a_copy(recompute: str, backward_gathers: int) -> None:
    """qkv, out, up (gate joined) and down are gathered; two RMSNorm scales are reduced and returned too."""
    found = launches(recompute)
    assert found["gathered_slices", "forward"] == pytest.approx(4 * 4 * GATHERED_SLICE)
    assert found["gathered_slices", "recompute"] == pytest.approx(backward_gathers * 16 * GATHERED_SLICE)
    assert found["reduced_slices", "weight_grad"] == pytest.approx((4 + 2) * 4 * REDUCED_SLICE)
    assert found["returned_slices", "weight_grad"] == pytest.approx(2 * 4 * RETURNED_SLICE)


def test_work_grows_with_the_ranks_and_needs_stage_3() -> None:
    assert sum(launches("none", ranks=8).values()) == pytest.approx(2 * sum(launches("none").values()))
    assert not any(launches("none", stage=2).values())


def test_frameworks_that_move_whole_tensors_have_none() -> None:
    asked = job(world_size=4, seq_len=1024, preset=framework_preset("deepspeed"))
    layer = written(small_model(), asked, "mtp", Layout.of(4, zero_size=4, zero_stage=3)).blocks[0]
    assert not [op for op in (*layer.forward, *layer.backward) if isinstance(op, CpuOverhead)]


def test_the_device_fills_and_copies_what_it_gathers() -> None:
    """4 h^2 + 3 h f + 2 h elements of 2 bytes: written as zeros, then read and written."""
    asked = job(world_size=4, seq_len=1024, preset=SLICED)
    layer = written(small_model(), asked, "mtp", Layout.of(4, zero_size=4, zero_stage=3)).blocks[0]
    moved = sum(
        float(bytes_moved(op)[0])
        for op in layer.forward
        if isinstance(op, MemoryBound) and op.name.startswith("layer.gathered")
    )
    elements = sum(int(op.parameters[0]) for op in layer.forward)
    assert moved == 3 * 2 * elements


def test_host_work_is_priced_by_the_launch() -> None:
    work = CpuOverhead(
        module=Module.LAYER, role=Role.SLICES, phase=Phase.FORWARD, lane=Lane.MAIN, launches=np.asarray([30.0])
    )
    cost_model = ModelledCostModel(cluster=read_cluster("h100-sxm", root=ROOT))
    timed = OpTimer(cost_model=cost_model, domain_ranks=8).time(work, Layout.of(8))
    assert timed.part == "host"
    assert timed.seconds[0] == pytest.approx(30 * 5e-6)


def test_vectors_return_once_a_step_however_many_micro_batches_it_has() -> None:
    """One rank's micro-batches share the 2 norms' 4 slices."""
    asked = job(world_size=4, seq_len=1024, preset=SLICED)
    asked = replace(asked, global_batch_tokens=4 * asked.global_batch_tokens)
    layer = written(small_model(), asked, "mtp", Layout.of(4, zero_size=4, zero_stage=3)).blocks[0]
    returned = [op for op in layer.backward if op.name.endswith("returned_slices")]
    assert [float(op.launches[0]) for op in returned] == [pytest.approx(2 * 4 * RETURNED_SLICE / 4)]


def test_parameters_come_back_as_slices_where_a_stage_1_optimizer_is_sharded() -> None:
    """nanotron optim/zero.py: 10 tensors of all ranks, and three passes of the device over 1,000 elements;
    nothing where one rank keeps all, nor at stages without a sharded optimizer alone."""
    sliced = framework_preset("nanotron").changed({"data_parallel.lists_of_slices": True})
    degrees = {"zero_size": np.array([8, 2, 1, 8]), "zero_stage": np.array([1, 1, 1, 0])}
    layout = Layout.of(np.array([8] * 4), **degrees)
    context = LayerContext(model=small_model(), job=job(preset=sliced), layout=layout)
    copied, slices = return_slices(context, ints([1000] * 4), ints([10] * 4))
    assert isinstance(copied, MemoryBound)
    assert isinstance(slices, CpuOverhead)
    assert (copied.rows * copied.width).tolist() == [1000, 1000, 0, 0]
    assert copied.repeat == 3
    assert slices.launches.tolist() == [pytest.approx(RETURNED_SLICE * 10 * ranks) for ranks in (8, 2, 0, 0)]


def test_a_slice_is_a_launch_and_two_or_three_views() -> None:
    """5 us a launch, 2 us a view: its part of the list and of the flat buffer, and of the gradient or
    parameter itself.
    """
    launched = np.array([GATHERED_SLICE, REDUCED_SLICE, RETURNED_SLICE]) * 5.0
    assert launched == pytest.approx([5.0 + 2 * 2.0, 5.0 + 3 * 2.0, 5.0 + 3 * 2.0])
