"""What the host does for an operation: published ratios, experts one by one, graphs that replay."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ops.cpu_overhead import (
    CALLS,
    FP8_CALLS_RATIO,
    HOOKS,
    LOW_PRECISION_GRADIENT_CALLS,
    NCCL_CALLS,
    REPLAY_CALLS,
    SLICE_CALLS,
    TRITON_2_CALLS,
    ModuleCalls,
    cpu_overhead,
    gather_hook_calls,
    gathers_before_forwards,
    is_replayed,
    sharding_hook_calls,
)
from ops.layout import Layout
from ops.op import Axis, BatchedGemm, CpuOverhead, GroupedGemm, MemoryBound, Op, Phase
from ops.roles import Module, OpKey, Role
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.ops.operations import comm, experts_product, memory_bound, product
from tests.solver.questions import ROOT, small_model

UP = OpKey(Module.MLP, Role.UP)


def gemm(key: OpKey = UP, phase: Phase = Phase.FORWARD, recipe: str = "") -> BatchedGemm:
    return product(module=key.module, role=key.role, phase=phase, scale_recipe=recipe)


def kernel(key: OpKey, word: str, phase: Phase = Phase.FORWARD) -> MemoryBound:
    return memory_bound(word, module=key.module, role=key.role, phase=phase)


def grouped(experts: int, phase: Phase = Phase.FORWARD, recipe: str = "") -> GroupedGemm:
    return experts_product(experts, 1, 1, 1, phase=phase, scale_recipe=recipe)


def test_transformer_engines_linear_takes_2_7_plain_ones_and_fp8_nearly_twice_that() -> None:
    modules, plain = job(), job(preset=framework_preset("fsdp"))
    ratio = cpu_overhead(gemm(), modules).calls[0] / cpu_overhead(gemm(), plain).calls[0]
    assert ratio == pytest.approx(99.66 / 37.08, rel=0.15)
    fp8 = cpu_overhead(gemm(recipe="tensor"), modules)
    assert fp8.calls[0] == pytest.approx(FP8_CALLS_RATIO * cpu_overhead(gemm(), modules).calls[0])
    assert fp8.launches[0] == 0


def test_a_product_of_a_recurrence_is_one_kernel_and_no_linear() -> None:
    """A Triton kernel that its mixer's autograd function launches."""
    core = OpKey(Module.MAMBA2, Role.CORE)
    for phase in (Phase.FORWARD, Phase.RECOMPUTE, Phase.INPUT_GRAD):
        assert cpu_overhead(gemm(core, phase), job()).calls[0] == 1.0
        assert cpu_overhead(gemm(core, phase, "tensor"), job()).launches[0] == 0.0


def test_both_products_of_a_backward_are_one_call_and_one_more_launch() -> None:
    products = [cpu_overhead(gemm(phase=phase), job()) for phase in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)]
    assert sum(work.calls[0] for work in products) == CALLS["modules"].linear
    assert sum(work.launches[0] for work in products) == 1


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD])
def test_every_expert_is_a_product_of_its_own(phase: Phase) -> None:
    few, many = cpu_overhead(grouped(2, phase), job()), cpu_overhead(grouped(16, phase), job())
    assert many.launches[0] - few.launches[0] == 14
    assert many.calls[0] > few.calls[0]
    assert cpu_overhead(grouped(16, phase, "block"), job()).calls[0] >= many.calls[0]


def test_gradients_of_weights_held_in_fp8_take_python_more() -> None:
    """7.5 us of a call's 8.7 each, where Transformer Engine's tensors are Python's, not where a copy is narrow."""
    precision = replace(job().precision, low_precision_parameters=True)
    narrow = replace(job(), precision=precision)
    for one, weights in ((gemm(phase=Phase.WEIGHT_GRAD, recipe="mx"), 1), (grouped(16, Phase.WEIGHT_GRAD, "mx"), 16)):
        more = cpu_overhead(one, narrow).calls[0] - cpu_overhead(one, job()).calls[0]
        assert more == pytest.approx(weights * LOW_PRECISION_GRADIENT_CALLS)
        assert more * 8.7 == pytest.approx(weights * 7.5)
        wide = replace(one, scale_recipe="")
        assert cpu_overhead(wide, narrow) == cpu_overhead(wide, job())
        compiled = job(preset=framework_preset("fsdp"))
        assert cpu_overhead(one, replace(compiled, precision=precision)) == cpu_overhead(one, compiled)
    forward = grouped(16, recipe="mx")
    assert cpu_overhead(forward, narrow) == cpu_overhead(forward, job())


@pytest.mark.parametrize(
    ("recipe", "held", "microseconds"),
    [
        ("", False, (96, 235)),
        ("mx", False, (187, 257)),
        ("mx", True, (187, 377)),
        ("tensor", False, (257, 257)),
        ("tensor", True, (257, 377)),
    ],
)
def test_a_grouped_linear_of_16_experts_takes_what_the_page_of_formulas_says(
    recipe: str, held: bool, microseconds: tuple[int, int]
) -> None:
    """docs/formulas.md, the host: told, at 8.7 us a call, forward and backward, launches apart."""
    asked = replace(job(), precision=replace(job().precision, low_precision_parameters=held))
    forward, back, weights = (
        8.7 * float(cpu_overhead(grouped(16, phase, recipe), asked).calls[0])
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
    )
    assert (forward, back + weights) == pytest.approx(microseconds, abs=1.5)


def test_a_cast_of_experts_is_launched_from_c_plus_plus_and_a_replay_is_three_calls() -> None:
    """Half a launch, without dispatch and autograd; graphs are replayed by a module's call, of Python alone."""
    cast = cpu_overhead(kernel(OpKey(Module.MOE, Role.CAST), "cast"), job())
    assert (cast.calls[0], cast.launches[0]) == (0.0, 0.5)
    router = gemm(OpKey(Module.MOE, Role.ROUTER))
    assert cpu_overhead(router, graphed("moe_router")).calls[0] == 3.0


def test_rows_with_scales_of_blocks_are_allocated_for_all_experts_at_once() -> None:
    """10.8 and 4.4 us an expert of a call's 8.7, the first told as a call."""
    wide, tensor, block, mx = (cpu_overhead(grouped(16, recipe=name), job()) for name in ("", "tensor", "block", "mx"))
    linear = CALLS["modules"].linear * (FP8_CALLS_RATIO - 1.0)
    assert tensor.calls[0] - wide.calls[0] == pytest.approx(linear + 16)
    assert block.calls[0] - wide.calls[0] == pytest.approx(linear + 16 * 4.4 / 8.7)
    assert mx == block


def test_repeats_and_rows_are_each_counted() -> None:
    broadcast = comm(Role.PARAMETER_GATHER, Collective.BROADCAST, Axis.DP, phase=Phase.STEP, repeat=np.array([1, 8]))
    calls = cpu_overhead(broadcast, job()).calls
    assert calls[1] == 8 * calls[0]


def graphed(*scopes: str) -> JobSpec:
    return replace(job(), cuda_graphs=frozenset(scopes))


def test_graphs_replay_what_they_hold_and_nothing_else() -> None:
    router, up = gemm(OpKey(Module.MOE, Role.ROUTER)), grouped(16)
    eager = cpu_overhead(router, job())
    assert eager.calls[0] * 13 + eager.launches[0] * 5 > 100
    replay = cpu_overhead(router, graphed("moe_router"))
    assert (replay.calls[0], replay.launches[0]) == (REPLAY_CALLS, 0)
    assert cpu_overhead(up, graphed("moe_router", "attn")).launches[0] == 16
    whole = [cpu_overhead(one, graphed("full_iteration")) for one in (router, up)]
    assert all(work.calls[0] == 0 and work.launches[0] == 0 for work in whole)


def test_a_fused_router_launches_a_kernel_where_elementwise_ones_were() -> None:
    """Megatron-Core 0.15.3, moe_utils.py, counted by PyTorch's dispatcher: the best experts 8 kernels and 4
    backward, their scores 6 and the balancing loss 4, 3 backward together; fused three and three. Python is
    as long."""
    fused = replace(job(), moe_router_fusion=True)
    for phase, fewer in ((Phase.FORWARD, 8 + 6 + 4 - 3), (Phase.INPUT_GRAD, 4 + 3 - 3)):
        router = replace(gemm(OpKey(Module.MOE, Role.ROUTER)), phase=phase)
        plain, less = cpu_overhead(router, job()), cpu_overhead(router, fused)
        assert plain.launches[0] - less.launches[0] == fewer
        assert plain.calls[0] == less.calls[0]
    up = gemm(OpKey(Module.MLP, Role.UP))
    assert cpu_overhead(up, fused) == cpu_overhead(up, job())


def test_compiled_code_launches_and_calls_nothing() -> None:
    compiled = job(preset=framework_preset("fsdp").changed({"host.code": "compiled"}))
    norm = kernel(OpKey(Module.MLP, Role.NORM), "rmsnorm")
    for one in (gemm(), norm, grouped(4)):
        work = cpu_overhead(one, compiled)
        assert work.calls[0] == 0
        assert work.launches[0] >= 1


def test_reading_token_counts_takes_calls_of_its_own() -> None:
    permute = kernel(OpKey(Module.MOE, Role.PERMUTE), "permute")
    padded, counted = cpu_overhead(permute, job()), cpu_overhead(replace(permute, synchronises=True), job())
    assert counted.calls[0] - padded.calls[0] == CALLS["modules"].token_counts


def test_waiting_before_an_activation_takes_a_copys_launch() -> None:
    activation = kernel(OpKey(Module.MOE, Role.ACTIVATION), "swiglu")
    plain, waited = (cpu_overhead(activation, job()), cpu_overhead(replace(activation, synchronises=True), job()))
    assert waited.calls[0] == plain.calls[0]
    assert waited.launches[0] - plain.launches[0] == 1.0


def test_host_time_that_is_an_operation_itself_is_not_counted_again() -> None:
    slices = CpuOverhead(module=Module.LAYER, role=Role.SLICES, phase=Phase.FORWARD, launches=np.asarray([30.0]))
    work = cpu_overhead(slices, job())
    assert (work.calls[0], work.launches[0]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("word", "launches"), [("accumulate_fp32", 0.0), ("accumulate_16bit", 0.0), ("accumulate", 1.0)]
)
def test_a_product_accumulates_by_itself_or_a_kernel_does(word: str, launches: float) -> None:
    work = cpu_overhead(kernel(OpKey(Module.MLP, Role.ACCUMULATE), word, Phase.WEIGHT_GRAD), job())
    assert (float(np.sum(work.calls)), float(np.sum(work.launches))) == (0.0, launches)


# Calls of modules are those that docs/formulas.md shows, and nanotron's add up to the layer that was run.


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formulas.md").read_text(encoding="utf-8")
ROWS = {
    "linear": "linear",
    "norm": Role.NORM,
    "rotary, with the split of q, k and v": Role.ROTARY,
    "attention core": "attention",
    "gated activation": Role.ACTIVATION,
    "residual add, with the layer around it": Role.RESIDUAL,
    "router": Role.ROUTER,
    "permute": Role.PERMUTE,
    "exchange (two all-to-all, of tokens and their weights)": "exchange",
    "sort by expert": Role.SORT,
    "unpermute": Role.UNPERMUTE,
    "a collective": "collective",
}


def calls_of(code: ModuleCalls, row: str | Role) -> float:
    return code.by_role[row] if isinstance(row, Role) else float(getattr(code, row))


def shown() -> dict[str, str]:
    """The first two cells of the table of modules."""
    table = PAGE.split("| module, forward or backward | calls |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", table, re.M))


@pytest.mark.parametrize("row", ROWS)
def test_megatrons_modules_are_those_of_the_page(row: str) -> None:
    said = [float(number) for number in re.findall(r"(?<!\d)\d+(?:\.\d+)?", shown()[row].split(" (Trans")[0])]
    code = CALLS["modules"]
    beside = {"permute": code.token_counts, "exchange (two all-to-all, of tokens and their weights)": NCCL_CALLS}
    assert said == [calls_of(code, ROWS[row]), *([beside[row]] if row in beside else [])]


def test_so_are_plain_pytorchs() -> None:
    said = PAGE.split("take, in the order of that table, ")[1].split(" calls.")[0]
    code = CALLS["torch"]
    expected = [calls_of(code, row) for row in ROWS.values()]
    expected.insert(8, code.token_counts)
    assert [float(number) for number in re.findall(r"\d+(?:\.\d+)?", said)] == expected
    assert code.by_role[Role.UNSORT] == code.by_role[Role.SORT]


def test_nanotrons_modules_add_up_to_the_124_calls_of_its_layer() -> None:
    """On one rank, forward and backward alike: four linears, two norms and residual adds, a rotary embedding,
    an attention and an activation; its Triton kernels, which no CPU ran, are not in it."""
    code = CALLS["nanotron"]
    of = code.by_role
    norms, rotary = of[Role.NORM] - TRITON_2_CALLS, of[Role.ROTARY] - 2 * TRITON_2_CALLS
    a_pass = 4 * code.linear + 2 * norms + rotary + code.attention + of[Role.ACTIVATION] + 2 * of[Role.RESIDUAL]
    assert 2 * a_pass == pytest.approx(124, rel=0.015)
    assert code.collective == 4 + NCCL_CALLS
    launches_us = 13.48 * TRITON_2_CALLS
    assert launches_us == pytest.approx(62)


# What a graph holds is issued by one replay a pass.


DENSE, EXPERTS = 0, 1
NEMOTRON, NEXT = "30B_nemotron3_nano.json", "80B_qwen3_next.json"


def layer(which: int) -> tuple[Op, ...]:
    """The forward of a layer of DeepSeek-V3: a dense one, or one with routed and shared experts."""
    model = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    return written(model, job(seq_len=256), "fsp", Layout.of(8, tp=2, ep=4), "none").blocks[which].forward


@pytest.mark.parametrize(
    ("which", "scope"),
    [(DENSE, "attn"), (DENSE, "mlp"), (EXPERTS, "attn"), (EXPERTS, "moe_router"), (EXPERTS, "moe_preprocess")],
)
def test_a_graph_is_replayed_once_and_issues_nothing_else(which: int, scope: str) -> None:
    asked = replace(job(), cuda_graphs=frozenset({scope}))
    work = [cpu_overhead(op, asked) for op in layer(which) if is_replayed(op, {scope})]
    assert sum(float(one.calls[0]) for one in work) == REPLAY_CALLS
    assert sum(float(one.launches[0]) for one in work) == 0.0


@pytest.mark.parametrize(("name", "kind", "scope"), [(NEMOTRON, 0, "mamba"), (NEXT, 0, "attn"), (NEXT, 1, "attn")])
def test_mixers_are_replayed_whole(name: str, kind: int, scope: str) -> None:
    """Megatron-Core cuda_graphs.py: Mamba layers under a scope of their own, other mixers as attention."""
    asked = job(seq_len=256, world_size=1, cuda_graphs=frozenset({scope}))
    piece = written(read_config(ROOT / "configs" / name).model, asked, "fsp", Layout.of(1)).blocks[kind]
    work = [cpu_overhead(op, asked) for op in piece.forward if is_replayed(op, {scope})]
    assert sum(float(one.calls[0]) for one in work) == REPLAY_CALLS
    assert sum(float(one.launches[0]) for one in work) == 0.0
    assert len(work) > 8


def test_a_scope_holds_its_modules_with_all_that_serves_them() -> None:
    held = [op for op in layer(EXPERTS) if is_replayed(op, {"moe_router"})]
    outside = [op for op in layer(EXPERTS) if not is_replayed(op, {"moe_router"})]
    assert {op.key for op in held if op.module is not Module.SHARED_EXPERTS} == {
        OpKey(Module.MLP, Role.NORM),
        OpKey(Module.MOE, Role.ROUTER),
    }
    assert any(op.serves is Role.UP for op in held)
    assert not any(op.module is Module.SHARED_EXPERTS for op in outside)


# Hooks before every module's forward: what holds parameters that are gathered, what has none, graphs.


SHARDED, WHOLE = Layout.of(8, zero_stage=1), Layout.of(8)
LINEAR, GROUPED = gemm(recipe="mx"), grouped(16, recipe="mx")
RESIDUAL = kernel(OpKey(Module.MLP, Role.RESIDUAL), "residual")


def calls(op: Op, asked: JobSpec, layout: Layout = SHARDED) -> float:
    if not gathers_before_forwards(asked):
        return 0.0
    return float(gather_hook_calls(op, asked, layout)[0])


def test_a_linear_is_a_module_with_a_parameter_and_experts_have_one_each() -> None:
    """On the CPU where a call takes 8.7 us: 2.3 us a module and 0.7 a parameter."""
    assert calls(LINEAR, job()) * 8.7 == pytest.approx(2.3 + 0.7)
    assert calls(GROUPED, job()) * 8.7 == pytest.approx(2.3 + 16 * 0.7)


def test_parameters_held_in_fp8_take_longer_to_look_up() -> None:
    narrow = replace(job(), precision=replace(job().precision, low_precision_parameters=True))
    assert calls(GROUPED, narrow) * 8.7 == pytest.approx(2.3 + 16 * 2.4)
    assert calls(replace(GROUPED, scale_recipe=""), narrow) == calls(GROUPED, job())


def test_modules_without_parameters_are_hooked_too() -> None:
    """The layer, the block in it and the two identities of a cross attention, over two residual adds."""
    assert 2 * calls(RESIDUAL, job()) * 8.7 == pytest.approx(5 * 2.3)


def test_backwards_and_graphs_have_none_and_what_runs_again_has() -> None:
    assert calls(replace(LINEAR, phase=Phase.RECOMPUTE), job()) == calls(LINEAR, job())
    for phase in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD):
        assert calls(replace(LINEAR, phase=phase), job()) == 0.0
    assert calls(GROUPED, replace(job(), cuda_graphs=frozenset({"full_iteration"}))) == 0.0


def test_whole_optimizers_and_other_code_have_none() -> None:
    """--overlap-param-gather is of the distributed optimizer."""
    late = framework_preset("megatron").changed({"data_parallel.overlap_param_gather": False})
    assert (
        calls(LINEAR, job(), WHOLE)
        == calls(LINEAR, job(preset=late))
        == calls(LINEAR, job(preset=framework_preset("fsdp")))
        == 0.0
    )


# ZeRO's hooks around modules and gradients: the runs that their calls were reduced from, given back.


FORWARD, AGAIN = (Phase.FORWARD,), (Phase.RECOMPUTE,)
BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


def hook_calls(
    phases: tuple[Phase, ...], *, stage: int, ranks: int = 1, preset: str = "xtuner", mode: str = "none"
) -> float:
    """Of a layer of a Llama: 13 modules of which nine have parameters where matrices lie apart."""
    asked = job(world_size=ranks, seq_len=1024, preset=framework_preset(preset))
    layout = Layout.of(ranks, zero_size=ranks, zero_stage=stage)
    layer = written(small_model(), asked, "mtp", layout, mode).blocks[0]
    ops: list[Op] = [op for op in (*layer.forward, *layer.backward) if op.phase in phases]
    hooks = [term for term in HOOKS if term.applies(asked) and term.calls is sharding_hook_calls]
    return float(np.sum([term.calls(op, asked, layout)[0] * op.repeat for op in ops for term in hooks]))


def test_a_layer_takes_what_it_took_on_a_cpu() -> None:
    """DeepSpeed 0.16.4 over one rank: 69 hook_calls forward, 104 backward, at stage 2 25.4 in the backward."""
    assert hook_calls(FORWARD, stage=3) == pytest.approx(69.0)
    assert hook_calls(BACKWARD, stage=3) == pytest.approx(104.0 + 9 * SLICE_CALLS)
    assert hook_calls(BACKWARD, stage=2) == pytest.approx(25.4)
    assert hook_calls(FORWARD, stage=2) == 0.0


def test_every_rank_has_a_slice_of_every_gradient() -> None:
    """0.08 hook_calls a gradient and rank, nine gradients; at stage 2 buckets travel whole."""
    more = hook_calls(BACKWARD, stage=3, ranks=8) - hook_calls(BACKWARD, stage=3)
    assert more == pytest.approx(9 * 0.08 * 7)
    assert hook_calls(BACKWARD, stage=2, ranks=8) == hook_calls(BACKWARD, stage=2)


def test_what_runs_again_is_hooked_again() -> None:
    again = hook_calls(AGAIN, stage=3, mode="full")
    assert again == pytest.approx(hook_calls(FORWARD, stage=3))


@pytest.mark.parametrize(("preset", "stage"), [("xtuner", 1), ("deepspeed-2021", 3), ("fsdp", 3)])
def test_below_stage_2_and_elsewhere_nothing_is_hooked(preset: str, stage: int) -> None:
    assert hook_calls((*FORWARD, *BACKWARD), stage=stage, preset=preset) == 0.0


def test_a_module_without_parameters_is_hooked_too() -> None:
    """Ten that do nothing take 23.7 hook_calls forward and 7.3 backward."""
    asked = job(world_size=1, seq_len=1024, preset=framework_preset("xtuner"))
    layout = Layout.of(1, zero_stage=3)
    layer = written(small_model(), asked, "mtp", layout, "none").blocks[0]
    sums = [op for op in (*layer.forward, *layer.backward) if op.name == "mlp.residual"]
    found = {op.phase: 10 * float(sharding_hook_calls(op, asked, layout)[0]) for op in sums}
    assert found == {Phase.FORWARD: pytest.approx(23.7, rel=0.05), Phase.INPUT_GRAD: pytest.approx(7.3, rel=0.05)}
