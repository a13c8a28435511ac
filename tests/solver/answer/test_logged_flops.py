"""What a framework's log counts, by hand: 2 layers, s = 1024, h = 512, f = 2048 gated, V = 4096."""

from dataclasses import replace

import pytest

from ops.recompute.layers import Recompute
from solver.answer.logged_flops import logged_flops_per_sequence, logged_tflops
from solver.answer.mfu import model_flops_per_sequence
from solver.plans.plan_table import Plan, PlanTable
from solver.report.tables import used_line
from solver.search import price_plan
from spec.presets.registry import PRESETS
from tests.ops.layouts import job
from tests.solver.questions import question, small_model

S, H, F, V, LAYERS = 1024, 512, 2048, 4096, 2
LINEARS = S * LAYERS * 2 * (4 * H * H + 3 * H * F)
ATTENTION = LAYERS * 4 * S * S * H
HEAD = S * 2 * H * V
MODEL = small_model(layers=LAYERS, kv_heads=8)


def logged(preset: str, recompute: Recompute = Recompute.NONE) -> float | None:
    return logged_flops_per_sequence(
        MODEL, replace(job(seq_len=S, world_size=1), preset=PRESETS[preset]), recompute
    )


@pytest.mark.parametrize(
    ("preset", "attention"),
    [
        *((name, 0.5) for name in ("megatron", "megatron-bridge", "xtuner")),
        *(
            (name, 1.0)
            for name in ("nemo2", "fsdp", "nanotron", "deepspeed", "internevo", "zero-bubble", "composer")
        ),
    ],
)
def test_a_causal_matrix_counts_as_the_framework_s_source_says(preset: str, attention: float) -> None:
    assert logged(preset) == pytest.approx(3 * (LINEARS + HEAD + attention * ATTENTION), rel=1e-12)


@pytest.mark.parametrize("kind", [Recompute.FULL, Recompute.BLOCK])
def test_what_runs_again_counts_once_more_where_the_log_says_so(kind: Recompute) -> None:
    """Megatron-DeepSpeed four times everything, InternEvo four times the layers, Megatron-LM as without."""
    assert logged("deepspeed", kind) == pytest.approx(4 * (LINEARS + HEAD + ATTENTION), rel=1e-12)
    assert logged("internevo", kind) == pytest.approx(4 * (LINEARS + ATTENTION) + 3 * HEAD, rel=1e-12)
    assert logged("megatron", kind) == logged("megatron")


def test_selective_recomputation_repeats_attention_in_megatron_deepspeed_alone() -> None:
    plain = logged("deepspeed")
    assert plain is not None
    assert logged("deepspeed", Recompute.SELECTIVE) == pytest.approx(plain + ATTENTION, rel=1e-12)
    assert logged("internevo", Recompute.SELECTIVE) == logged("internevo")


def test_a_framework_whose_log_no_source_tells_has_none() -> None:
    asked = replace(job(seq_len=S, world_size=1), preset=PRESETS["hf-trainer"])
    assert logged("hf-trainer") is None
    assert logged_tflops(MODEL, asked, Recompute.NONE, 1.0) is None


def test_an_answer_says_what_the_log_would() -> None:
    """TFLOP/s a GPU: FLOPs of the step's sequences over its seconds and GPUs."""
    asked = question(preset=PRESETS["megatron"], world_size=4, sequences=64)
    plan = Plan(strategy="mtp", preset="megatron", dp=4, num_micro=16)
    (answer,) = price_plan(asked, PlanTable.of(plan))
    half = model_flops_per_sequence(asked.model, asked.job) - 3 * 8 * 2 * asked.job.seq_len**2 * H
    tflops = half * 64 / 4 / answer.step_s / 1e12
    assert f"megatron would log {tflops:.1f} TFLOP/s a GPU, of a causal matrix half" in used_line(
        answer, asked
    )
    silent = replace(asked, job=replace(asked.job, preset=PRESETS["hf-trainer"]))
    assert "would log" not in used_line(answer, silent)
