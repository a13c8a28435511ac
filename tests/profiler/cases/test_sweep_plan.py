"""Which cases a sweep holds, and in which order."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profdb.cases import FAMILY_OF, AttentionCase, Case, CollectiveCase, GemmCase, HostCase
from profdb.fits.families import FITTERS
from profiler.cases.attention_cases import gpu_attention_cases
from profiler.cases.linear_cases import linear_gemms
from profiler.cases.model_cases import model_cases
from profiler.cases.model_widths import MODELS, linear_widths
from profiler.cases.sweep_plan import (
    BENCHMARKS,
    SweepPlan,
    benchmark_of,
    check_names,
    cpu_compute,
    gpu_compute,
    largest_array_bytes,
    plan_cases,
)
from profiler.cases.tiers import PlannedCase, in_order
from spec.collectives import TRAINING_COLLECTIVES, Collective
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
MODEL_FILES = sorted(path for path in (ROOT / "configs").iterdir() if path.suffix in (".py", ".toml"))
CPU = SweepPlan(device_kind="cpu", domain_ranks=2, domains=2)


def curve_key(case: Case) -> tuple[str, ...]:
    """The words that choose a curve."""
    family = FAMILY_OF[type(case)]
    names = FITTERS[family].labels + FITTERS[family].flags
    return (family.value, *(str(getattr(case, name)) for name in names))


@cache
def gpu_curve_keys() -> set[tuple[str, ...]]:
    return curve_keys(plan.case for plan in gpu_compute())


def curve_keys(cases: Iterable[Case]) -> set[tuple[str, ...]]:
    return {curve_key(case) for case in cases if FAMILY_OF[type(case)] in FITTERS}


@pytest.mark.parametrize("config", MODEL_FILES, ids=lambda path: path.stem)
def test_the_gpu_sweep_has_a_curve_for_all_that_shipped_models_run(config: Path) -> None:
    needed = curve_keys(plan.case for plan in model_cases(config, (1, 2, 4, 8)))
    assert needed <= gpu_curve_keys()


def test_the_cpu_sweep_has_a_curve_for_all_that_the_tiny_model_runs() -> None:
    needed = curve_keys(plan.case for plan in model_cases(ROOT / "configs" / "tiny_internlm2.py", (1, 2)))
    assert needed <= curve_keys(plan.case for plan in cpu_compute("bf16"))


def test_the_gpu_sweep_measures_each_name_of_a_kernel() -> None:
    attention = {case for plan in gpu_attention_cases() if isinstance(case := plan.case, AttentionCase)}
    assert {case.kernel for case in attention} == {"flash", "flash2", "cudnn", "core"}
    assert {case.mask for case in attention} == {"causal", "full", "varlen"}
    # micro-batches up to 32, and the heads of MLA
    assert {1, 2, 4, 8, 16, 32} <= {case.batch for case in attention if case.kernel == "flash"}
    assert (192, 128) in {(case.qk_dim, case.v_dim) for case in attention}


def test_fp8_products_have_the_sizes_of_forward_and_both_gradients() -> None:
    held = {plan.case for plan in gpu_compute()}
    # The down projection of Llama-3-8B (arXiv 2407.21783, table 3: hidden 4096, ffn 14336), 4096 tokens.
    for case in linear_gemms(4096, 14336, 4096, "bf16"):
        assert GemmCase(m=case.m, k=case.k, n=case.n, layout="NT", dtype_in="fp8", scale_recipe="tensor") in held


def test_a_models_own_shapes_are_those_of_its_config() -> None:
    # Llama-2-7B (arXiv 2307.09288): hidden 4096, ffn 11008, 32 heads; seq_len 4096 in the shipped file
    cases = {plan.case for plan in model_cases(ROOT / "configs" / "7B_llama2.py", (2,))}
    for case in linear_gemms(4096, 4096, 3 * 4096 // 2, "bf16"):
        assert case in cases
    for case in linear_gemms(4096, 11008 // 2, 4096, "bf16"):
        assert case in cases


def test_linear_widths_of_llama_2_70b_on_8_ranks() -> None:
    llama = next(model for model in MODELS if model.name == "Llama-2-70B")
    # 64 heads + 2 * 8 kv heads of 128, ffn 28672, all cut by 8
    widths = linear_widths(llama, 8)
    assert widths["qkv"] == (8192, (64 + 16) * 128 // 8)
    assert widths["attention_out"] == (1024, 8192)
    assert widths["mlp_in"] == (8192, 2 * 28672 // 8)
    assert widths["mlp_out"] == (28672 // 8, 8192)


def test_a_linear_is_three_products_of_equal_work() -> None:
    forward, input_grad, weight_grad = linear_gemms(100, 20, 30, "bf16")
    assert (forward.m, forward.k, forward.n, forward.layout) == (100, 20, 30, "NT")
    assert (input_grad.m, input_grad.k, input_grad.n, input_grad.layout) == (100, 30, 20, "NN")
    assert (weight_grad.m, weight_grad.k, weight_grad.n, weight_grad.layout) == (30, 100, 20, "TN")


cases = st.builds(
    PlannedCase,
    tier=st.integers(0, 3),
    case=st.one_of(
        st.builds(GemmCase, m=st.integers(1, 9), k=st.just(1), n=st.just(1)),
        st.builds(HostCase, kind=st.sampled_from(["a", "b"])),
    ),
)


@given(st.lists(cases, max_size=40))
def test_each_case_comes_once_and_tiers_in_order(plans: list[PlannedCase]) -> None:
    lowest: dict[Case, int] = {}
    for plan in plans:
        lowest[plan.case] = min(plan.tier, lowest.get(plan.case, 9))
    ordered = [item.case for item in in_order(plans)]
    assert len(ordered) == len(set(ordered)) == len(lowest)
    tiers = [lowest[case] for case in ordered]
    assert tiers == sorted(tiers)


def test_every_rank_has_the_same_order() -> None:
    assert plan_cases(CPU) == plan_cases(CPU)


def test_collectives_cover_every_operation_split_and_size() -> None:
    plan = SweepPlan(device_kind="cuda", domain_ranks=8, domains=2)
    found = [case for case in plan_cases(plan) if isinstance(case, CollectiveCase)]
    for kind in TRAINING_COLLECTIVES:
        mine = [case for case in found if case.collective is kind]
        splits = {(case.intra, case.inter) for case in mine}
        if kind is Collective.P2P:
            assert splits == {(2, 1), (1, 2)}
        else:
            assert splits == {(i, j) for i in (1, 2, 4, 8) for j in (1, 2)} - {(1, 1)}
        sizes = {case.size_bytes for case in mine}
        assert {1 << 10, 512 << 10, 1 << 20, 4 << 20, 32 << 20, 64 << 20, 128 << 20, 256 << 20} <= sizes
        assert max(sizes) == 1 << 30
    assert all(case.siblings == 8 // case.intra for case in found if case.inter == 1)


def test_sizes_are_whole_elements_for_every_rank() -> None:
    plan = SweepPlan(device_kind="cuda", domain_ranks=6, domains=3)
    for case in plan_cases(plan):
        if isinstance(case, CollectiveCase):
            parts = 1 if case.collective is Collective.P2P else case.intra * case.inter
            assert case.size_bytes % (2 * parts) == 0


def test_only_and_max_size_choose() -> None:
    only = SweepPlan(device_kind="cpu", domain_ranks=2, only=check_names(["linear", "comm"]))
    wanted = {"linear", *(kind.value for kind in TRAINING_COLLECTIVES)}
    assert {benchmark_of(case) for case in plan_cases(only)} == wanted <= set(BENCHMARKS)
    small = SweepPlan(device_kind="cuda", domain_ranks=2, max_bytes=1 << 16)
    assert all(largest_array_bytes(case) <= 1 << 16 for case in plan_cases(small))


@pytest.mark.parametrize("name", ["", "gemm", "all_reduces", "Linear"])
def test_unknown_benchmarks_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="linear, attention"):
        check_names([name])


def test_across_domains_a_collective_is_measured_alone_and_crowded() -> None:
    """By domains, siblings and size: groups of 1, 2 and 4 ranks of a domain of 8, alone and as many as it holds; of
    messages 1, 2, 4 and 8 pairs."""
    held = plan_cases(SweepPlan(device_kind="cuda", domain_ranks=8, domains=2))
    across = [case for case in held if isinstance(case, CollectiveCase) and case.inter == 2]
    for kind in TRAINING_COLLECTIVES:
        shapes = {(case.intra, case.siblings) for case in across if case.collective is kind}
        if kind is Collective.P2P:
            assert shapes == {(1, pairs) for pairs in (1, 2, 4, 8)}
        else:
            assert shapes == {(1, 1), (1, 8), (2, 1), (2, 4), (4, 1), (4, 2), (8, 1)}
