"""Bounds of spans are exact where a closed form is, and never above a replay."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.pipeline.least_spans import least_spans_s
from solver.pipeline.pass_times import PassTimes
from solver.pipeline.spans import Hops, stage_spans_s
from solver.pipeline.stages import StageTable, stage_table
from solver.plans.plan_table import Plan, PlanTable
from spec.arrays import FloatArray, floats
from tests.solver.questions import small_model


def spans(
    pp: int, vpp: int, num_micro: int, pace: FloatArray, hop_s: float
) -> tuple[FloatArray, FloatArray, StageTable]:
    """(least, replayed) spans of the stage rows; ``pace`` seconds of a forward in chunks of each stage row."""
    plans = PlanTable.of(Plan(strategy="mtp", preset="megatron", pp=pp, vpp=vpp, num_micro=num_micro))
    stages = stage_table(small_model(layers=pp * vpp), plans)
    forward_s = np.resize(pace, len(stages.plan))[stages.chunks.stage]
    passes = PassTimes(forward_s=forward_s, backward_s=2.0 * forward_s, weight_s=0.0 * forward_s)
    busy_s = num_micro * np.bincount(stages.chunks.stage, 3.0 * forward_s, minlength=len(stages.plan))
    hops = Hops(seconds=floats([hop_s]))
    least = least_spans_s(plans, stages, passes, hops, busy_s)
    return least, stage_spans_s(plans, stages, passes, hops), stages


@given(pp=st.integers(1, 8), vpp=st.sampled_from([1, 2, 3]), rounds=st.integers(1, 5))
def test_equal_stages_and_free_hops_have_a_closed_form(pp: int, vpp: int, rounds: int) -> None:
    """(m + (p - 1) / v) (f + b) of a stage, arXiv 2104.04473 sec. 2.2; a chunk takes 1 + 2 seconds."""
    vpp = vpp if pp > 1 else 1
    num_micro = rounds * pp
    least, _, _ = spans(pp, vpp, num_micro, np.ones(1), 0.0)
    assert least.max() == pytest.approx((num_micro + (pp - 1) / vpp) * 3.0 * vpp)


@given(
    pp=st.integers(1, 6),
    vpp=st.sampled_from([1, 2]),
    rounds=st.integers(1, 4),
    pace=st.lists(st.floats(0.1, 2.0), min_size=3, max_size=3),
    hop_s=st.sampled_from([0.0, 0.3]),
)
def test_no_replay_ends_sooner(pp: int, vpp: int, rounds: int, pace: list[float], hop_s: float) -> None:
    least, played, _ = spans(pp, vpp if pp > 1 else 1, rounds * pp, np.array(pace), hop_s)
    assert (least <= played * (1 + 1e-9)).all()


def test_one_micro_batch_crosses_every_border_twice() -> None:
    """Four stages of 3 seconds and six hops of 0.3."""
    least, played, _ = spans(4, 1, 1, np.ones(1), 0.3)
    assert least.max() == pytest.approx(4 * 3.0 + 6 * 0.3)
    assert played.max() == pytest.approx(least.max())
