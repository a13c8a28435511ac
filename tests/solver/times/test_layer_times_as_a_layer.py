"""A layer whose kernels were measured to take longer together is priced so, and nothing else is."""

from dataclasses import replace

import numpy as np
import pytest

from profdb.cost_model import ProfileCostModel
from profdb.lookup.layer_sum import LayerSum
from solver.estimate import estimate_memory
from solver.plans.plan_table import Plan, PlanTable
from solver.times.layer_times import layer_times
from solver.times.op_times import Pricer
from spec.arrays import floats
from tests.profdb.lookup.test_layer_sum import KERNEL_S, LAYER, PARTS, kernels_of, taken
from tests.profdb.profiles import profile
from tests.solver.questions import cluster, question


def test_a_profile_with_layers_reaches_the_pricer() -> None:
    samples = [*(taken(case) for case in kernels_of(LAYER)), taken(LAYER, 1.2 * PARTS * KERNEL_S)]
    assert Pricer.on(cluster(), ProfileCostModel(profile(samples))).layers is not None
    assert Pricer.on(cluster(), ProfileCostModel(profile(samples[:-1]))).layers is None


def test_kernels_of_a_layer_take_so_much_longer_and_nothing_else_does() -> None:
    asked = question(world_size=8)
    plan = Plan(strategy="mtp", preset="internevo", tp=2, dp=4, num_micro=4)
    table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
    half_longer = LayerSum(log_sum_s=floats([0.0]), log_factor=np.log(floats([1.5])))
    block, *_, head = table.layers.pieces
    for piece, factor in ((block, 1.5), (head, 1.0)):
        before, after = (
            layer_times(pricer, asked.job, piece, table.layers.layout)
            for pricer in (asked.pricer, replace(asked.pricer, layers=half_longer))
        )
        for one, other in ((before.forward, after.forward), (before.backward, after.backward)):
            for part in ("gemm", "memory_bound"):
                assert other.parts[part] == pytest.approx(factor * one.parts[part])
            # what hides beside a product hides better beside a longer one
            assert (other.parts["tp_comm"] <= one.parts["tp_comm"]).all()
