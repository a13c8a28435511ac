"""Whole iterations in one graph: what Megatron-Bridge's MXFP8 recipes narrow beside the linear layers."""

import pytest

from benchmarks.accuracy_rows.whole_iterations import narrowed
from tests.benchmarks.accuracy_rows.test_recipes import EXPERTS, job_of_row
from tests.benchmarks.made_up_rows import row

GRAPHED = "recipe@v0.5.0: cuda_graph=full_iteration:[] moe_a2a_overlap=True dispatcher=hybridep"


def said(**cells: str) -> tuple[str, bool]:
    """Format of attention, and whether the head multiplies narrow."""
    asked = {"framework": "Megatron-Bridge 26.06", "precision": "FP8-MX", "gpu": "GB300", "notes": GRAPHED}
    found = job_of_row(row(**EXPERTS | asked | cells)).precision
    return found.attention, found.narrow_head


@pytest.mark.parametrize(
    ("model", "gpu", "narrow"),
    [
        ("deepseek-v3", "GB300", ("fp8", True)),
        ("deepseek-v3", "B300-SXM", ("fp8", True)),
        ("deepseek-v3", "GB200", ("bf16", True)),
        ("qwen3-235b-a22b", "GB200", ("fp8", False)),
        ("Qwen3-30B-A3B", "B300-SXM", ("fp8", False)),
        ("gpt-oss-120b", "GB200", ("fp8", True)),
        ("kimi-k2", "GB300", ("bf16", False)),
    ],
)
def test_models_narrow_what_their_recipes_do(model: str, gpu: str, narrow: tuple[str, bool]) -> None:
    """v0.5.0 *_workload_base_configs.py: fp8_dot_product_attention; *_llm_pretrain.py: fp8_output_proj."""
    assert said(model_name=model, gpu=gpu) == narrow


@pytest.mark.parametrize(
    "cells",
    [
        {"framework": "Megatron-Bridge 26.04.01"},
        {"precision": "FP8-CS"},
        {"precision": "NVFP4"},
        {"notes": "recipe@v0.5.0: cuda_graph=transformer_engine:['attn', 'moe_router'] dispatcher=hybridep"},
    ],
)
def test_other_releases_formats_and_graphs_narrow_neither(cells: dict[str, str]) -> None:
    assert said(model_name="deepseek-v3") == ("fp8", True)
    assert said(model_name="deepseek-v3", **cells) == ("bf16", False)


def test_names_are_read_in_any_case() -> None:
    assert narrowed("DeepSeek-V3", "GB200") == narrowed("deepseek_v3", "gb200")
    assert narrowed("llama3-8b", "GB200") == {}
