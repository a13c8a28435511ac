"""What decides a stage's memory: peaks that do not meet, kept outputs, what stands beside tensors."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ops.recompute import Recompute
from solver.estimate import estimate_memory
from solver.memory import peak as peak_module
from solver.memory import stage
from solver.memory.device import ALLOCATOR_SLACK, CONTEXT_BYTES
from solver.memory.terms import MemoryEstimate
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.price import price_plan
from solver.problem.requested_plan import parse_plan, plan_of
from solver.problem.result import Answer
from spec.cluster.cluster import HostSpec
from spec.frameworks import FrameworkPreset, framework_preset
from spec.job import JobSpec, precision_of
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec
from spec.parameters import block_parameters, num_parameters
from spec.readers.read_config import read_config
from spec.settings.job import JobRequest, job_of
from spec.units import GIB
from tests.solver.questions import cluster, question, small_model

SEQ, HIDDEN, VOCAB = 1024, 512, 4096


def memory(
    preset: FrameworkPreset, layers: int = 8, *, job: Mapping[str, Any] | None = None, **degrees: Any
) -> MemoryEstimate:
    plan = Plan(strategy="mtp", preset=preset.name, **{"micro_batch": 2, "num_micro": 8} | degrees)
    asked = question(
        world_size=plan.world_size,
        sequences=plan.dp * plan.micro_batch * plan.num_micro,
        preset=preset,
        model=small_model(layers=layers),
    )
    asked_job = replace(asked.job, **job or {})
    return estimate_memory(asked.model, asked_job, PlanTable.of(plan), asked.cluster).memory


def test_the_loss_and_a_layers_backward_do_not_meet() -> None:
    """Only the larger of the two counts, and it does not depend on the smaller."""
    large = memory(framework_preset("deepspeed").changed({"loss.plain": True}))
    small = memory(framework_preset("deepspeed").changed({"loss.fused": True, "pipeline.keeps_stage_outputs": False}))
    assert large.logits_bytes[0] > 0
    assert large.working_bytes[0] == 0
    assert small.logits_bytes[0] == 0
    assert small.working_bytes[0] > 0


def test_working_memory_is_one_layers_however_many_there_are() -> None:
    fused = framework_preset("megatron").changed({"loss.chunked": True, "loss.fused": True})
    one, many = (memory(fused, layers=layers, recompute=Recompute.FULL) for layers in (1, 8))
    assert one.working_bytes[0] == many.working_bytes[0] > 0


def test_muon_keeps_one_moment_of_the_matrices_of_layers() -> None:
    """arXiv 2502.16982: 4 bytes an element less than AdamW; the embedding and the norms keep both."""
    both, one = (
        memory(framework_preset("megatron"), job={"optimizer": name}).optimizer_bytes[0] for name in ("adamw", "muon")
    )
    layer = block_parameters(small_model().blocks[0].block, HIDDEN) - 2 * HIDDEN
    assert both - one == 4 * 8 * layer


def test_a_bucket_that_leaves_after_the_backward_is_not_beside_activations() -> None:
    late = memory(framework_preset("deepspeed"))
    early = memory(framework_preset("deepspeed").changed({"data_parallel.overlap_grad_reduce": True}))
    assert late.bucket_bytes[0] == 0
    assert early.bucket_bytes[0] > 0
    assert late.allocated_bytes[0] < early.allocated_bytes[0]


def test_an_update_that_makes_square_roots_holds_them_once_activations_are_gone() -> None:
    """torch's foreach AdamW: 4 bytes more a trained element of the rank at the end of the step."""
    plain = framework_preset("fsdp").changed({"loss.chunked": True})
    degrees = {"num_micro": 1, "micro_batch": 1, "recompute": Recompute.FULL, "zero_stage": 2}
    parameters = memory(plain, **degrees).parameters_bytes[0] / 2
    made = memory(plain.changed({"data_parallel.update_copies": True}), **degrees)
    without = memory(plain, **degrees)
    passes = without.activations_bytes[0] + without.logits_bytes[0] + without.working_bytes[0]
    assert made.step_bytes[0] == pytest.approx(4 * parameters - passes - without.bucket_bytes[0])
    assert made.step_bytes[0] > without.step_bytes[0]


def test_an_optimizer_without_a_copy_keeps_its_moments_alone() -> None:
    """8 bytes an element in 16 bits: parameter, gradient and two moments."""
    preset = framework_preset("fsdp")
    formats = replace(precision_of(preset), master="", moments="bf16", gradient="bf16")
    held = memory(preset, job={"precision": formats})
    state = held.parameters_bytes[0] + held.gradients_bytes[0] + held.optimizer_bytes[0]
    assert state == 8 * num_parameters(small_model()).total


def test_buffers_of_other_times_count_for_the_device_but_not_for_the_need() -> None:
    predicted = memory(framework_preset("deepspeed"), pp=4)
    assert predicted.segment_bytes[0] > 0
    fixed = CONTEXT_BYTES + predicted.nccl_bytes[0]
    assert predicted.needed_bytes[0] == pytest.approx(predicted.allocated_bytes[0] * (1 + ALLOCATOR_SLACK) + fixed)
    assert predicted.device_bytes[0] - predicted.needed_bytes[0] == pytest.approx(predicted.segment_bytes[0])


def test_16_bit_logits_have_a_segment_beside_the_fp32_ones() -> None:
    """2 bytes a logit that came before the loss's tensors; none where a framework keeps them as its stage's output."""
    degrees = {"zero_stage": 3, "num_micro": 1, "dp": 4, "zero_size": 4}
    plain = memory(framework_preset("fsdp"), **degrees)
    kept = memory(framework_preset("fsdp").changed({"pipeline.keeps_stage_outputs": True}), **degrees)
    assert plain.logits_bytes[0] > 0
    assert plain.segment_bytes[0] - kept.segment_bytes[0] == 2.0 * 2 * SEQ * VOCAB


def test_segments_that_grow_leave_no_fragments() -> None:
    """PyTorch's expandable_segments: reserved is what is allocated."""
    preset = framework_preset("deepspeed")
    fixed, grown = (memory(preset, job={"expandable_segments": grows}, pp=4) for grows in (False, True))
    assert grown.allocated_bytes[0] == fixed.allocated_bytes[0] == grown.reserved_bytes[0]
    saved = fixed.needed_bytes[0] - grown.needed_bytes[0]
    assert saved == pytest.approx(ALLOCATOR_SLACK * fixed.allocated_bytes[0])


def test_more_recomputed_layers_need_less_memory_and_more_time() -> None:
    def predicted(recompute: Recompute, layers: int = 0) -> Answer:
        plan = Plan(
            strategy="mtp", preset="megatron", pp=2, num_micro=8, recompute=recompute, num_recompute_layers=layers
        )
        asked = question(world_size=2, sequences=8, preset=framework_preset("megatron"))
        return price_plan(asked, PlanTable.of(plan))[0]

    steps = [predicted(Recompute.BLOCK, layers) for layers in range(5)]
    none, full = predicted(Recompute.NONE), predicted(Recompute.FULL)
    for less, more in pairwise(steps):
        assert more.memory_bytes["activations"] < less.memory_bytes["activations"]
        assert more.step_s > less.step_s
    assert steps[0].step_s == pytest.approx(none.step_s)
    assert steps[0].allocated_bytes == pytest.approx(none.allocated_bytes)
    assert steps[4].step_s == pytest.approx(full.step_s)
    assert steps[4].allocated_bytes == pytest.approx(full.allocated_bytes)


def test_fsdp_keeps_embedding_and_head_gathered_beside_two_layers() -> None:
    """fully_shard leaves the root unit gathered: 2 x 4096 x 512 and the final norm's 512 in 2 bytes more."""
    plan = Plan(strategy="mtp", preset="fsdp", dp=4, zero_stage=3, zero_size=4, num_micro=1)
    pools = []
    for every_forward in (True, False):
        preset = framework_preset("fsdp").changed({"data_parallel.gathers_every_forward": every_forward})
        asked = question(world_size=4, sequences=4, preset=preset)
        pools.append(float(estimate_memory(asked.model, asked.job, PlanTable.of(plan)).bytes.cost.weight_pool_bytes[0]))
    layer = 512 * (512 + 2 * 4 * 64) + 512 * 512 + 3 * 512 * 2048 + 2 * 512
    assert pools[0] == 2.0 * (2 * layer + 2 * 4096 * 512 + 512)
    assert pools[1] == 2.0 * 2 * layer


def test_stages_that_keep_outputs_keep_one_a_micro_batch_but_the_last_only_receives() -> None:
    """Of 1024 x 512 numbers in 2 bytes: 2 in flight and 2 buffers on the first stage, 2 buffers on the last."""
    plan = Plan(strategy="mtp", preset="deepspeed", pp=2, num_micro=4)
    kept = []
    for keeps in (True, False):
        preset = framework_preset("deepspeed").changed({"pipeline.keeps_stage_outputs": keeps})
        asked = question(world_size=2, sequences=4, preset=preset)
        kept.append(estimate_memory(asked.model, asked.job, PlanTable.of(plan)).bytes.cost.activations_bytes)
    assert list((kept[0] - kept[1]) / (2.0 * 1024 * 512)) == [4.0, 2.0]


# What is live together at a step's peak, against published measurements and closed forms of autograd.

ROOT = Path(__file__).parents[3]
LONG = 4096
LORA: dict[str, Any] = {"adapter_rank": 16, "adapted": "q_k_v+out", "adapter_dropout": True}
CHUNKED = {"loss.fused": True, "loss.chunked": True}


def asked(world_size: int, micro_batch: int, **settings: Any) -> JobSpec:
    tokens = world_size * micro_batch * LONG
    return job_of(
        JobRequest(
            world_size=world_size, seq_len=LONG, global_batch_tokens=tokens, framework="hf-trainer", settings=settings
        )
    )


def peak(model: ModelSpec, job: JobSpec, num_micro: int = 1) -> MemoryEstimate:
    ranks = job.world_size
    plan = Plan(
        strategy="mtp",
        preset="hf-trainer",
        dp=ranks,
        zero_stage=3,
        zero_size=ranks,
        micro_batch=job.global_batch_sequences // ranks // num_micro,
        num_micro=num_micro,
        recompute=Recompute.FULL,
    )
    return estimate_memory(model, job, PlanTable.of(plan)).memory


@pytest.mark.published
@pytest.mark.parametrize(
    ("settings", "sequences", "measured_gib"),
    [
        (CHUNKED, (8, 16), (41.035, 56.165)),
        ({"loss.fused": True}, (4, 8), (44.317, 64.222)),
        (CHUNKED | LORA, (8, 16), (29.806, 53.44)),
        ({"loss.fused": True} | LORA, (4, 8), (25.659, 45.565)),
    ],
)
def test_llama_3_8b_on_four_gpus_takes_what_was_measured(
    settings: dict[str, Any], sequences: tuple[int, int], measured_gib: tuple[float, float]
) -> None:
    """max_memory_allocated of foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/a100_80gb_liger.csv:
    a sequence's share within 0.7 %, the whole within 2.5 %."""
    model = read_config(ROOT / "configs/8B_llama3.py").model
    told = [float(peak(model, asked(4, one, **settings)).allocated_bytes[0]) / GIB for one in sequences]
    assert told == pytest.approx(measured_gib, rel=0.025)
    assert told[1] - told[0] == pytest.approx(measured_gib[1] - measured_gib[0], rel=0.007)


def test_frozen_layers_over_fsdp1_keep_the_gradients_of_their_inputs() -> None:
    """2 h a token of each of 8 layers but two, beside the 2 h of the inputs themselves."""
    model, job = small_model(), asked(4, 16, **CHUNKED | LORA)
    held = peak(model, job)
    preset = framework_preset("hf-trainer").changed(CHUNKED | {"recomputation.keeps_frozen_inputs": False})
    freed = peak(model, replace(job, preset=preset))
    assert held.allocated_bytes[0] - freed.allocated_bytes[0] == 6 * 16 * LONG * 2 * model.hidden


def test_gradients_of_a_single_micro_batch_take_the_place_of_activations() -> None:
    """With many tokens there are none at the peak; of several micro-batches all are, whole and in 16 bits, or in fp32
    where each is reduced."""
    model, job = small_model(), asked(4, 16, **CHUNKED)
    once, again = peak(model, job), peak(model, job, num_micro=4)
    assert once.gradients_bytes[0] == 0
    assert again.gradients_bytes[0] == pytest.approx(2 * num_parameters(model).total, rel=1e-3)
    reducing = replace(job, preset=job.preset.changed({"data_parallel.reduces_once": False}))
    often = peak(model, reducing, num_micro=4)
    assert often.gradients_bytes[0] == pytest.approx(4 * num_parameters(model).total / 4, rel=1e-3)


def test_an_update_has_all_gradients_and_square_roots_and_nothing_of_the_passes() -> None:
    """FSDP in mixed precision: 12 bytes of state, 4 of gradient and 4 of square roots for each owned parameter."""
    model, job = small_model(layers=64, hidden=1024), asked(4, 1, **CHUNKED)
    held = peak(model, job)
    assert held.allocated_bytes[0] == pytest.approx(20 * num_parameters(model).total / 4, rel=1e-3)
    assert held.parameters_bytes[0] == 0


# Memory of nanotron's first stage: its own logs of July 2024, and what shards return in.

ATTENTION = AttentionSpec(kind=AttentionKind.MHA, num_heads=32, num_kv_heads=32, qk_dim=64, v_dim=64)
BLOCK = BlockSpec(mixer=ATTENTION, mlp=MlpSpec(ffn_hidden=4096, gated=True))
LLAMA_1B = ModelSpec(
    name="llama-1.1B",
    hidden=2048,
    vocab=50257,
    blocks=(BlockRun(block=BLOCK, count=24),),
    source="huggingface/bench_cluster, template/base_config.py",
    tied_embeddings=True,
)
PLAIN = {"tensor_parallel.overlap_backward": False, "tensor_parallel.strategies": ("mtp", "msp")}


def first_stage(settings: dict[str, object], plan: Plan, num_micro: int) -> MemoryEstimate:
    asked = JobRequest(
        world_size=plan.tp * plan.pp * plan.dp,
        seq_len=4096,
        global_batch_tokens=4096 * plan.dp * plan.micro_batch * num_micro,
        framework="nanotron",
        settings={"flash_attention": True, **settings},
    )
    table = estimate_memory(LLAMA_1B, job_of(asked), PlanTable.of(plan))
    return table.bytes.cost.take(table.stages.starts)


def plan(tp: int, pp: int, dp: int, micro_batch: int, num_micro: int) -> Plan:
    return Plan(
        strategy="msp" if tp > 1 else "mtp",
        preset="nanotron",
        tp=tp,
        pp=pp,
        dp=dp,
        zero_stage=1 if dp > 1 else 0,
        zero_size=dp,
        micro_batch=micro_batch,
        num_micro=num_micro,
    )


@pytest.mark.published
@pytest.mark.parametrize(
    ("tp", "pp", "dp", "micro_batch", "measured_gib"),
    [(1, 4, 2, 4, 38.141), (2, 8, 1, 8, 44.727), (4, 1, 16, 4, 12.845), (8, 1, 1, 32, 58.687)],
)
def test_a_first_stage_holds_what_the_allocator_counted(
    tp: int, pp: int, dp: int, micro_batch: int, measured_gib: float
) -> None:
    """huggingface.co/nanotron/old_bench, log_metrics.csv: peak of what PyTorch has allocated."""
    num_micro = 1024 // dp // micro_batch
    cost = first_stage(PLAIN, plan(tp, pp, dp, micro_batch, num_micro), num_micro)
    assert cost.allocated_bytes[0] / GIB == pytest.approx(measured_gib, rel=0.01)


@pytest.mark.parametrize(("pp", "dp", "micro_batch", "copies"), [(1, 8, 1, 1), (2, 2, 1, 2), (2, 32, 1, 1)])
def test_shards_return_through_two_flat_copies_of_the_parameters(
    pp: int, dp: int, micro_batch: int, copies: int
) -> None:
    """distributed.py, all_gather_coalesced: a buffer a rank; ProcessGroupNCCL, allgather of a list: one for
    all. Of 1.17 billion parameters in one stage each of 8 ranks' pieces (277 MiB) lies where logits in fp32
    (785 MiB) were; of the first of two stages those of 2 ranks (500 MiB) are larger than gate and up together
    (64 MiB), those of 32 (31 MiB) are not."""
    one = plan(1, pp, dp, micro_batch, 4)
    lists, whole = (first_stage({"data_parallel.lists_of_slices": is_list}, one, 4) for is_list in (True, False))
    assert lists.segment_bytes[0] - whole.segment_bytes[0] == pytest.approx(copies * lists.parameters_bytes[0])


def test_buckets_that_stay_are_all_gradients_in_the_parameters_format() -> None:
    """torch's reducer.cpp, initialize_buckets: two bytes a parameter beside the fp32 sum; none on one
    replica, nor where all gradients leave as one buffer."""

    def kept_bytes(dp: int, *, overlaps: bool) -> float:
        replicas = replace(plan(1, 1, dp, 1, 4), zero_stage=0, zero_size=1)
        cost = first_stage({"data_parallel.overlap_grad_reduce": overlaps}, replicas, 4)
        return float((cost.bucket_bytes / cost.parameters_bytes)[0])

    assert kept_bytes(8, overlaps=True) == 1.0
    assert kept_bytes(1, overlaps=True) == kept_bytes(8, overlaps=False) == 0.0


def test_both_copies_that_shards_return_through_stand_at_once() -> None:
    """Of 16-bit parameters; what they take beyond activations and logits, which are gone by then."""
    returns = replace(plan(1, 1, 8, 1, 8), recompute=Recompute.FULL)
    cost = first_stage({}, returns, 8)
    passes = cost.activations_bytes[0] + cost.logits_bytes[0] + cost.working_bytes[0] + cost.bucket_bytes[0]
    assert cost.step_bytes[0] == 2 * cost.parameters_bytes[0] - passes > 0


CALLED_BY_NAME = "bucket_bytes gathered_weights_bytes optimizer_host_bytes whole_gradients_bytes chunk_activations"
AT_THE_PEAK = "bucket_bytes muon_working_bytes cast_gradient_bytes pool_bytes slice_bytes slice_segment_bytes"
DEEPSPEED = {"bucket_bytes", "transformer_engine_bytes"}
MEGATRON = {"dummy_wgrad_bytes", "transformer_engine_bytes"}
ON_THE_HOST = {"offloaded_gradient_bytes", "offloaded_optimizer_bytes", "optimizer_host_bytes"}
LOW_PRECISION = {"precision.recipe": "mxfp8", "precision.low_precision_parameters": True}
LOW_PRECISION_TERMS = {"low_precision_copy_bytes", "cast_gradient_bytes", "low_precision_only_bytes"}
ADAPTERS = {"recomputation.keeps_frozen_inputs": True, "adapter_rank": 8, "adapted": "qkv+out"}
ADAPTER_TERMS = {
    "bucket_bytes",
    "frozen_bytes",
    "frozen_input_gradients",
    "gathered_weights_bytes",
    "whole_gradients_bytes",
}


@pytest.mark.parametrize(
    ("preset", "settings", "plan_words", "also"),
    [
        ("internevo", {}, "tp=2", {"bucket_bytes"}),
        ("megatron", {"optimizer": "muon"}, "tp=1", MEGATRON | {"muon_bytes", "muon_working_bytes"}),
        ("megatron", {}, "pp=2,vpp=2", MEGATRON | {"chunk_activations"}),
        ("megatron", LOW_PRECISION, "tp=1", MEGATRON | LOW_PRECISION_TERMS),
        ("megatron", {"cuda_graphs": "attn"}, "tp=1", MEGATRON | {"pool_bytes"}),
        ("megatron", {}, "offloaded_layers=2", MEGATRON | {"host_activation_bytes"}),
        ("deepspeed", {}, "zero_stage=3", DEEPSPEED | {"gathered_weights_bytes"}),
        ("deepspeed", {}, "optimizer_offload=1,zero_stage=2", DEEPSPEED | ON_THE_HOST),
        ("deepspeed", {}, "pp=2", DEEPSPEED | {"stage_output_bytes"}),
        ("hf-trainer", ADAPTERS, "zero_stage=3,recompute=full", ADAPTER_TERMS),
        ("nanotron", {}, "zero_stage=1", {"bucket_bytes", "slice_bytes", "slice_segment_bytes"}),
    ],
)
def test_terms_that_do_not_apply_are_never_called(
    preset: str, settings: dict[str, object], plan_words: str, also: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: set[str] = set()

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *values: called.add(name) or function(*values)

    for module, table in ((stage, "TERMS"), (peak_module, "WORKING")):
        terms = getattr(module, table)
        terms = tuple(term._replace(bytes_of=watched(term.bytes_of.__name__, term.bytes_of)) for term in terms)
        monkeypatch.setattr(module, table, terms)
    for module, names in ((stage, CALLED_BY_NAME), (peak_module, AT_THE_PEAK)):
        for name in names.split():
            monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    job = JobRequest(world_size=8, seq_len=1024, global_batch_tokens=64 * 1024, framework=preset, settings=settings)
    hardware = replace(cluster(), host=HostSpec(link_bandwidth=1e10, memory_bandwidth=1e11, links=4))
    problem = replace(question(world_size=8), job=job_of(job), cluster=hardware)
    plan = plan_of(parse_plan(plan_words), problem, "--plan")
    estimate_memory(problem.model, problem.job, PlanTable.of(plan), problem.cluster)
    assert called - {"<lambda>"} == {"communicator_bytes"} | also
