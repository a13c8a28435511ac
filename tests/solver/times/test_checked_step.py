"""What TORCH_DISTRIBUTED_DEBUG=DETAIL costs: every collective's ranks compare what they are about to run."""

from dataclasses import replace

import numpy as np
import pytest

from ops.host_work.checked_collectives import CHECK_CALLS, CHECK_CALLS_PER_RANK, check_calls
from ops.layout import Layout
from ops.op import Axis, Comm, Phase, Pieces
from ops.roles import Module, Role
from solver.plans.plan_table import Plan, PlanTable
from solver.search import price_plan
from solver.times.host_floor import host_shares
from solver.times.op_times import Pricer, TimedOp
from solver.times.step_parts import Share
from spec.arrays import floats, ints
from spec.collectives import Collective
from spec.presets.registry import PRESETS
from tests.ops.layouts import job
from tests.solver.questions import question
from tests.solver.times.test_host_floor import CALL_S, SlowHost

GATHER = Comm(
    module=Module.MLP,
    role=Role.GATHER,
    phase=Phase.FORWARD,
    collective=Collective.ALL_GATHER,
    axis=Axis.TP,
    size_bytes=ints(1 << 20),
)


def test_calls_are_what_groups_of_two_to_four_took() -> None:
    """benchmarks/checked_collectives.py, mean of two runs on one machine."""
    for tp, calls in ((2, 45.0), (3, 55.0), (4, 76.0)):
        assert check_calls(GATHER, Layout.of(tp, tp=tp))[0] == pytest.approx(calls, rel=0.15)


def test_each_further_rank_takes_as_long_and_one_rank_nothing() -> None:
    calls = [float(check_calls(GATHER, Layout.of(64, tp=tp))[0]) for tp in (1, 2, 8, 16, 32)]
    assert calls[0] == 0.0
    assert calls[1] == CHECK_CALLS + CHECK_CALLS_PER_RANK
    assert calls[3] - calls[2] == 8 * CHECK_CALLS_PER_RANK
    assert calls[4] - calls[3] == 16 * CHECK_CALLS_PER_RANK


def test_what_passes_by_the_process_group_is_not_compared() -> None:
    pieces = Pieces(count=ints(4), last_waits=False, thread_blocks=0)
    assert not check_calls(replace(GATHER, pieces=pieces), Layout.of(8, tp=8)).any()


def test_the_host_is_late_by_the_calls_of_a_layers_collectives() -> None:
    """Of a device that is done at once the host's own calls and the comparisons are all there is."""
    seconds, one = floats(1e-9), np.ones(1, dtype=np.int64)
    rest = {"family": "all_gather", "relative_std": floats(0.1), "origin": one}
    timed = TimedOp(op=replace(GATHER, repeat=5), part="tp_comm", seconds=seconds, **rest)
    passes = [([timed], [Share(part="tp_comm", seconds=seconds, **rest)])]
    pricer, layout = Pricer(book=SlowHost(), domain_ranks=8), Layout.of(8, tp=8)
    late = [
        float(host_shares(pricer, job(checked_collectives=on), layout, passes)[0].seconds[0])
        for on in (False, True)
    ]
    assert late[1] - late[0] == pytest.approx(5 * (CHECK_CALLS + 7 * CHECK_CALLS_PER_RANK) * CALL_S)


@pytest.mark.parametrize(
    ("overlaps", "elements", "buckets"),
    [
        (True, 1000, 8 * 4 + 2),
        (True, 700_000, 8 * 3 + 2),
        (True, 1_000_000, 8 * 2 + 2),
        (True, 1_200_000, 8 * 2 + 1),
        (True, 100_000_000, 1),
        (False, 1000, 1),
    ],
)
def test_gradients_are_compared_bucket_by_bucket(overlaps: bool, elements: int, buckets: int) -> None:
    """Of head, eight layers and embedding, in that order: 2,097,152 parameters, then 1,048,576 (down),
    2,097,152 (gate and up), 262,144 (attention's output) and 524,288 (q, k, v) a layer, then 2,097,152. The
    smallest buckets hold a matrix each. Of 700,000 parameters, attention's two share one; of a million, they
    wait for the next layer's down, the first layer's for the embedding; of 1.2 million, the last layer's down
    waits for its gate and up too."""
    preset = PRESETS["nanotron"].changed(
        {"data_parallel.overlap_grad_reduce": overlaps, "data_parallel.bucket_elements": elements}
    )
    plan = Plan(strategy="mtp", preset="nanotron", dp=4, num_micro=1)
    steps = []
    for checked in (False, True):
        asked = question(world_size=4, sequences=4, preset=preset, book=SlowHost())
        asked = replace(asked, job=replace(asked.job, checked_collectives=checked))
        steps.append(price_plan(asked, PlanTable.of(plan))[0].parts_s["host"])
    check_s = (CHECK_CALLS + 3 * CHECK_CALLS_PER_RANK) * CALL_S
    assert steps[1] - steps[0] == pytest.approx(buckets * check_s)
