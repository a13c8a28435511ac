"""FLOPs and memory of a job that trains adapters alone, by hand."""

from dataclasses import replace

import pytest

from solver.answer.mfu import model_flops_per_sequence
from solver.plans.plan_table import Plan, PlanTable
from solver.search import price_plan
from spec.job import JobSpec
from spec.parameters import num_parameters
from tests.ops.layouts import job
from tests.solver.questions import question, small_model


def test_a_frozen_weight_has_no_gradient_of_its_own() -> None:
    """s (4 weights + 6 adapters + 12 L s h): products and head run twice, adapters and attention three times."""
    s, h, f, vocab, layers, rank = 1024, 512, 2048, 4096, 2, 16
    model = small_model(layers=layers, kv_heads=8)
    asked: JobSpec = job(seq_len=s, world_size=1, adapter_rank=rank, adapted=frozenset({"out"}))
    weights = layers * (4 * h * h + 3 * h * f) + h * vocab
    adapters = layers * 2 * h * rank
    expected = s * (4 * weights + 6 * adapters + layers * 12 * s * h)
    assert model_flops_per_sequence(model, asked) == pytest.approx(expected, rel=1e-12)


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
