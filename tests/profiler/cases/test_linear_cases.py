"""Experts' products as searches ask for them: many rows and few, even and uneven, in 16 bits and scaled fp8."""

from functools import cache

import pytest

from profdb.cases import GroupedGemmCase
from profiler.cases.linear_cases import gpu_grouped_cases

DEEPSEEK = (7168, 2048)
"""Hidden size and an expert's of DeepSeek-V3 (arXiv 2412.19437, sec. 4.2)."""


@cache
def held() -> frozenset[GroupedGemmCase]:
    return frozenset(plan.case for plan in gpu_grouped_cases() if isinstance(plan.case, GroupedGemmCase))


@pytest.mark.parametrize(
    ("dtype", "recipe", "spread", "rows_of_one"),
    [
        ("bf16", "", "even", {128, 256, 2048, 4096}),
        ("bf16", "", "uneven", {512, 1024, 2048, 4096}),
        ("fp8", "row", "even", {128, 256, 2048, 4096}),
        ("fp8", "block", "even", {128, 256}),
    ],
)
def test_experts_of_deepseek_v3_are_measured_in_every_format_and_spread(
    dtype: str, recipe: str, spread: str, rows_of_one: set[int]
) -> None:
    found = {
        case.m // case.groups
        for case in held()
        if (case.dtype_in, case.scale_recipe, case.spread) == (dtype, recipe, spread)
        and sorted((case.k, case.n)) == sorted(DEEPSEEK)
    }
    assert rows_of_one <= found
    assert {case.groups for case in held()} == {1, 2, 4, 8, 16, 32}  # experts of a rank
