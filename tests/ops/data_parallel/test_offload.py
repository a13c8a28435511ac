"""What goes to the host: bytes by hand, out of the device's terms and into the host's."""

from dataclasses import replace

import numpy as np
import pytest

from ops.block import layer_ops
from ops.context import LayerContext
from ops.cpu_overhead import OFFLOADED_PART_CALLS, OFFLOADED_TENSOR_CALLS, cpu_overhead
from ops.data_parallel.offload import keeps_gradients_on_host, offload_parts
from ops.layout import Layout
from ops.op import HostTransfer, HostUpdate, Lane, Pass, Phase
from ops.recompute import Recompute
from ops.roles import Role
from profdb.host_copies import LINK_SHARE
from solver.estimate import Estimate, estimate_memory, stage_times, step_operations, step_time
from solver.memory.terms import MemoryEstimate
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from solver.problem.requested_plan import broken_rules
from spec.cluster.cluster import HostSpec
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from spec.readers.read_config import read_config
from tests.ops.layouts import job
from tests.solver.questions import ROOT, question, small_model

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
    op_timer = replace(base.op_timer, host=HOST, gpus_per_node=8)
    cluster = replace(base.cluster, host=HOST)
    return replace(base, op_timer=op_timer, cluster=cluster), plan


def laid_out(case: tuple[Problem, Plan]) -> Estimate:
    asked_for, plan = case
    return estimate_memory(asked_for.model, asked_for.job, PlanTable.of(plan), asked_for.cluster)


def memory(*args: str, **kwargs: float) -> MemoryEstimate:
    return laid_out(asked(*args, **kwargs)).memory  # type: ignore[arg-type]


def owned(table: Estimate) -> int:
    return -(-int(table.bytes.on_rank.total[0]) // 8)


def transfers(case: tuple[Problem, Plan]) -> dict[str, float]:
    """Bytes of every transfer of the step, all launches."""
    ops = step_operations(case[0].model, case[0].job, laid_out(case))
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
    """Of all micro-batches but the last: 2 bytes there and 2 back for every element."""
    for micro in (1, 2, 4):
        case = asked("deepspeed", optimizer=1.0, stage=2, micro=micro)
        assert transfers(case)["step.host_gradients_summed"] == (micro - 1) * 2 * 2.0 * owned(laid_out(case))
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
    step = stage_times(case[0].model, case[0].job, laid_out(case), case[0].op_timer).step
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
    slow_s, _ = seconds((replace(slow[0], op_timer=replace(slow[0].op_timer, host=slow_host)), slow[1]))
    # The small model is one bucket, which nothing hides; a link a million times slower takes so much longer.
    assert hidden_s == pytest.approx(open_s)
    assert slow_s == pytest.approx(open_s * 1e6)
    preset = framework_preset("deepspeed").changed({"data_parallel.bucket_elements": 100_000})
    many = replace(slow[0], job=replace(slow[0].job, preset=preset))
    assert seconds((many, slow[1]))[0] < 0.01 * open_s


def test_the_devices_part_of_the_update_runs_beside_the_hosts() -> None:
    case = asked("megatron", optimizer=0.5)
    step = stage_times(case[0].model, case[0].job, laid_out(case), case[0].op_timer).step
    table = laid_out(case)
    ops = step_operations(case[0].model, case[0].job, table)
    host = next(op for op in ops if isinstance(op, HostUpdate))
    assert case[0].op_timer.time(host, table.plans.layout).seconds[0] > 0.0
    kernels_s = sum(
        float(case[0].op_timer.time(op, table.plans.layout).seconds[0])
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
    transient = [np.max([np.sum(op.transient_bytes) for op in t.layers.pieces[0].forward]) for t in (here, gone)]
    assert transient[1] >= layer


def test_activations_wait_for_the_link_only_beyond_the_pass() -> None:
    case = asked("megatron", layers=6)
    fast = replace(case[0].op_timer, host=replace(HOST, link_bandwidth=1e15))
    table = laid_out(case)
    free = step_time(case[0].model, case[0].job, table, fast)
    assert free.parts["offload"][0] == 0.0
    slow = replace(case[0].op_timer, host=replace(HOST, link_bandwidth=1e6))
    cost = step_time(case[0].model, case[0].job, table, slow)
    moved = float(table.memory.host_bytes[0])
    both_ways_s = 2 * 4 * moved / (1e6 / 2 * LINK_SHARE)
    assert cost.parts["offload"][0] == pytest.approx(both_ways_s, rel=1e-3)
    assert cost.step_s[0] == pytest.approx(sum(float(part[0]) for part in cost.parts.values()))


def test_only_a_rank_that_offloads_keeps_gradients_on_the_host() -> None:
    asked_for, _ = asked("deepspeed")
    layout = Layout.of(
        8, zero_size=8, zero_stage=np.array([2, 2, 1, 3]), optimizer_offload=np.array([0.0, 0.5, 1.0, 1.0])
    )
    context = LayerContext(model=asked_for.model, job=asked_for.job, layout=layout)
    assert keeps_gradients_on_host(context).tolist() == [0, 1, 0, 1]


OPTIMIZER = "the framework cannot offload this share of the optimizer"
ACTIVATIONS = "the framework cannot offload the activations of these layers"


@pytest.mark.parametrize(
    ("case", "changes", "reasons"),
    [
        (asked("internevo", optimizer=1.0), {}, {OPTIMIZER}),
        (asked("fsdp", optimizer=1.0, stage=3), {}, {OPTIMIZER}),
        (asked("megatron", optimizer=1.0, stage=0), {}, {OPTIMIZER}),
        (asked("deepspeed", optimizer=0.5, stage=2), {}, {OPTIMIZER}),
        (asked("deepspeed", layers=4), {}, {ACTIVATIONS}),
        (asked("megatron", layers=8), {}, {ACTIVATIONS}),
        (asked("megatron", layers=4, pp=2), {}, {ACTIVATIONS}),
        (asked("megatron", layers=4), {"recompute": Recompute.FULL}, {ACTIVATIONS}),
        (asked("megatron", optimizer=0.5, layers=7), {}, set()),
        (asked("deepspeed", optimizer=1.0, stage=2), {}, set()),
        (asked("deepspeed", optimizer=0.5, stage=3), {}, set()),
    ],
)
def test_what_a_framework_does_not_run_is_refused(
    case: tuple[Problem, Plan], changes: dict[str, Recompute], reasons: set[str]
) -> None:
    problem, plan = case
    assert {OPTIMIZER, ACTIVATIONS} & set(broken_rules(problem, replace(plan, **changes))) == reasons


def test_plans_that_offload_differently_share_a_table() -> None:
    """Every row costs and holds what it does alone, those without offloading too."""
    cases = [asked("megatron", optimizer=share, layers=layers) for share in (0.0, 0.5, 1.0) for layers in (0, 3)]
    asked_for = cases[0][0]

    def told(*plans: Plan) -> dict[str, np.ndarray]:
        table = estimate_memory(asked_for.model, asked_for.job, PlanTable.of(*plans), asked_for.cluster)
        cost = step_time(asked_for.model, asked_for.job, table, asked_for.op_timer)
        memory = table.memory
        return cost.parts | {"step": cost.step_s, "needed": memory.needed_bytes, "host": memory.host_bytes}

    plans = [plan for _, plan in cases]
    together = told(*plans)
    for row, plan in enumerate(plans):
        for name, alone in told(plan).items():
            assert together[name][row] == pytest.approx(alone[0], rel=1e-12), (name, plan)
    assert len(set(together["step"].tolist())) == len(plans)


# Parts of layers that wait on the host: bytes by hand, taken from the device and given back.


SEQ = 256
DENSE, EXPERTS = 0, 1
HIDDEN, HEADS, TOP_K, WIDTH = 7168, 128, 8, 2048
Q_RANK, KV_RANK = 1536, 512


def model(name: str = "671B_deepseek_v3.toml") -> ModelSpec:
    return read_config(ROOT / "configs" / name).model


def layer(which: int, *names: str, again: tuple[str, ...] = (), of: ModelSpec | None = None) -> Pass:
    bare = layer_ops(of or model(), job(seq_len=SEQ), Layout.of(8, ep=8), "mtp")
    return bare.apply_recompute(Recompute.NONE, again, names).blocks[which]


def moved(piece: Pass, role: Role = Role.ACTIVATIONS_TO_HOST) -> dict[str, float]:
    return {op.name: float(op.size_bytes[0]) for op in (*piece.forward, *piece.backward) if op.role is role}


def saved(piece: Pass) -> float:
    return float(sum(np.max(op.saved_bytes, initial=0.0) + np.min(op.saved_bytes, initial=0.0) for op in piece.forward))


# What each part of a layer with experts saves a token, in bytes: tensors of 16 bits, statistics of 32.
CORE = 2 * HEADS * (192 + 192 + 128) + 4 * HEADS
BY_HAND = {
    "attn_norm": 2 * HIDDEN,
    "qkv_linear": 2 * (HIDDEN + 2 * Q_RANK + 2 * KV_RANK),
    "core_attn": CORE,
    "attn_proj": 2 * HEADS * 128,
    "mlp_norm": 2 * HIDDEN,
    "expert_fc1": 2 * TOP_K * HIDDEN,
    "moe_act": 2 * TOP_K * 2 * WIDTH,
    "fused_group_mlp": 2 * TOP_K * (HIDDEN + 3 * WIDTH),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_part_sends_what_it_saves_and_takes_it_back(name: str) -> None:
    piece = layer(EXPERTS, name)
    assert moved(piece) == {f"{name}.to_host": pytest.approx(SEQ * BY_HAND[name], rel=2e-3)}
    back = moved(piece, Role.ACTIVATIONS_FROM_HOST)
    assert list(back.values()) == list(moved(piece).values())
    assert saved(piece) == pytest.approx(saved(layer(EXPERTS)) - sum(back.values()))
    on_its_way = [float(op.transient_bytes[0]) for op in piece.forward if op.role is Role.ACTIVATIONS_TO_HOST]
    assert on_its_way == list(back.values())


def test_every_byte_leaves_once() -> None:
    """All parts but the one that is three others together; what stays is no part's."""
    names = tuple(name for name in BY_HAND if name != "fused_group_mlp")
    piece = layer(EXPERTS, *names)
    assert len(moved(piece)) == len(names)
    assert saved(piece) + sum(moved(piece).values()) == pytest.approx(saved(layer(EXPERTS)))
    assert sum(moved(piece).values()) == pytest.approx(sum(moved(layer(EXPERTS, one)).popitem()[1] for one in names))


def test_what_comes_back_first_left_last() -> None:
    piece = layer(EXPERTS, "core_attn", "expert_fc1", "moe_act")
    away = [op.name.split(".")[0] for op in piece.forward if isinstance(op, HostTransfer)]
    back = [op.name.split(".")[0] for op in piece.backward if isinstance(op, HostTransfer)]
    assert back == away[::-1]
    assert all(op.lane is Lane.COPY for op in (*piece.forward, *piece.backward) if isinstance(op, HostTransfer))


def test_only_modules_of_their_own_are_parts() -> None:
    """Dense layers have no experts, and Transformer Engine fuses a norm into the product behind it but before MLA
    and before experts."""
    assert set(moved(layer(DENSE, *BY_HAND))) == {
        f"{name}.to_host" for name in ("attn_norm", "qkv_linear", "core_attn", "attn_proj")
    }
    plain = layer(DENSE, "attn_norm", "qkv_linear", "mlp_norm", of=model("13B_gpt.toml"))
    norm_and_input = 2 * 5120 + 2 * 5120
    assert moved(plain) == {"qkv_linear.to_host": pytest.approx(SEQ * norm_and_input, rel=2e-2)}


def test_what_runs_again_is_not_sent() -> None:
    """The activation's input stays for it to run again, the input of the last product is dropped."""
    both = layer(EXPERTS, "moe_act", again=("moe_act",))
    assert moved(both) == moved(layer(EXPERTS, "moe_act"))
    dropped = 2 * TOP_K * WIDTH * SEQ
    assert saved(layer(EXPERTS, "moe_act")) - saved(both) == pytest.approx(dropped, rel=1e-3)


def test_a_layer_that_runs_again_sends_its_input_alone() -> None:
    bare = layer_ops(model(), job(seq_len=SEQ), Layout.of(8, ep=8), "mtp")
    sent = ("layer_input",)
    whole = bare.apply_recompute(Recompute.FULL, (), sent).blocks[EXPERTS]
    kept = bare.apply_recompute(Recompute.FULL).blocks[EXPERTS]
    assert moved(whole) == {"layer_input.to_host": SEQ * 2 * HIDDEN}
    assert (saved(kept), saved(whole)) == (SEQ * 2 * HIDDEN, 0.0)
    assert moved(bare.apply_recompute(Recompute.NONE, (), sent).blocks[EXPERTS]) == {}
    partly = bare.apply_recompute(Recompute.BLOCK, (), sent).blocks
    half = len(partly) // 2
    assert [bool(moved(one)) for one in partly] == [True] * half + [False] * half
    assert len(partly) == 2 * len(bare.apply_recompute(Recompute.NONE).blocks)
    # Parts of a layer that runs again whole are not kept and not sent.
    assert moved(bare.apply_recompute(Recompute.FULL, (), ("core_attn",)).blocks[EXPERTS]) == {}


def test_equal_layers_share_a_piece() -> None:
    bare = layer_ops(model(), job(seq_len=SEQ), Layout.of(8, ep=8), "mtp")
    first, second = (bare.apply_recompute(Recompute.NONE, (), ("core_attn",)) for _ in range(2))
    assert first.blocks[DENSE] is second.blocks[DENSE]
    assert first.blocks[DENSE] is not bare.apply_recompute(Recompute.NONE).blocks[DENSE]
    piece = bare.apply_recompute(Recompute.NONE).blocks[DENSE]
    assert offload_parts(piece, ("expert_fc1",)).forward == piece.forward


def test_the_host_takes_a_part_and_each_of_its_tensors() -> None:
    piece = layer(EXPERTS, "core_attn", "mlp_norm")
    transfers = {op.name: op for op in (*piece.forward, *piece.backward) if isinstance(op, HostTransfer)}
    for name, tensors in (("core_attn", 5), ("mlp_norm", 1)):
        for way, back in (("to_host", 0), ("from_host", 1)):
            op = transfers[f"{name}.{way}"]
            work = cpu_overhead(op, job())
            assert (op.phase is not Phase.FORWARD) == bool(back)
            assert work.calls[0] == pytest.approx(OFFLOADED_PART_CALLS[back] + tensors * OFFLOADED_TENSOR_CALLS)
            assert work.launches[0] == tensors
    graphed = replace(job(), cuda_graphs=frozenset({"attn"}))
    assert cpu_overhead(transfers["core_attn.to_host"], graphed).calls[0] == 0.0
    assert cpu_overhead(transfers["mlp_norm.to_host"], graphed).calls[0] > 0.0


def offloading_job(*names: str, link: float = 1e15, pp: int = 2) -> dict[str, float]:
    """Memory and waiting of a small model's plan."""
    base = question(world_size=8, sequences=64, preset=framework_preset("megatron"), model=small_model())
    host = HostSpec(link_bandwidth=link, memory_bandwidth=400e9)
    op_timer = replace(base.op_timer, host=host, gpus_per_node=8)
    plan = Plan(strategy="mtp", preset="megatron", dp=8 // pp, pp=pp, num_micro=64 * pp // 8, offload_modules=names)
    table = estimate_memory(base.model, base.job, PlanTable.of(plan), replace(base.cluster, host=host))
    cost = step_time(base.model, base.job, table, op_timer)
    return {
        "saved": float(table.memory.activations_bytes[0]),
        "host": float(table.memory.host_bytes[0]),
        "offload": float(cost.parts["offload"][0]),
    }


def test_the_first_stage_holds_its_micro_batches_on_the_host() -> None:
    here, gone = offloading_job(), offloading_job("core_attn")
    assert gone["host"] > 0.0
    assert here["saved"] - gone["saved"] == pytest.approx(gone["host"])
    # Two micro-batches of half of the layers, or one of all.
    assert offloading_job("core_attn", pp=1)["host"] == pytest.approx(gone["host"])


def test_a_link_that_is_too_slow_is_waited_for_both_ways() -> None:
    assert offloading_job("core_attn", pp=1)["offload"] == 0.0
    slow = offloading_job("core_attn", pp=1, link=1e6)
    both_ways_s = 2 * 8 * slow["host"] / (1e6 * LINK_SHARE)
    assert slow["offload"] == pytest.approx(both_ways_s, rel=0.02)
