"""Model FLOPs and what they count against, and memory of a job that trains adapters alone, by hand."""

from dataclasses import replace

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.model_flops import attention_counted, logged_tflops, mfu, products
from solver.problem.price import price_plan
from solver.report.plans import utilisation_words
from spec.arrays import floats
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.parameters import num_parameters
from spec.settings.job import recipe_precision
from tests.ops.layouts import job
from tests.solver.questions import cluster, experts_model, model_flops, question, small_model


def test_a_frozen_weight_has_no_gradient_of_its_own() -> None:
    """6 FLOPs a weight and token and 12 s h a layer and token (PaLM, arXiv 2204.02311 App. B); frozen products and the
    head run twice, 4 FLOPs, adapters and attention three times."""
    s, h, f, vocab, layers, rank = 1024, 512, 2048, 4096, 2, 16
    model = small_model(layers=layers, kv_heads=8)
    weights = layers * (4 * h * h + 3 * h * f) + h * vocab
    adapters = layers * 2 * h * rank
    for flops, changes in (
        (6 * weights, {}),
        (4 * weights + 6 * adapters, {"adapter_rank": rank, "adapted": frozenset({"out"})}),
    ):
        expected = s * (flops + layers * 12 * s * h)
        assert model_flops(model, job(seq_len=s, world_size=1, **changes)) == pytest.approx(expected, rel=1e-12)


def test_rows_that_narrow_formats_pad_with_and_uneven_experts_are_no_model_flops() -> None:
    """1,000 tokens to 2 of 32 experts: 62.5 rows each, which fp8 pads."""
    model = experts_model(num_experts=32, expert_ffn_hidden=256)
    asked: JobSpec = job(seq_len=1000, world_size=1)
    narrow = replace(asked, precision=recipe_precision("mxfp8", asked.preset), moe_expert_spread=0.5)
    assert model_flops(model, narrow) == model_flops(model, asked)


@pytest.mark.parametrize("strategy", ["mtp", "msp", "fsp", "isp"])
def test_optimizer_and_gradients_are_of_adapters_alone(strategy: str) -> None:
    """12 and 2 bytes an adapter's element on 4 data-parallel ranks that share the optimizer, 2 for every weight."""
    model, rank = small_model(kv_heads=8), 16
    ranks = {"tp": 1, "wp": 1} if strategy == "isp" else {"tp": 1}
    one = Plan(strategy=strategy, preset="internevo", dp=4, zero_stage=1, zero_size=4, num_micro=16, **ranks)
    asked = question(model=model, world_size=4, sequences=64)
    asked = replace(asked, job=replace(asked.job, adapter_rank=rank, adapted=frozenset({"out"})))
    (answer,) = price_plan(asked, PlanTable.of(one))
    trained = 8 * 2 * 512 * rank
    weights = num_parameters(model).total + trained
    memory = answer.memory_bytes
    assert memory["optimizer"] == 12 * trained / 4
    assert memory["gradients"] == 2 * trained
    assert memory["parameters"] == 2 * weights


def peak_s(asked: JobSpec, **peaks: float) -> float:
    """Least seconds of a sequence of the two-layer model on a GPU with these peaks beside bf16's 100 TFLOP/s."""
    machine = cluster()
    gpu = replace(machine.gpu, peak_flops={"bf16": 100e12, **peaks})
    sequences_per_gpu = asked.global_batch_sequences / asked.world_size
    used = mfu(small_model(layers=2, kv_heads=8), asked, replace(machine, gpu=gpu), floats(1.0))
    return float(used[0]) / sequences_per_gpu


def test_of_short_sequences_the_whole_attention_matrix_counts() -> None:
    model, asked = small_model(layers=2, kv_heads=8), job(seq_len=1024, world_size=1)
    assert attention_counted(products(model, asked)) == "full"
    assert peak_s(asked) == pytest.approx(model_flops(model, asked) / 100e12, rel=1e-12)


def test_of_long_sequences_what_the_causal_mask_leaves() -> None:
    """12 L s h of attention against 6 weights a token; at 64 Ki tokens attention is nearly everything."""
    s, h, f, vocab, layers = 65_536, 512, 2048, 4096, 2
    model, asked = small_model(layers=layers, kv_heads=8), job(seq_len=s, world_size=1)
    weights = layers * (4 * h * h + 3 * h * f) + h * vocab
    assert attention_counted(products(model, asked)) == "causal"
    assert peak_s(asked) == pytest.approx(s * (6 * weights + layers * 6 * s * h) / 100e12, rel=1e-12)


def test_narrow_products_count_against_their_own_peak() -> None:
    s, h, f, vocab, layers = 1024, 512, 2048, 4096, 2
    plain = job(seq_len=s, world_size=1)
    asked = replace(plain, precision=recipe_precision("fp8-rowwise", plain.preset))
    linears = 6 * s * layers * (4 * h * h + 3 * h * f)
    rest = s * (6 * h * vocab + layers * 12 * s * h)
    assert peak_s(asked, fp8=200e12) == pytest.approx(linears / 200e12 + rest / 100e12, rel=1e-12)


# What a framework's log counts, by hand: 2 layers, s = 1024, h = 512, f = 2048 gated, V = 4096.

S, H, F, V, LAYERS = 1024, 512, 2048, 4096, 2
LINEARS = S * LAYERS * 2 * (4 * H * H + 3 * H * F)
ATTENTION = LAYERS * 4 * S * S * H
HEAD = S * 2 * H * V
MODEL = small_model(layers=LAYERS, kv_heads=8)


def logged(preset: str, recompute: Recompute = Recompute.NONE) -> float | None:
    """FLOPs of a sequence: of a step that takes a picosecond a sequence."""
    one = replace(job(seq_len=S, world_size=1), preset=framework_preset(preset))
    return logged_tflops(MODEL, one, recompute, one.global_batch_sequences * 1e-12)


@pytest.mark.parametrize(
    ("preset", "attention"),
    [
        *((name, 0.5) for name in ("megatron", "megatron-bridge", "xtuner")),
        *((name, 1.0) for name in ("nemo2", "fsdp", "nanotron", "deepspeed", "internevo", "zero-bubble", "composer")),
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
    asked = replace(job(seq_len=S, world_size=1), preset=framework_preset("hf-trainer"))
    assert logged("hf-trainer") is None
    assert logged_tflops(MODEL, asked, Recompute.NONE, 1.0) is None


def test_an_answer_says_what_the_log_would() -> None:
    """TFLOP/s a GPU: FLOPs of the step's sequences over its seconds and GPUs."""
    asked = question(preset=framework_preset("megatron"), world_size=4, sequences=64)
    plan = Plan(strategy="mtp", preset="megatron", dp=4, num_micro=16)
    (answer,) = price_plan(asked, PlanTable.of(plan))
    half = model_flops(asked.model, asked.job) - 3 * 8 * 2 * asked.job.seq_len**2 * H
    tflops = half * 64 / 4 / answer.step_s / 1e12
    assert f"megatron would log {tflops:.1f} TFLOP/s a GPU, half of a causal matrix" in utilisation_words(answer, asked)
    silent = replace(asked, job=replace(asked.job, preset=framework_preset("hf-trainer")))
    assert "would log" not in utilisation_words(answer, silent)


@pytest.mark.parametrize("seq_len", [1024, 65_536])
def test_a_convention_by_name_holds_for_every_length(seq_len: int) -> None:
    """12 L s h of the whole attention against 6 weights a token, 6 L s h of its half."""
    h, f, vocab, layers = 512, 2048, 4096, 2
    asked = job(seq_len=seq_len, world_size=1)
    weights = layers * (4 * h * h + 3 * h * f) + h * vocab
    for convention, factor in (("full", 12), ("causal", 6)):
        named = replace(asked, mfu=convention)
        flops = seq_len * (6 * weights + layers * factor * seq_len * h)
        assert peak_s(named) == pytest.approx(flops / 100e12, rel=1e-12)
