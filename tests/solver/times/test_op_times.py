"""What a profile has measured of overlap reaches the price of every collective, and nothing else does."""

from dataclasses import fields, replace
from statistics import NormalDist

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import Axis, BatchedGemm, HostTransfer, KernelCalls, Phase
from ops.recompute import Recompute
from ops.roles import Module, Role
from profdb.cases import Case, GemmCase, HostCopyCase, MemoryBoundCase, OverlapCase, SustainedCase
from profdb.cost_model import ProfileCostModel
from profdb.modelled.slow_kernels import UNALIGNED_STD, longer_under_load_s
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.sustained import SustainedRates
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.cluster_times import OtherNetwork
from solver.problem.loading import load_problem
from solver.problem.price import price_plan
from solver.problem.result import Answer
from solver.times.op_times import SPREAD, VARIATION, OpTimer, TimedOp, slowest_of
from spec.arrays import floats, ints
from spec.cluster.cluster import GpuSpec, HostSpec
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.origin import Origin
from tests.ops.layouts import job, written
from tests.ops.operations import comm, memory_bound, product
from tests.profdb.profiles import collective_samples, profile
from tests.solver.flat_cost_model import FLOPS, FlatCostModel
from tests.solver.questions import ROOT, cluster, question, request, small_model

GATHER = comm(Role.WEIGHT_GATHER, Collective.ALL_GATHER, Axis.DP, 1 << 20)
LAYOUT = Layout.of(8)


def overlap_sample(products: int, collectives: int, seconds: float) -> Sample:
    sizes = {"collective": Collective.ALL_GATHER, "size_bytes": 1 << 20, "intra": 8, "inter": 1}
    case = OverlapCase(**sizes, m=64, k=64, n=64, products=products, collectives=collectives)
    return Sample(case=case, trials_s=(seconds,))


# a product and a collective of 1 s; the products lose a quarter, the collective nothing
OVERLAPPED = [
    overlap_sample(1, 0, 1.0),
    overlap_sample(0, 1, 1.0),
    overlap_sample(8, 1, 8.25),
    overlap_sample(1, 8, 8.0),
]


def op_timer(samples: list[Sample]) -> OpTimer:
    return OpTimer.on(cluster(), ProfileCostModel(profile([*collective_samples(), *samples])))


def test_a_collective_carries_what_was_measured_of_it() -> None:
    losses = op_timer(OVERLAPPED).time(GATHER, LAYOUT).losses
    assert losses is not None
    assert np.allclose([losses.compute, losses.comm], [[0.25], [0.0]])


def test_without_samples_and_in_blocks_of_its_own_it_carries_nothing() -> None:
    assert op_timer([]).time(GATHER, LAYOUT).losses is None
    assert op_timer(OVERLAPPED).time(replace(GATHER, thread_blocks=20), LAYOUT).losses is None


def test_another_network_was_not_measured() -> None:
    held: ProfileDatabase = profile([*collective_samples(), *OVERLAPPED])
    cost_model = OtherNetwork(held, missing="error", network=None)  # type: ignore[arg-type]
    assert OpTimer.on(cluster(), cost_model).overlap is None


def test_copies_to_the_host_take_what_was_measured_else_what_the_sheet_says() -> None:
    def copied(role: Role, samples: list[Sample], world: int = 8) -> TimedOp:
        op = HostTransfer(module=Module.STEP, role=role, phase=Phase.STEP, size_bytes=np.array([float(1 << 20)]))
        host = HostSpec(link_bandwidth=64e9, memory_bandwidth=500e9)
        return replace(op_timer(samples), host=host).time(op, Layout.of(world))

    samples = [
        Sample(case=HostCopyCase(direction=way, size_bytes=1 << 20, devices=8), trials_s=(seconds,))
        for way, seconds in (("to_host", 1.0), ("to_device", 2.0))
    ]
    there, back = Role.GRADIENTS_TO_HOST, Role.PARAMETERS_FROM_HOST
    assert [copied(role, samples).seconds.tolist() for role in (there, back)] == [[1.0], [2.0]]
    assert copied(there, samples).origin.tolist() == [int(Origin.MEASURED)]
    # alone on its node, and nobody measured that
    assert copied(there, samples, world=1).origin.tolist() == [int(Origin.MODELLED)]
    assert copied(there, []).origin.tolist() == [int(Origin.MODELLED)]


def test_a_cast_takes_what_its_own_kernels_do_where_both_were_measured() -> None:
    """A read to search, then one kernel for both copies: 1 s for its rows and the copy's time for the read."""
    one = np.ones(1)
    calls = (
        KernelCalls(kernel="quantize_transpose", rows=ints(1024), times=2.0 * one),
        KernelCalls(kernel="copy", rows=ints(512), times=one),
    )
    op = memory_bound("copy", 1536, 4096, role=Role.CAST, phase=Phase.INPUT_GRAD, stands_for=calls)

    def of(kernel: str, seconds: float) -> list[Sample]:
        cases = (
            MemoryBoundCase(kernel=kernel, direction="forward", rows=rows, width=4096) for rows in (512, 1024, 2048)
        )
        return [Sample(case=case, trials_s=(seconds * case.rows / 1024,)) for case in cases]

    copied, both = of("copy", 0.25), [*of("quantize", 0.5), *of("quantize_transpose", 1.0)]
    found = op_timer([*copied, *both]).time(op, LAYOUT)
    assert found.seconds[0] == pytest.approx(2.0 * 1.0 + 0.125, rel=1e-3)
    assert found.origin[0] == int(Origin.MEASURED)
    alone = op_timer(copied).time(op, LAYOUT).seconds[0]
    assert alone == pytest.approx(0.25 * 1.5, rel=0.05)
    modelled = [replace(sample, origin=Origin.MODELLED) for sample in both]
    for more in (both[:3], both[3:], modelled):
        assert op_timer([*copied, *more]).time(op, LAYOUT).seconds[0] == alone


SIDE, ALONE_S = 8192, 1.4e-3


def book_of(*measured: tuple[Case, tuple[float, ...]]) -> ProfileCostModel:
    samples = [Sample(case=case, trials_s=trials_s) for case, trials_s in measured]
    return ProfileCostModel(ProfileDatabase(machine=MachineFacts(gpu=cluster().gpu.name), samples=samples))


def seconds(op_timer: OpTimer, dtype: str = "bf16") -> float:
    return float(op_timer.time(product(SIDE, SIDE, SIDE, dtype=dtype), Layout.of(1)).seconds[0])


def test_a_product_takes_what_it_took_on_settled_clocks() -> None:
    alone = (GemmCase(m=SIDE, k=SIDE, n=SIDE), (ALONE_S,))
    held = (SustainedCase(seconds=30, m=SIDE, k=SIDE, n=SIDE), (1.45e-3, 1.6e-3))
    warm = replace(cluster(), gpu=replace(cluster().gpu, training_rate_ratio=0.9))
    by_sheet, measured = (
        replace(OpTimer.on(warm, cost_model), gpu=None) for cost_model in (book_of(alone), book_of(alone, held))
    )
    assert seconds(by_sheet) == pytest.approx(ALONE_S / 0.9)
    assert seconds(measured) == pytest.approx(1.6e-3)


def test_a_format_that_was_not_measured_keeps_the_sheets_share() -> None:
    cost_model = book_of(
        (GemmCase(m=SIDE, k=SIDE, n=SIDE), (ALONE_S,)), (GemmCase(m=SIDE, k=SIDE, n=SIDE, dtype_in="fp8"), (1e-3,))
    )
    op_timer = OpTimer(
        cost_model=cost_model, domain_ranks=8, training_rate_ratio=0.9, sustained=SustainedRates(ratios={"bf16": 0.5})
    )
    assert seconds(op_timer) == pytest.approx(ALONE_S / 0.5)
    assert seconds(op_timer, "fp8") == pytest.approx(1e-3 / 0.9)


def test_strided_passes_take_longer_at_the_clock_of_a_step_in_both_directions() -> None:
    """What longer_under_load_s says is added to a kernel's own time, by its direction and repeats."""
    h100 = read_cluster("h100-sxm", root=ROOT)
    gpu = replace(h100.gpu, training_clock_ratio=0.8)
    cold_gpu = replace(h100.gpu, training_clock_ratio=1.0)
    op_timer, cold = (OpTimer.on(replace(h100, gpu=one), FlatCostModel()) for one in (gpu, cold_gpu))
    for phase, direction in ((Phase.FORWARD, "forward"), (Phase.INPUT_GRAD, "backward")):
        op = memory_bound("strided_copy", 1 << 20, 512, role=Role.COPY, phase=phase, repeat=3.0)
        told, plain = (float(one.time(op, Layout.of(1)).seconds[0]) for one in (op_timer, cold))
        longer = floats([3.0 * (1 << 20) * 512]) * longer_under_load_s(gpu, "strided_copy", direction, "bf16")
        assert told - plain == pytest.approx(float(np.max(longer)))
        assert told > plain


H100 = read_cluster("h100-sxm", root=ROOT)


@pytest.mark.parametrize(("preset", "words", "slow"), [("nanotron", 25129, True), ("megatron", 25216, False)])
def test_a_vocabulary_padded_to_tp_alone_makes_the_head_slow(preset: str, words: int, slow: bool) -> None:
    layout = Layout.of(2, tp=2)
    ops = written(replace(small_model(), vocab=50257), job(preset=framework_preset(preset)), "fsp", layout).head
    products = [op for op in (*ops.forward, *ops.backward) if isinstance(op, BatchedGemm) and op.role is Role.LOGITS]
    assert [words in (int(op.m[0]), int(op.k[0]), int(op.n[0])) for op in products] == [True] * 3
    op_timer = OpTimer.on(H100, FlatCostModel())
    anywhere = replace(H100.gpu, architecture=replace(H100.gpu.architecture, unaligned=None))
    for op in products:
        told = op_timer.time(op, layout).seconds[0] / replace(op_timer, gpu=anywhere).time(op, layout).seconds[0]
        # 100 TFLOP/s of the flat cost model against 358 FLOPs a clock and multiprocessor
        slower = FLOPS / (358 * H100.gpu.num_sms * H100.gpu.boost_clock_hz)
        assert told == pytest.approx(slower if slow else 1.0, rel=1e-3)


def test_a_step_errs_by_the_carried_rate_as_far_as_its_slowest_stage_rests_on_it() -> None:
    """The stage with the head sets the pace of four: 25 % of what its three slow products take, and of what
    waits for them.
    """
    plan = Plan(strategy="mtp", preset="nanotron", recompute=Recompute.NONE, pp=4, num_micro=64)
    asked = question(
        model=replace(small_model(), vocab=50257),
        world_size=plan.world_size,
        sequences=plan.num_micro,
        preset=framework_preset("nanotron"),
    )

    def answered(gpu: GpuSpec) -> Answer:
        op_timer = replace(asked.op_timer, gpu=replace(gpu, training_rate_ratio=1.0))
        return price_plan(replace(asked, op_timer=op_timer), PlanTable.of(plan))[0]

    slow = answered(H100.gpu)
    assert slow.slowest.head
    head_flops = 3 * 2 * 1024 * 512 * 50257
    rate = 358 * H100.gpu.num_sms * H100.gpu.boost_clock_hz
    carried = UNALIGNED_STD * head_flops / rate * plan.num_micro * slowest_of(plan.world_size)
    waiting = slow.parts_s["bubble"] + slow.parts_s["pp_comm"]
    assert slow.errors_s["carried"] == pytest.approx(carried * slow.step_s / (slow.step_s - waiting), rel=1e-3)
    anywhere = answered(replace(H100.gpu, architecture=replace(H100.gpu.architecture, unaligned=None)))
    assert "carried" not in anywhere.errors_s


@pytest.mark.parametrize("ranks", [1, 2, 8, 64, 1024])
def test_it_is_the_mean_of_the_largest_of_that_many_draws(ranks: int) -> None:
    draws = np.random.default_rng(0).normal(1.0, SPREAD, (4000, ranks)).max(axis=1)
    # The mean of 4,000 maxima is known to SPREAD / sqrt(4000), and Blom's formula to a few per cent.
    assert slowest_of(ranks) - 1.0 == pytest.approx(draws.mean() - 1.0 if ranks > 1 else 0.0, rel=0.05)


def test_a_step_on_more_gpus_takes_that_much_longer_in_its_products_alone() -> None:
    """Copies of one model side by side compute the same: only the slowest GPU differs."""
    plan = Plan(strategy="mtp", preset="internevo", dp=1, num_micro=4)

    def priced(dp: int) -> Answer:
        asked = question(world_size=dp, sequences=4 * dp)
        op_timer = replace(asked.op_timer, gpu=asked.cluster.gpu)
        return price_plan(replace(asked, op_timer=op_timer), PlanTable.of(replace(plan, dp=dp)))[0]

    one, many = priced(1), priced(16)
    slower = slowest_of(16)
    for part, factor in (("gemm", slower), ("attention", slower), ("memory_bound", 1.0)):
        assert many.parts_s[part] == pytest.approx(one.parts_s[part] * factor, rel=1e-12)


def test_the_whiskers_of_a_normal_distribution_lie_as_far_apart_as_was_published() -> None:
    """Quartiles, and 1.5 times their distance beyond them."""
    quartile = NormalDist(0.0, SPREAD).inv_cdf(0.75)
    assert 2 * (quartile + 1.5 * 2 * quartile) == pytest.approx(VARIATION, rel=1e-4)


def test_equal_operations_are_timed_once_and_take_what_they_do_alone() -> None:
    asked = request("671B_deepseek_v3.toml", 64, cluster="h100-sxm", global_batch_tokens=1 << 20)
    problem = load_problem(asked).problem
    layout = Layout.of(64, tp=[1, 2, 4], ep=4, micro_batch=[1, 2, 1])
    ops = written(problem.model, problem.job, "fsp", layout, "full")
    every = [op for piece in (*ops.blocks, ops.embedding, ops.head) for op in (*piece.forward, *piece.backward)]
    every += [replace(op, repeat=3 * op.repeat) for op in every]
    timer = replace(problem.op_timer, known={})
    for op in every:
        once, alone = timer.time(op, layout), problem.op_timer.time(op, layout)
        for name in (one.name for one in fields(TimedOp)):
            assert np.array_equal(getattr(once, name), getattr(alone, name)), (op.name, name)
    assert timer.known is not None
    assert len(timer.known) < len(every) / 2
