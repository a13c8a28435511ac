"""The host sets the pace where it is slower, over the stretches that end with a wait for the device."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.cpu_overhead import HOOK_CALLS, cpu_overhead, sharding_hook_calls
from ops.layout import Layout
from ops.op import Lane, Phase
from profdb.queries import TimeEstimate
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.problem.price import price_plan
from solver.times.cpu_time import HostOp, host_shares, layer_round_s
from solver.times.op_times import OpTimer, TimedOp
from solver.times.step_parts import Share
from spec.arrays import floats
from spec.frameworks import framework_preset
from tests.ops.layouts import job
from tests.ops.operations import experts_product, memory_bound
from tests.solver.flat_cost_model import FLOPS, FlatCostModel
from tests.solver.questions import question

CALL_S = 10e-6


class SlowHost(FlatCostModel):
    """A call takes ten microseconds, a launch nothing."""

    launch_s = 0.0

    def cpu_s(self, kind: str) -> TimeEstimate:
        seconds = floats(CALL_S if kind == "call" else self.launch_s)
        return TimeEstimate(seconds=seconds, relative_std=floats(0.1), origin=np.zeros(1, dtype=np.int64))


class LaunchingHost(SlowHost):
    """A launch takes five."""

    launch_s = 5e-6


def norms(count: int, device_s: float, phase: Phase, *, waits: bool = False, repeat: int = 1):
    """``count`` norms of 1.5 calls each, ``repeat`` at a time, that keep the device busy for ``device_s`` in all."""
    one = np.ones(1, dtype=np.int64)
    timed, shares = [], []
    for index in range(count + waits):
        # The operation that waits takes no time itself.
        waiting = index == count
        op = memory_bound("rmsnorm", phase=phase, repeat=1 if waiting else repeat, synchronises=waiting)
        seconds = floats(0.0 if waiting else device_s / count)
        rest = {"family": "memory_bound", "relative_std": floats(0.1), "origin": one}
        timed.append(TimedOp(op=op, part="memory_bound", seconds=seconds, **rest))
        shares.append(Share(part="memory_bound", seconds=seconds, **rest))
    return timed, shares


def late_s(
    forward_s: float, backward_s: float, *, pp: int = 1, waits: bool = False, checks: bool = False, zero_stage: int = 0
) -> tuple[float, float]:
    """What 20 norms forward and backward (300 us of host each) are later than the device."""
    passes = [norms(20, forward_s, Phase.FORWARD, waits=waits), norms(20, backward_s, Phase.INPUT_GRAD, waits=waits)]
    op_timer = OpTimer(cost_model=SlowHost(), domain_ranks=8)
    preset = framework_preset("megatron").changed({"host.checks_numbers": checks})
    asked = job(preset=preset)
    forward, backward = host_shares(op_timer, asked, Layout.of(pp, pp=pp, zero_stage=zero_stage), passes)
    assert forward.part == backward.part == "host"
    return float(forward.seconds[0]), float(backward.seconds[0])


def test_a_host_that_is_faster_costs_nothing_nor_one_with_nothing_to_issue() -> None:
    assert late_s(400e-6, 800e-6) == late_s(0.0, 0.0) == (0.0, 0.0)


def test_a_long_backward_lets_the_host_run_ahead() -> None:
    assert late_s(200e-6, 800e-6) == (0.0, 0.0)
    assert sum(late_s(200e-6, 350e-6)) == pytest.approx(50e-6)


@pytest.mark.parametrize("where", [{"pp": 2}, {"checks": True}])
def test_where_the_host_waits_for_the_device_each_pass_is_a_stretch(where: dict[str, int]) -> None:
    assert late_s(200e-6, 800e-6, **where) == (pytest.approx(100e-6), 0.0)
    assert late_s(200e-6, 250e-6, **where) == (pytest.approx(100e-6), pytest.approx(50e-6))


def test_after_a_wait_amid_a_layer_nothing_has_been_issued_ahead() -> None:
    """The device waits 15 us for the first of 20 norms; or it ends the last, of 10 us, after all are issued."""
    assert late_s(400e-6, 800e-6, waits=True) == pytest.approx((15e-6, 15e-6))
    assert late_s(200e-6, 400e-6, waits=True) == pytest.approx((110e-6, 15e-6))


@given(
    left_s=st.floats(min_value=0.0, max_value=500e-6),
    place=st.integers(min_value=0, max_value=20),
    lane=st.sampled_from([Lane.PREFETCH, Lane.COPY]),
)
def test_what_runs_ahead_goes_on_while_the_host_is_late(left_s: float, place: int, lane: Lane) -> None:
    """310 us with nothing ahead, of which the device is busy for 200: so much more may outlast it for free."""
    timed, shares = norms(20, 200e-6, Phase.FORWARD, waits=True)
    timed.insert(place, replace(timed[0], op=replace(timed[0].op, lane=lane), seconds=floats(1e-9)))
    shares.insert(place, replace(shares[0], seconds=floats(left_s)))
    forward_s, _ = late_of([(timed, shares), norms(20, 1.0, Phase.INPUT_GRAD)], pp=1)
    issued_s = 15e-6  # of what runs ahead itself
    assert forward_s == pytest.approx(max(110e-6 - left_s, 0.0), abs=issued_s * 1.001)


def test_hooks_before_every_module_take_the_host_in_the_forward_alone() -> None:
    whole, sharded = (late_s(0.1e-6, 0.1e-6, pp=2, zero_stage=stage) for stage in (0, 1))
    assert sharded[0] - whole[0] == pytest.approx(20 * HOOK_CALLS * CALL_S)
    assert sharded[1] == whole[1]


def late_of(
    passes: list, preset: str = "megatron", *, cost_model: SlowHost | None = None, **degrees: int
) -> list[float]:
    """What each pass is later than the device, two stages waiting for each other unless said."""
    op_timer = OpTimer(cost_model=cost_model or SlowHost(), domain_ranks=8)
    layout = Layout.of(16, **{"pp": 2} | degrees)
    asked = job(world_size=16, preset=framework_preset(preset))
    return [float(share.seconds[0]) for share in host_shares(op_timer, asked, layout, passes)]


def test_a_backward_launches_a_kernel_more_and_launches_add_up() -> None:
    """20 norms of 1.5 calls, in the backward a launch more of 5 us each; the device takes no time to speak of."""
    passes = [norms(20, 1e-12, phase) for phase in (Phase.FORWARD, Phase.INPUT_GRAD)]
    assert late_of(passes, cost_model=LaunchingHost()) == pytest.approx([300e-6, 400e-6])


def test_hooks_are_run_as_often_as_what_they_belong_to() -> None:
    """10 norms twice each: as many calls, and as many hooks, as 20 norms."""
    twice, once = (
        late_of([norms(20 // repeat, 1e-12, Phase.FORWARD, repeat=repeat)] * 2, zero_stage=1, zero_size=8)
        for repeat in (2, 1)
    )
    assert twice == pytest.approx(once)
    assert once[0] == pytest.approx(20 * (1.5 + HOOK_CALLS) * CALL_S)


def test_a_frameworks_own_hooks_come_on_top() -> None:
    """DeepSpeed at stage 3, which fetches a norm's weight around its module."""
    timed, _ = norms(1, 1e-12, Phase.FORWARD)
    degrees = {"zero_stage": 3, "zero_size": 8}
    layout, asked = Layout.of(16, pp=2, **degrees), job(world_size=16, preset=framework_preset("deepspeed"))
    hooks = float(sharding_hook_calls(timed[0].op, asked, layout)[0])
    assert hooks > 0
    late, plain = (
        late_of([norms(20, 1e-12, Phase.FORWARD)] * 2, "deepspeed", **changes)[0] for changes in (degrees, {})
    )
    assert late - plain == pytest.approx(20 * hooks * CALL_S)


def test_an_operation_of_many_launches_starts_with_its_first() -> None:
    """After a wait the device waits for one of 20 norms, 15 us, whether they are 20 operations or one."""
    for count, repeat in ((20, 1), (1, 20)):
        passes = [
            norms(count, seconds, phase, waits=True, repeat=repeat)
            for phase, seconds in ((Phase.FORWARD, 400e-6), (Phase.INPUT_GRAD, 800e-6))
        ]
        assert late_of(passes, pp=1) == pytest.approx([15e-6, 15e-6])


def test_a_grouped_product_is_as_many_launches_as_experts() -> None:
    """After a wait the device starts with the first of 16 experts' products, a sixteenth of the host's work."""
    one = np.ones(1, dtype=np.int64)
    op = experts_product(16, 1, 1, 1)
    host_s = float(cpu_overhead(op, job()).calls[0]) * CALL_S
    rest = {"family": "grouped_gemm", "relative_std": floats(0.1), "origin": one}
    timed = TimedOp(op=op, part="grouped_gemm", seconds=floats(1.0), **rest)
    share = Share(part="grouped_gemm", seconds=floats(1.0), **rest)
    waiting, none = norms(0, 0.0, Phase.FORWARD, waits=True)
    passes = [([timed, *waiting], [share, *none]), norms(20, 1.0, Phase.INPUT_GRAD)]
    assert late_of(passes, pp=1)[0] == pytest.approx(host_s / 16)


def test_the_halves_of_a_split_backward_are_stretches_of_their_own() -> None:
    """A host of 300 us each is late for the half that takes 100 us, whatever the other half takes."""
    phases = ((Phase.FORWARD, 400e-6), (Phase.INPUT_GRAD, 900e-6), (Phase.WEIGHT_GRAD, 100e-6))
    passes = [norms(20, seconds, phase) for phase, seconds in phases]
    assert late_of(passes) == [0.0, 0.0, pytest.approx(200e-6)]


def test_a_faster_device_never_slows_a_zero_bubble_step_that_waits_for_the_host() -> None:
    plan = Plan(strategy="mtp", preset="zero-bubble", schedule=Schedule.ZB_H1, tp=2, pp=4, num_micro=4)
    steps = []
    for flops in (FLOPS, 2 * FLOPS):
        asked = question(
            world_size=8, sequences=4, preset=framework_preset("zero-bubble"), cost_model=SlowHost(flops=flops)
        )
        steps.append(price_plan(asked, PlanTable.of(plan))[0])
    assert steps[0].parts_s["host"] > 0.0
    assert steps[1].step_s <= steps[0].step_s


def issued(host_s: float, device_s: float, *, launches: float = 1.0, waits: bool = False) -> HostOp:
    """An operation of one row."""
    return HostOp(host_s=floats(host_s), device_s=floats(device_s), launches=floats(launches), waits=waits)


def round_s(*operations: HostOp) -> float:
    """Seconds from wait to wait."""
    return float(layer_round_s(operations)[0])


def test_the_round_begins_where_the_host_waits() -> None:
    """Long device work before the wait hides no issuing after it: the small kernel runs from 3 on, the long one is
    issued at 5 and runs for 10. With the wait before the long one, the small one is issued beside it."""
    assert round_s(issued(2.0, 10.0), issued(3.0, 1.0, waits=True)) == pytest.approx(15.0)
    assert round_s(issued(2.0, 10.0, waits=True), issued(3.0, 1.0)) == pytest.approx(13.0)


def test_the_slower_of_host_and_device_sets_the_pace_in_between() -> None:
    slow_host = [issued(4.0, 1.0, waits=True), issued(4.0, 1.0), issued(4.0, 1.0)]
    assert round_s(*slow_host) == pytest.approx(13.0)
    slow_device = [issued(1.0, 4.0, waits=True), issued(1.0, 4.0), issued(1.0, 4.0)]
    assert round_s(*slow_device) == pytest.approx(13.0)


def test_equal_launches_run_as_they_are_issued() -> None:
    """Ten experts' products: the first is issued after a tenth of the host's time, the last runs for a tenth of the
    device's after it."""
    assert round_s(issued(10.0, 20.0, launches=10.0, waits=True)) == pytest.approx(21.0)
    assert round_s(issued(20.0, 10.0, launches=10.0, waits=True)) == pytest.approx(21.0)
    assert round_s(issued(10.0, 20.0, waits=True)) == pytest.approx(30.0)


def test_at_a_second_wait_the_host_has_issued_nothing_ahead() -> None:
    """The long kernel runs from 1 to 11; a host that waits for it issues the next at 13, one that does not
    has issued it at 3 and the last at 5."""
    last = issued(2.0, 1.0)
    assert round_s(issued(1.0, 10.0, waits=True), issued(2.0, 1.0, waits=True), last) == pytest.approx(16.0)
    assert round_s(issued(1.0, 10.0, waits=True), issued(2.0, 1.0), last) == pytest.approx(13.0)


def test_what_does_not_run_delays_nothing() -> None:
    assert round_s(issued(1.0, 5.0, waits=True), issued(0.0, 0.0)) == pytest.approx(6.0)


def test_a_layer_without_a_wait_has_no_round() -> None:
    with pytest.raises(ValueError, match="never waits"):
        layer_round_s([issued(1.0, 1.0)])
