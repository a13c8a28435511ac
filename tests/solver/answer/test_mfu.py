"""Model FLOPs and what they count against, and memory of a job that trains adapters alone, by hand."""

from dataclasses import replace

import pytest

from solver.answer.mfu import counts_whole_attention, least_s_per_sequence, model_flops_per_sequence
from solver.plans.plan_table import Plan, PlanTable
from solver.search import price_plan
from spec.job import JobSpec
from spec.model import BlockRun, MoeSpec
from spec.parameters import num_parameters
from spec.settings.precision import named_precision
from tests.ops.layouts import job
from tests.solver.questions import cluster, question, small_model


def test_a_frozen_weight_has_no_gradient_of_its_own() -> None:
    """s (4 weights + 6 adapters + 12 L s h): products and head run twice, adapters and attention three times."""
    s, h, f, vocab, layers, rank = 1024, 512, 2048, 4096, 2, 16
    model = small_model(layers=layers, kv_heads=8)
    asked: JobSpec = job(seq_len=s, world_size=1, adapter_rank=rank, adapted=frozenset({"out"}))
    weights = layers * (4 * h * h + 3 * h * f) + h * vocab
    adapters = layers * 2 * h * rank
    expected = s * (4 * weights + 6 * adapters + layers * 12 * s * h)
    assert model_flops_per_sequence(model, asked) == pytest.approx(expected, rel=1e-12)


def test_rows_that_narrow_formats_pad_with_and_uneven_experts_are_no_model_flops() -> None:
    """1,000 tokens to 2 of 32 experts: 62.5 rows each, which fp8 pads."""
    moe = MoeSpec(num_experts=32, topk=2, expert_ffn_hidden=256)
    dense = small_model()
    model = replace(
        dense, blocks=(BlockRun(block=replace(dense.blocks[0].block, mlp=None, moe=moe), count=2),)
    )
    asked: JobSpec = job(seq_len=1000, world_size=1)
    narrow = replace(asked, precision=named_precision("mxfp8", asked.preset), moe_expert_spread=0.5)
    assert model_flops_per_sequence(model, narrow) == model_flops_per_sequence(model, asked)


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
    return least_s_per_sequence(small_model(layers=2, kv_heads=8), asked, replace(machine, gpu=gpu))


def test_of_short_sequences_the_whole_attention_matrix_counts() -> None:
    model, asked = small_model(layers=2, kv_heads=8), job(seq_len=1024, world_size=1)
    assert counts_whole_attention(model, asked)
    assert peak_s(asked) == pytest.approx(model_flops_per_sequence(model, asked) / 100e12, rel=1e-12)


def test_of_long_sequences_what_the_causal_mask_leaves() -> None:
    """12 L s h of attention against 6 weights a token; at 64 Ki tokens attention is nearly everything."""
    s, h, f, vocab, layers = 65_536, 512, 2048, 4096, 2
    model, asked = small_model(layers=layers, kv_heads=8), job(seq_len=s, world_size=1)
    weights = layers * (4 * h * h + 3 * h * f) + h * vocab
    assert not counts_whole_attention(model, asked)
    assert peak_s(asked) == pytest.approx(s * (6 * weights + layers * 6 * s * h) / 100e12, rel=1e-12)


def test_narrow_products_count_against_their_own_peak() -> None:
    s, h, f, vocab, layers = 1024, 512, 2048, 4096, 2
    plain = job(seq_len=s, world_size=1)
    asked = replace(plain, precision=named_precision("fp8-rowwise", plain.preset))
    linears = 6 * s * layers * (4 * h * h + 3 * h * f)
    rest = s * (6 * h * vocab + layers * 12 * s * h)
    assert peak_s(asked, fp8=200e12) == pytest.approx(linears / 200e12 + rest / 100e12, rel=1e-12)
