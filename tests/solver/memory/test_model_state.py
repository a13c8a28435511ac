"""Bytes a parameter of model state and whole gradients, from the code that allocates them."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters
from ops.layout import Layout
from solver.estimate import estimate_memory
from solver.memory.stage import whole_gradients_bytes
from solver.memory.terms import MemoryEstimate
from solver.plans.plan_table import Plan, PlanTable
from spec.arrays import ints
from spec.frameworks import framework_preset
from spec.job import precision_of
from spec.model import ModelSpec
from spec.parameters import num_parameters
from spec.settings.job import JobRequest, job_of
from tests.ops.layouts import job
from tests.solver.questions import question, small_model

DP = 4


def bytes_a_parameter(preset: str, num_micro: int = 8, **degrees: int) -> tuple[float, float, float]:
    """Of gradients, of parameters and what is gathered of them, and of optimizer state, on the first stage."""
    plan = Plan(strategy="mtp", preset=preset, dp=DP, zero_size=DP, num_micro=num_micro, **degrees)
    asked = question(
        world_size=plan.world_size,
        sequences=DP * num_micro,
        preset=framework_preset(preset),
        model=small_model(layers=16),
    )
    table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
    cost, held = table.bytes.cost, float(table.bytes.on_rank.total[0])
    parameters = cost.parameters_bytes + cost.weight_pool_bytes
    shares = (cost.gradients_bytes, parameters, cost.optimizer_bytes)
    return tuple(float(share[0]) / held for share in shares)  # type: ignore[return-value]


def test_the_bf16_optimizer_keeps_16_bit_gradients_and_unsharded_fp32_ones() -> None:
    """DeepSpeed runtime/bf16_optimizer.py: 2 + 4 a parameter of gradients, 2 of parameters, 12 sharded."""
    assert bytes_a_parameter("deepspeed-bf16", zero_stage=1) == pytest.approx((2 + 4, 2, 12 / DP), rel=1e-3)
    assert bytes_a_parameter("deepspeed", zero_stage=1) == pytest.approx((2, 2, 12 / DP), rel=1e-3)
    assert (framework_preset("deepspeed-bf16").data_parallel.zero_stages) == (0, 1)


def test_fsdp_under_a_pipeline_keeps_parameters_gathered_and_adds_up_whole_gradients() -> None:
    """torchtitan: reshard_after_forward False with stages, so 2 a parameter; unsharded_accumulated_grad
    another 2 in the reduction's format; 12 + 4 of state are sharded."""
    gradients, parameters, optimizer = bytes_a_parameter("fsdp", zero_stage=3, pp=2)
    assert (parameters, optimizer) == pytest.approx((2, 12 / DP), rel=1e-3)
    assert gradients == pytest.approx(2 + 4 / DP, rel=1e-3)
    layout = Layout.of(8, pp=2, zero_stage=3, zero_size=4)
    context = LayerContext(model=small_model(), job=question(preset=framework_preset("fsdp")).job, layout=layout)
    held = RankParameters(**{name: np.array([100]) for name in ("dense", "weight", "expert")})
    whole = [float(whole_gradients_bytes(context, held, np.array([one]))[0]) for one in (1, 2)]
    assert whole == [0, 2 * 300]
    _, alone, _ = bytes_a_parameter("fsdp", zero_stage=3)
    assert alone < 1


def test_gradients_of_bf16_travel_in_bf16_where_they_add_up_in_fp32() -> None:
    precision = precision_of(framework_preset("deepspeed-bf16"))
    assert (precision.gradient, precision.reduce) == ("fp32", "bf16")


LAYERS = 16


def stage_cost(
    framework: str, zero_stage: int, num_micro: int = 8, *, both_orders: bool = False, **settings: object
) -> MemoryEstimate:
    """Memory of a small model of 16 layers on four ranks; settings of precision by their own names."""
    plan = Plan(strategy="mtp", preset=framework, dp=DP, zero_stage=zero_stage, zero_size=DP, num_micro=num_micro)
    keys = {key if "adapt" in key else f"precision.{key}": value for key, value in settings.items()}
    tokens = DP * num_micro * 1024
    asked = JobRequest(world_size=DP, seq_len=1024, global_batch_tokens=tokens, framework=framework, settings=keys)
    job = job_of(asked)
    job = replace(job, precision=replace(job.precision, transposed_copies=both_orders))
    return estimate_memory(small_model(layers=LAYERS), job, PlanTable.of(plan)).bytes.cost


def block_linears(model: ModelSpec) -> int:
    """Weights of attention (q, k, v and out, half as many key and value heads) and feed-forward (three matrices)."""
    h = model.hidden
    return 2 * h * h + 2 * h * h // 2 + 3 * 4 * h * h


@pytest.mark.parametrize(
    ("recipe", "both_orders", "bytes_a_weight"),
    [("fp8-current", False, 1), ("fp8-current", True, 2), ("mxfp8", False, 2)],
)
def test_weights_in_low_precision_have_no_16_bit_copy(recipe: str, both_orders: bool, bytes_a_weight: int) -> None:
    """Transformer Engine's primary weights: a byte in each order that products want, and no 2 bytes beside them; the
    embedding, the norms and the head keep theirs."""
    cost = stage_cost("megatron", 1, both_orders=both_orders, recipe=recipe, low_precision_parameters=True)
    model = small_model(layers=LAYERS)
    layers = LAYERS * block_linears(model)
    others = num_parameters(model).total - layers
    weights = cost.parameters_bytes[0] + cost.narrow_weights_bytes[0]
    assert weights == pytest.approx(bytes_a_weight * layers + 2 * others)


def test_frozen_weights_are_in_low_precision_too() -> None:
    """fp8_params of a run that trains adapters beside them: 2 bytes less for each weight of a layer's products."""
    adapters = {"recipe": "fp8-current", "adapter_rank": 16, "adapted": "qkv+out"}
    high, low = (
        stage_cost("megatron", 1, low_precision_parameters=only, **adapters).parameters_bytes[0]
        for only in (False, True)
    )
    assert high - low == 2 * LAYERS * block_linears(small_model())


def test_low_precision_weights_that_are_sharded_go_with_what_was_gathered() -> None:
    high, low = (
        stage_cost("megatron-fsdp", 3, recipe="fp8-current", low_precision_parameters=only) for only in (False, True)
    )
    assert high.narrow_weights_bytes[0] > 0
    assert low.narrow_weights_bytes[0] == 0


def test_weights_that_travel_in_low_precision_are_gathered_as_one_copy() -> None:
    """torchao float8/fsdp_utils.py, fsdp_post_all_gather: a byte a weight of what stays gathered, two of all else."""
    high, low = (
        stage_cost("fsdp", 3, 1, recipe="fp8-tensor", parameter_gather=kind).weight_pool_bytes[0]
        for kind in ("bf16", "fp8")
    )
    in_use = framework_preset("fsdp").data_parallel.gathered_layers
    assert high - low == in_use * block_linears(small_model())


@pytest.mark.parametrize("tp", [1, 2])
def test_products_that_add_up_gradients_hand_on_an_empty_one_of_each_shape(tp: int) -> None:
    """Transformer Engine get_dummy_wgrad and Megatron-LM's head: 2 bytes an element of one qkv, out, up, down
    and head, cut by tp, however many layers there are."""

    def gradients(layers: int, *, kept: bool) -> float:
        preset = framework_preset("megatron").changed({"data_parallel.keeps_dummy_wgrad": kept})
        plan = Plan(strategy="mtp", preset="megatron", tp=tp, num_micro=8)
        model = small_model(layers=layers)
        asked = question(world_size=tp, sequences=8, preset=preset, model=model)
        return float(estimate_memory(model, asked.job, PlanTable.of(plan)).bytes.cost.gradients_bytes[0])

    qkv, out, up, down = 512 * (512 + 2 * 4 * 64), 512 * 512, 512 * 2 * 2048, 2048 * 512
    for layers in (4, 8):
        more = gradients(layers, kept=True) - gradients(layers, kept=False)
        assert more == 2 * (qkv + out + up + down + 512 * 4096) / tp


def test_under_no_sync_whole_gradients_stay_in_the_format_of_the_products() -> None:
    """FSDP1 (_runtime_utils.py, _post_backward_hook) keeps them unsharded as they were made, whatever they travel in;
    the fp32 shards of 8 ranks take their place."""
    held = RankParameters(dense=ints(1000), weight=ints(0), expert=ints(0))
    for micro_batches, whole in ((1, 0.0), (4, 2000.0 - 4000.0 / 8)):
        asked = job(world_size=8, preset=framework_preset("hf-trainer"))
        asked = replace(
            asked,
            global_batch_tokens=micro_batches * asked.global_batch_tokens,
            precision=replace(asked.precision, reduce="fp32"),
        )
        shards = Layout.of(8, dp=8, zero_size=8, zero_stage=3)
        context = LayerContext(model=small_model(), job=asked, layout=shards)
        assert whole_gradients_bytes(context, held, np.array([micro_batches]))[0] == whole
