"""Frameworks by the names that people write, each with what its code sets."""

import pytest

from benchmarks.accuracy_rows.clauses import Reading, readings
from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.row import RowError
from tests.benchmarks.made_up_rows import job_of_row, plans, predict, row

NORM_AND_ROTARY = frozenset({"norm", "rotary"})
ALONE = {"tp": "1", "pp": "1", "dp": "8", "zero_stage": "3"}


@pytest.mark.parametrize(
    ("framework", "preset", "joins", "apart"),
    [
        ("torchtitan FSDP2", "fsdp", False, True),
        ("torchtitan FSDP1", "fsdp", True, True),
        ("torchtitan FSDP2+compile", "fsdp-compiled", False, True),
        ("torchtitan FSDP2+float8", "fsdp-compiled", False, True),
        ("torchtune FSDP2", "fsdp", False, True),
        ("OLMo FSDP", "fsdp", True, False),
        ("OLMo-core HSDP", "fsdp-compiled", False, True),
        ("litgpt FSDP", "fsdp-compiled", True, True),
        ("llama-recipes FSDP", "hf-trainer", True, True),
        ("HuggingFace Trainer + DeepSpeed", "xtuner", False, True),
        ("HF + DeepSpeed ZeRO-3", "xtuner", False, True),
        ("DeepSpeed-Chat", "xtuner", False, True),
        ("LLaMA Factory FSDP", "hf-trainer", True, True),
        ("MosaicML LLM Foundry", "composer", True, False),
        ("NeoX (DeeperSpeed)", "deepspeed", False, False),
        ("Megatron-LM + DeepSpeed", "deepspeed", False, False),
        ("PyTorch FSDP2", "fsdp", False, False),
        ("Axolotl FSDP", "hf-trainer", True, True),
        ("TRL (FSDP2)", "hf-trainer", False, True),
        ("TRL DeepSpeed ZeRO-3", "xtuner", False, True),
        ("DeepSpeed ZeRO-3", "deepspeed", False, False),
        ("Megatron-DeepSpeed", "deepspeed", False, False),
        ("Megatron-Deepspeed", "deepspeed", False, False),
        ("GPT-NeoX", "deepspeed", False, False),
        ("deepspeed zero-3", "deepspeed", False, False),
        ("Accelerate + DeepSpeed", "xtuner", False, True),
        ("pytorch fsdp1", "fsdp", True, False),
    ],
)
def test_names_of_frameworks_are_those_of_their_code(
    framework: str, preset: str, joins: bool, apart: bool
) -> None:
    """FSDP1 joins gradients; matrices of gate and up lie apart but where a model joins them."""
    read = job_of_row(
        row(framework=framework, precision="fp16" if "Megatron" in framework else "bf16", **ALONE)
    )
    assert read.preset.name == preset
    assert read.preset.data_parallel.joins_gradients is joins
    assert read.preset.layers.joined_gate is not apart
    (priced,) = predict(row(framework=framework, **ALONE))
    assert Gap.UNKNOWN_FRAMEWORK not in priced.gaps


@pytest.mark.parametrize("framework", ["Megatron-DeepSpeed", "GPT-NeoX", "DeepSpeed"])
def test_over_deepspeed_sequences_lie_whole_and_input_gradients_block(framework: str) -> None:
    """megatron/arguments.py, --sequence-parallel off by default, validate_args
    (async_tensor_model_parallel_allreduce False with --deepspeed); GPT-NeoX neox_args.py, sequence_parallel
    False."""
    cells = {"framework": framework, "tp": "4", "pp": "1", "dp": "2"}
    assert {plan.strategy for plan in plans(**cells, sp="")} == {"mtp"}
    assert {plan.strategy for plan in plans(**cells, sp="1")} == {"fsp"}
    read = job_of_row(row(**cells))
    assert not read.preset.tensor_parallel.overlap_backward
    assert read.attention_kernel == "flash2"
    assert {plan.strategy for plan in plans(**cells | {"framework": "Megatron-LM"}, sp="")} == {"fsp"}


@pytest.mark.parametrize(
    ("framework", "precision", "unfused"),
    [
        ("Megatron-DeepSpeed", "bf16", {"rotary"}),
        ("Megatron-DeepSpeed", "fp16", {"rotary"}),
        ("GPT-NeoX", "bf16", {"rotary"}),
        ("GPT-NeoX", "fp16", set()),
    ],
)
def test_over_deepspeed_gates_and_rotations_are_elementwise(
    framework: str, precision: str, unfused: set[str]
) -> None:
    """transformer.py: F.silu(x[0]) * x[1]; rotary_pos_embedding.py; GPT-NeoX positional_embeddings.py."""
    read = job_of_row(row(framework=framework, precision=precision, **ALONE | {"zero_stage": "1"}))
    assert read.unfused == unfused
    assert not read.preset.layers.fused_activation


def test_deepspeed_chat_gathers_little_ahead() -> None:
    """dschat/utils/ds_utils.py: stage3_max_live_parameters 3e7."""
    assert (
        job_of_row(row(framework="DeepSpeed-Chat", **ALONE)).preset.data_parallel.live_elements == 30_000_000
    )


def test_llama_recipes_reduce_in_every_backward_and_end_recomputation_early() -> None:
    """finetuning.py: FSDP1 without no_sync; activation_checkpointing_functions.py: NO_REENTRANT."""
    own = job_of_row(row(framework="llama-recipes FSDP", **ALONE)).preset
    theirs = job_of_row(row(framework="Axolotl FSDP", **ALONE)).preset
    assert (own.data_parallel.reduces_once, theirs.data_parallel.reduces_once) == (False, True)
    assert (own.recomputation.stops_early, theirs.recomputation.stops_early) == (True, False)


def test_colossal_ai_is_reported_and_priced_as_what_shards_the_same_modules() -> None:
    """low_level_zero_plugin.py, reduce_bucket_size_in_m 12; gemini_plugin.py, max_prefetch 0."""
    cells = ALONE | {"framework": "Colossal-AI"}
    sharded, gemini = (job_of_row(row(**cells | {"zero_stage": stage})).preset for stage in ("2", "3"))
    assert {sharded.name, gemini.name} == {"xtuner"}
    assert sharded.data_parallel.bucket_elements == 12 * 2**20
    assert (sharded.data_parallel.overlap_weights, gemini.data_parallel.overlap_weights) == (True, False)
    read = job_of_row(row(**cells))
    assert (read.unfused, read.attention_kernel) == (NORM_AND_ROTARY, "flash2")
    hybrid = row(**cells | {"tp": "2", "dp": "4"})
    assert job_of_row(hybrid).preset.name == "megatron"
    for one in (row(**cells), hybrid):
        assert Gap.UNKNOWN_FRAMEWORK in predict(one)[0].gaps


@pytest.mark.parametrize("framework", ["PaxML", "T5X", "Levanter", "EasyLM"])
def test_programs_over_jax_are_priced_as_the_one_that_is_known_and_reported(framework: str) -> None:
    """No preset of their own: the nearest one, and a word in the report."""
    (priced,) = predict(row(framework=framework, **ALONE))
    assert Gap.UNKNOWN_FRAMEWORK in priced.gaps
    assert job_of_row(row(framework=framework, **ALONE)).preset.name == "maxtext"


@pytest.mark.parametrize(
    ("framework", "stage", "preset"),
    [
        ("Megatron-DeepSpeed", "1", "deepspeed-bf16"),
        ("GPT-NeoX", "0", "deepspeed-bf16"),
        ("Megatron-DeepSpeed", "2", "deepspeed"),
        ("Megatron-DeepSpeed", "3", "deepspeed"),
        ("DeepSpeed", "1", "deepspeed"),
    ],
)
def test_deepspeed_adds_up_in_fp32_below_stage_2_alone(framework: str, stage: str, preset: str) -> None:
    """runtime/engine.py, _do_optimizer_sanity_check: BF16_Optimizer at stage 1, ZeRO's own at 2 and 3."""
    cells = ALONE | {"framework": framework, "zero_stage": stage}
    assert job_of_row(row(**cells, precision="bf16")).preset.name == preset


@pytest.mark.parametrize(
    ("notes", "compiled"),
    [
        ("", False),
        ("torch.compile", True),
        ("no compile", False),
        ("compile=False", False),
        ("compile on", True),
    ],
)
def test_notes_say_whether_torchtitan_compiled(notes: str, compiled: bool) -> None:
    """config_manager.py, training.compile: False unless asked for."""
    one = row(framework="torchtitan FSDP2", notes=notes, **ALONE)
    assert (job_of_row(one).preset.name == "fsdp-compiled") is compiled
    assert job_of_row(one).unfused == (frozenset() if compiled else NORM_AND_ROTARY)
    assert {reading for reading, _ in readings(one)} <= {Reading.TAKEN}
    assert (
        job_of_row(row(framework="torchtitan FSDP2", precision="fp8", **ALONE)).preset.name == "fsdp-compiled"
    )


def test_torchtitan_of_april_2024_had_a_kernel_for_norms_but_in_its_largest_models() -> None:
    """train_configs of 1ea476e9f: norm_type."""
    page = {"framework": "torchtitan FSDP2", "source": "pytorch/torchtitan docs/performance.md"}
    assert job_of_row(row(**page, model_name="llama3-8b")).unfused == {"rotary"}
    assert job_of_row(row(**page, model_name="llama3-70b")).unfused == NORM_AND_ROTARY


def test_what_megascale_is_compared_with_overlaps_nothing_beside_data_parallelism_and_messages() -> None:
    """Megatron-LM 285068c8: blocking reduce-scatter and all-gather of fp32 gradients, hops after both passes."""
    old = job_of_row(row(dataset="megascale", framework="Megatron-LM"))
    assert old.preset.name == "megatron-2021"
    assert not old.preset.data_parallel.overlap_grad_reduce
    assert not old.preset.data_parallel.overlap_param_gather
    assert not old.preset.pipeline.overlap_hops
    assert old.preset.data_parallel.gradient_sync == "reduce_scatter"
    assert (old.precision.reduce, old.attention_kernel) == ("fp32", "flash1")
    assert job_of_row(row(dataset="megascale", framework="MegaScale")).preset.name == "megatron"
    assert job_of_row(row(dataset="megascale_moe", framework="Megatron-LM")).preset.name == "megatron"


def test_sequences_of_hugging_faces_trainers_are_cut_over_fsdp2_or_ulysses() -> None:
    """accelerate accelerator.py, maybe_context_parallel; parallelism_config.py, sp_backend."""
    cut = ALONE | {"framework": "TRL", "cp": "2", "dp": "4"}
    assert job_of_row(row(**cut)).preset.data_parallel.copies_parameters
    assert job_of_row(row(**cut, notes="Ulysses")).preset.name == "xtuner"
    assert job_of_row(row(**cut | {"cp": "1", "dp": "8"})).preset.data_parallel.joins_gradients


@pytest.mark.parametrize(
    ("framework", "notes", "size"),
    [
        ("torchtitan FSDP2", "", 32),
        ("torchtitan HSDP", "", 8),
        ("OLMo-core FSDP2", "sharding=HYBRID_SHARD", 8),
        ("torchtitan FSDP2", "HSDP: dp_replicate=2, dp_shard=16", 16),
        ("torchtitan FSDP2", "dp_shard=4", 4),
        ("OLMo FSDP", "num_model_replicas=8", 4),
        ("torchtitan FSDP2", "without HSDP", 32),
    ],
)
def test_hybrid_sharding_is_read_in_the_words_of_each_framework(
    framework: str, notes: str, size: int
) -> None:
    """PyTorch's HYBRID_SHARD shards within a node; torchtitan and OLMo name copies and shards."""
    cells = ALONE | {"framework": framework, "notes": notes, "num_gpus": "32", "dp": "32"}
    assert {plan.zero_size for plan in plans(**cells, global_batch_sequences="32")} == {size}


def test_copies_that_do_not_divide_the_ranks_are_refused() -> None:
    with pytest.raises(RowError, match="copies must divide 8"):
        plans(**ALONE, framework="torchtitan FSDP2", notes="dp_replicate=3")


@pytest.mark.parametrize(
    ("framework", "gpu", "model", "kernel"),
    [
        # models/attention.py: v0.1.0 asks for cuDNN's on compute capability 10.0, v0.2 first of all
        ("torchtitan FSDP2+compile", "H100-80GB", "llama3.1-8b", "flash2"),
        ("torchtitan FSDP2+compile", "B200", "llama3.1-8b", "flash"),
        ("torchtitan FSDP2+compile", "GB200", "llama3.1-70b", "flash"),
        ("torchtitan v0.2.2 FSDP2+compile", "H100-80GB", "llama3.1-8b", "flash"),
        ("torchtitan v0.1 FSDP2+compile", "H100-80GB", "llama3.1-8b", "flash2"),
        # FlexAttention, which Triton compiles
        ("torchtitan v0.2.2 FSDP2+compile", "B200", "deepseek-v3", "flash2"),
        ("PyTorch FSDP2", "B200", "llama3.1-8b", "flash2"),
    ],
)
def test_torchtitan_asks_for_cudnns_attention(framework: str, gpu: str, model: str, kernel: str) -> None:
    read = job_of_row(row(framework=framework, gpu=gpu, model_name=model, **ALONE))
    assert read.attention_kernel == kernel


@pytest.mark.parametrize(
    ("framework", "notes", "kind"),
    [
        ("torchtitan FSDP2+EP", "", "all_to_all"),
        ("torchtitan FSDP2+EP+DeepEP", "", "deepep"),
        ("torchtitan FSDP2+EP", "DeepEP", "deepep"),
        ("torchtitan FSDP2+EP", "expert_parallel_comm_backend=hybridep", "hybridep"),
        ("torchtitan FSDP2+EP", "expert_parallel_comm_backend=standard", "all_to_all"),
        ("torchtitan FSDP2+EP", "dispatcher: DeepEP", "deepep"),
    ],
)
def test_torchtitans_exchange_is_the_one_that_is_named(framework: str, notes: str, kind: str) -> None:
    one = row(framework=framework, notes=notes, num_experts="8", topk="2", moe_ffn_hidden="512")
    assert job_of_row(one).moe_dispatcher == kind
    assert all(reading is Reading.TAKEN for reading, _ in readings(one))


def test_torchtitan_forces_balance_by_turns_and_megatron_by_chance() -> None:
    cells = {"num_experts": "8", "topk": "2", "moe_ffn_hidden": "512", "notes": "MoE: force-balanced routing"}
    by = {
        name: job_of_row(row(framework=name, **cells)).moe_routing
        for name in ("torchtitan", "Megatron-Bridge 25.11")
    }
    assert by == {"torchtitan": "in_turn", "Megatron-Bridge 25.11": "uniform"}
    assert job_of_row(row(framework="torchtitan", **(cells | {"notes": ""}))).moe_routing == "uniform"


@pytest.mark.parametrize("dataset", ["zero_bubble", "made_up"])
def test_the_zero_bubble_fork_updates_stage_by_stage(dataset: str) -> None:
    """arXiv 2401.10241 sec. 4; Megatron-LM without it waits for all."""
    for framework, apart in (("Megatron-LM zero-bubble fork ZB-2p", True), ("Megatron-LM", False)):
        read = job_of_row(row(dataset=dataset, framework=framework))
        assert read.preset.pipeline.post_validation is apart
