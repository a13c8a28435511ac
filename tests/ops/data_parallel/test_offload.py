"""What goes to the host: bytes by hand, out of the device's terms and into the host's."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.offload import keeps_gradients_on_host
from ops.layout import Layout
from ops.op import HostTransfer, HostUpdate
from ops.recompute import Recompute
from profdb.host_copies import LINK_SHARE
from solver.estimate import Estimate, estimate_memory, stage_times, step_time
from solver.memory.stage import MemoryEstimate
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from solver.problem.typed_plan import broken_rules
from solver.times.step_end import operations
from spec.cluster.cluster import HostSpec
from spec.frameworks import framework_preset
from tests.solver.questions import question, small_model

LINK, MEMORY = 50e9, 400e9
HOST = HostSpec(link_bandwidth=LINK, memory_bandwidth=MEMORY, links=4)
# Eight GPUs on four links: each has half of one.
RATE = LINK / 2 * LINK_SHARE


def asked(
    preset: str, *, optimizer: float = 0.0, layers: int = 0, stage: int = 1, micro: int = 4, pp: int = 1
) -> tuple[Problem, Plan]:
    dp = 8 // pp
    plan = Plan(
        strategy="mtp",
        preset=preset,
        dp=dp,
        pp=pp,
        zero_stage=stage,
        zero_size=dp if stage else 1,
        micro_batch=1,
        num_micro=micro,
        optimizer_offload=optimizer,
        offloaded_layers=layers,
    )
    base = question(world_size=8, sequences=dp * micro, preset=framework_preset(preset), model=small_model())
    pricer = replace(base.pricer, host=HOST, gpus_per_node=8)
    cluster = replace(base.cluster, host=HOST)
    return replace(base, pricer=pricer, cluster=cluster), plan


def laid_out(case: tuple[Problem, Plan]) -> Estimate:
    asked_for, plan = case
    return estimate_memory(asked_for.model, asked_for.job, PlanTable.of(plan), asked_for.cluster)


def memory(*args: str, **kwargs: float) -> MemoryEstimate:
    return laid_out(asked(*args, **kwargs)).memory  # type: ignore[arg-type]


def owned(table: Estimate) -> int:
    return -(-int(table.bytes.on_rank.total[0]) // 8)


def transfers(case: tuple[Problem, Plan]) -> dict[str, float]:
    """Bytes of every transfer of the step, all launches."""
    table = laid_out(case)
    sharding = table.plans.sharding
    context = LayerContext(sharding=sharding, model=case[0].model, job=case[0].job, layout=table.plans.layout)
    ops = operations(context, table.bytes.on_rank, np.zeros(1, bool))
    return {op.name: float((op.size_bytes * op.repeat)[0]) for op in ops if isinstance(op, HostTransfer)}


def test_megatron_sends_fp32_gradients_once_and_takes_parameters_back() -> None:
    case = asked("megatron", optimizer=0.5)
    half = -(-owned(laid_out(case)) // 2)
    assert transfers(case) == {
        "step.host_gradients_summed": 0.0,
        "step.host_gradients": 4.0 * half,
        "step.host_parameters": 2.0 * half,
    }


def test_sharded_gradients_of_earlier_micro_batches_go_and_come_back() -> None:
    """Three of four micro-batches: 2 bytes there and 2 back for every element."""
    case = asked("deepspeed", optimizer=1.0, stage=2)
    assert transfers(case)["step.host_gradients_summed"] == 3 * 2 * 2.0 * owned(laid_out(case))
    whole = asked("deepspeed", optimizer=1.0, stage=1)
    assert transfers(whole)["step.host_gradients_summed"] == 0.0


def test_optimizer_state_moves_from_the_device_to_the_host() -> None:
    here, gone = memory("megatron"), memory("megatron", optimizer=1.0)
    elements = owned(laid_out(asked("megatron")))
    assert here.optimizer_bytes[0] == 12.0 * elements
    assert gone.optimizer_bytes[0] == 0.0
    # Master, two moments and the gradient, fp32.
    assert (here.host_bytes[0], gone.host_bytes[0]) == (0.0, 16.0 * elements)
    assert gone.gradients_bytes[0] == here.gradients_bytes[0]


def test_deepspeeds_sharded_gradients_wait_on_the_host() -> None:
    here, gone = memory("deepspeed", stage=2), memory("deepspeed", stage=2, optimizer=1.0)
    assert here.gradients_bytes[0] == 2.0 * owned(laid_out(asked("deepspeed", stage=2)))
    assert gone.gradients_bytes[0] == 0.0
    assert gone.host_bytes[0] == 18.0 * owned(laid_out(asked("deepspeed", stage=2)))


def seconds(case: tuple[Problem, Plan]) -> tuple[float, float]:
    """Waiting for gradients that leave, and for update and return."""
    step = stage_times(case[0].model, case[0].job, laid_out(case), case[0].pricer).step
    return (
        float(step.reduction.parts.get("offload", np.zeros(1))[0]),
        float(step.update.parts.get("offload", np.zeros(1))[0]),
    )


def test_the_processors_update_by_the_memory_that_eight_ranks_share() -> None:
    case = asked("megatron", optimizer=1.0)
    elements = owned(laid_out(case))
    leaving_s, updating_s = seconds(case)
    assert leaving_s == pytest.approx(4.0 * elements / RATE)
    # arXiv 2101.06840, table 4: 10 billion parameters in 2.57 s on 256 GB/s.
    adam_s = 2.57 * elements * 8 / 10e9 * 256e9 / MEMORY
    assert updating_s == pytest.approx(adam_s + 2.0 * elements / RATE)


def test_gradients_of_earlier_micro_batches_leave_beside_their_own_backwards() -> None:
    """One bucket, which nothing hides: fp32 sums once, and of three of four micro-batches 2 bytes there and 2 back."""
    case = asked("deepspeed", optimizer=1.0, stage=2)
    elements = owned(laid_out(case))
    assert seconds(case)[0] == pytest.approx((4.0 + 3 * 2 * 2.0) * elements / RATE)


def test_deepspeed_hides_leaving_gradients_beside_the_backward() -> None:
    hidden_s, _ = seconds(asked("deepspeed", optimizer=1.0))
    open_s, _ = seconds(asked("megatron", optimizer=1.0))
    slow = asked("deepspeed", optimizer=1.0)
    slow_host = replace(HOST, link_bandwidth=LINK / 1e6)
    slow_s, _ = seconds((replace(slow[0], pricer=replace(slow[0].pricer, host=slow_host)), slow[1]))
    # The small model is one bucket, which nothing hides; a link a million times slower takes so much longer.
    assert hidden_s == pytest.approx(open_s)
    assert slow_s == pytest.approx(open_s * 1e6)
    preset = framework_preset("deepspeed").changed({"data_parallel.bucket_elements": 100_000})
    many = replace(slow[0], job=replace(slow[0].job, preset=preset))
    assert seconds((many, slow[1]))[0] < 0.01 * open_s


def test_the_devices_part_of_the_update_runs_beside_the_hosts() -> None:
    case = asked("megatron", optimizer=0.5)
    step = stage_times(case[0].model, case[0].job, laid_out(case), case[0].pricer).step
    table = laid_out(case)
    sharding = table.plans.sharding
    context = LayerContext(sharding=sharding, model=case[0].model, job=case[0].job, layout=table.plans.layout)
    ops = operations(context, table.bytes.on_rank, np.zeros(1, bool))
    host = next(op for op in ops if isinstance(op, HostUpdate))
    assert case[0].pricer.time(host, table.plans.layout).seconds[0] > 0.0
    kernels_s = sum(
        float(case[0].pricer.time(op, table.plans.layout).seconds[0])
        for op in ops
        if type(op).__name__ == "MemoryBound"
    )
    assert step.update.parts["optimizer"][0] == pytest.approx(kernels_s)


def test_offloaded_layers_keep_one_layer_of_activations_on_the_device() -> None:
    """Eight equal layers, six offloaded: two stay, one is on its way, six wait on the host."""
    here, gone = laid_out(asked("megatron")), laid_out(asked("megatron", layers=6))
    layer = float(sum(op.saved_bytes for op in here.layers.pieces[0].forward)[0])
    before, after = here.memory, gone.memory
    assert before.activations_bytes[0] - after.activations_bytes[0] == pytest.approx(6 * layer)
    assert after.host_bytes[0] == pytest.approx(6 * layer)
    transient = [
        np.max([np.sum(op.transient_bytes) for op in t.layers.pieces[0].forward]) for t in (here, gone)
    ]
    assert transient[1] >= layer


def test_activations_wait_for_the_link_only_beyond_the_pass() -> None:
    case = asked("megatron", layers=6)
    fast = replace(case[0].pricer, host=replace(HOST, link_bandwidth=1e15))
    table = laid_out(case)
    free = step_time(case[0].model, case[0].job, table, fast)
    assert free.parts["offload"][0] == 0.0
    slow = replace(case[0].pricer, host=replace(HOST, link_bandwidth=1e6))
    cost = step_time(case[0].model, case[0].job, table, slow)
    moved = float(table.memory.host_bytes[0])
    both_ways_s = 2 * 4 * moved / (1e6 / 2 * LINK_SHARE)
    assert cost.parts["offload"][0] == pytest.approx(both_ways_s, rel=1e-3)
    assert cost.step_s[0] == pytest.approx(sum(float(part[0]) for part in cost.parts.values()))


def test_two_micro_batches_send_once_and_one_sends_nothing_early() -> None:
    """The first of two there and back, 2 bytes an element each way."""
    owned_now = owned(laid_out(asked("deepspeed", optimizer=1.0, stage=2)))
    summed = [
        transfers(asked("deepspeed", optimizer=1.0, stage=2, micro=micro))["step.host_gradients_summed"]
        for micro in (1, 2)
    ]
    assert summed == [0.0, 2 * 2.0 * owned_now]


def test_only_a_rank_that_offloads_keeps_gradients_on_the_host() -> None:
    asked_for, _ = asked("deepspeed")
    layout = Layout.of(
        8,
        zero_size=8,
        zero_stage=np.array([2, 2, 1, 3]),
        optimizer_offload=np.array([0.0, 0.5, 1.0, 1.0]),
    )
    context = LayerContext(model=asked_for.model, job=asked_for.job, layout=layout)
    assert keeps_gradients_on_host(context).tolist() == [0, 1, 0, 1]


OPTIMIZER = "the framework cannot run so much of this optimizer on the host"
ACTIVATIONS = "the framework cannot keep these layers' activations on the host"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (asked("internevo", optimizer=1.0), OPTIMIZER),
        (asked("fsdp", optimizer=1.0, stage=3), OPTIMIZER),
        (asked("megatron", optimizer=1.0, stage=0), OPTIMIZER),
        (asked("deepspeed", optimizer=0.5, stage=2), OPTIMIZER),
        (asked("deepspeed", layers=4), ACTIVATIONS),
        (asked("megatron", layers=8), ACTIVATIONS),
        (asked("megatron", layers=4, pp=2), ACTIVATIONS),
    ],
)
def test_what_a_framework_does_not_run_is_refused(case: tuple[Problem, Plan], reason: str) -> None:
    assert reason in broken_rules(*case)


@pytest.mark.parametrize(
    "case",
    [
        asked("megatron", optimizer=0.5, layers=7),
        asked("deepspeed", optimizer=1.0, stage=2),
        asked("deepspeed", optimizer=0.5, stage=3),
    ],
)
def test_what_a_framework_runs_is_not(case: tuple[Problem, Plan]) -> None:
    assert not {OPTIMIZER, ACTIVATIONS} & set(broken_rules(*case))


def test_recomputed_layers_are_not_offloaded() -> None:
    asked_for, plan = asked("megatron", layers=4)
    assert ACTIVATIONS in broken_rules(asked_for, replace(plan, recompute=Recompute.FULL))


def test_plans_that_offload_differently_share_a_table() -> None:
    """Every row costs and holds what it does alone, those without offloading too."""
    cases = [
        asked("megatron", optimizer=share, layers=layers) for share in (0.0, 0.5, 1.0) for layers in (0, 3)
    ]
    asked_for = cases[0][0]

    def told(*plans: Plan) -> dict[str, np.ndarray]:
        table = estimate_memory(asked_for.model, asked_for.job, PlanTable.of(*plans), asked_for.cluster)
        cost = step_time(asked_for.model, asked_for.job, table, asked_for.pricer)
        memory = table.memory
        return cost.parts | {"step": cost.step_s, "needed": memory.needed_bytes, "host": memory.host_bytes}

    plans = [plan for _, plan in cases]
    together = told(*plans)
    for row, plan in enumerate(plans):
        for name, alone in told(plan).items():
            assert together[name][row] == pytest.approx(alone[0], rel=1e-12), (name, plan)
    assert len(set(together["step"].tolist())) == len(plans)
