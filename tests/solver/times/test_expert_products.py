"""Experts' products one by one: as many beside each other as fit, measured grouped times left alone."""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import GroupedGemm
from profdb.queries import GroupedLinearQuery, TimeEstimate
from solver.times.op_times import OpTimer, products_apart_s
from spec.arrays import floats, ints
from spec.origin import Origin
from tests.ops.layouts import job, written
from tests.ops.operations import experts_product
from tests.solver.flat_cost_model import FLOPS, FlatCostModel
from tests.solver.plans.test_rules import EXPERTS
from tests.solver.questions import cluster

SMS = 128


def experts(*, groups: int, rows: int, layout: str = "NT") -> GroupedGemm:
    return experts_product(groups, groups * rows, 1024, 2048, layout=layout)


def whole(seconds: float = 0.0, origin: Origin = Origin.MODELLED) -> TimeEstimate:
    return TimeEstimate(seconds=floats(seconds), relative_std=floats(0.1), origin=ints(int(origin)))


def single_s(rows: int) -> float:
    return 2.0 * rows * 1024 * 2048 / FLOPS


@pytest.mark.parametrize(
    ("groups", "rows", "beside"),
    [
        (16, 1024, 1.0),  # 8 x 16 tiles fill 128 multiprocessors
        (16, 512, 2.0),  # 4 x 16
        (16, 128, 4.0),  # 16 tiles would leave room for eight, there are four streams
        (1, 128, 1.0),  # nobody is beside it
    ],
)
def test_products_share_the_multiprocessors_that_they_leave_free(groups: int, rows: int, beside: float) -> None:
    predicted = products_apart_s(FlatCostModel(), experts(groups=groups, rows=rows), whole(), SMS)
    assert predicted.seconds[0] == pytest.approx(groups * single_s(rows) / beside, rel=1e-12)
    assert predicted.origin[0] == int(Origin.DERIVED)


def test_a_weight_gradient_reduces_over_an_experts_rows() -> None:
    cost_model = FlatCostModel()
    products_apart_s(cost_model, experts(groups=4, rows=256, layout="TN"), whole(), SMS)
    query = cost_model.asked[-1]
    assert (query.m, query.k, query.n) == (ints(2048), ints(256), ints(1024))


def test_a_measured_grouped_time_stands_and_it_is_never_faster_than_one_kernel_for_all() -> None:
    for grouped in (whole(3.0, Origin.MEASURED), whole(9.0)):
        predicted = products_apart_s(FlatCostModel(), experts(groups=4, rows=256), grouped, SMS)
        assert predicted.seconds[0] == grouped.seconds[0]


def test_no_experts_take_no_time() -> None:
    none = replace(experts(groups=4, rows=0), groups=ints(0))
    assert np.all(products_apart_s(FlatCostModel(), none, whole(), SMS).seconds == 0.0)


class ModelledExperts(FlatCostModel):
    """A cost model whose grouped times come from a sheet, twice as fast as single products."""

    def grouped_linear_s(self, query: GroupedLinearQuery) -> TimeEstimate:
        predicted = FlatCostModel.grouped_linear_s(self, query)
        return replace(predicted, seconds=predicted.seconds / 2.0, origin=0 * predicted.origin + int(Origin.MODELLED))


def test_an_op_timer_of_a_gpu_asks_for_products_apart() -> None:
    op = experts(groups=16, rows=1024)
    layout = Layout.of(1)
    bare = OpTimer(cost_model=ModelledExperts(), domain_ranks=8)
    assert bare.time(op, layout).seconds[0] == pytest.approx(8 * single_s(1024), rel=1e-12)
    known = replace(bare, gpu=cluster().gpu)
    assert known.time(op, layout).seconds[0] == pytest.approx(16 * single_s(1024), rel=1e-12)
    assert known.time(replace(op, one_kernel=True), layout).seconds[0] == bare.time(op, layout).seconds[0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"cuda_graphs": frozenset({"moe_router"})}, False),
        ({"cuda_graphs": frozenset({"full_iteration"})}, True),
        ({"cuda_graphs": frozenset({"full_iteration"}), "moe_capacity_factor": 1.0}, False),
    ],
)
def test_a_graph_of_the_whole_iteration_knows_no_experts_rows(settings: dict[str, object], expected: bool) -> None:
    """Megatron-LM transformer_config.py, moe_expert_rank_capacity_factor; equal parts of a capacity are known."""
    asked = replace(job(), **settings)  # type: ignore[arg-type]
    (block,) = written(EXPERTS, asked, "mtp", Layout.of(1), "none").blocks
    ops = [op for op in (*block.forward, *block.backward) if isinstance(op, GroupedGemm)]
    assert [op.one_kernel for op in ops] == [expected] * 6
