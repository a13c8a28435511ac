"""Days, GPU-hours, price and energy by hand."""

from dataclasses import replace

import pytest

from solver.decision.goodput import Goodput
from solver.decision.run_cost import Terms, run_cost
from tests.solver.questions import question

ASKED = question(world_size=16, sequences=64, seq_len=1024)
CLUSTER = replace(ASKED.cluster, gpu=replace(ASKED.cluster.gpu, power_w=700.0))


def test_a_run_is_its_steps_on_all_its_gpus() -> None:
    # 65,536 tokens a step of 10 s: 6,553.6 million tokens are 1,000,000 s.
    found = run_cost(ASKED.job, CLUSTER, 10.0, Terms(tokens=65_536e5, price_per_gpu_hour=2.0))
    assert found.seconds == pytest.approx(1e6)
    assert found.days == pytest.approx(1e6 / 86_400)
    assert found.gpu_hours == pytest.approx(16e6 / 3600)
    assert found.price == pytest.approx(2 * 16e6 / 3600)
    assert found.energy_kwh == pytest.approx(16 * 0.7 * 1e6 / 3600)
    assert run_cost(ASKED.job, CLUSTER, 10.0, Terms(tokens=1e9)).price is None


def test_interruptions_lengthen_it_and_spares_are_paid_for() -> None:
    half = Goodput(
        mtbf_s=1.0,
        checkpoint_bytes=1.0,
        checkpoint_s=1.0,
        interval_s=1.0,
        restart_s=1.0,
        spare_wait_s=0.0,
        effective=0.5,
    )
    alone = run_cost(ASKED.job, CLUSTER, 10.0, Terms(tokens=1e9))
    found = run_cost(ASKED.job, CLUSTER, 10.0, Terms(tokens=1e9, spare_nodes=1), half)
    assert found.seconds == pytest.approx(2 * alone.seconds)
    assert found.gpu_hours == pytest.approx(2 * 24 / 16 * alone.gpu_hours)
    assert found.energy_kwh == pytest.approx(2 * alone.energy_kwh)
