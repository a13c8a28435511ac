"""What a framework's published recipes fill in, and only where a row leaves it open."""

import pytest

from benchmarks.accuracy_rows import recipes
from benchmarks.accuracy_rows.model import model_of
from benchmarks.accuracy_rows.notes import notes_of
from benchmarks.accuracy_rows.plan import candidates_of
from ops.recompute import Recompute
from spec.mixers.attention import AttentionSpec
from spec.model import NormKind, PositionKind
from tests.benchmarks.made_up_rows import EXPERTS, job_of_row, plans, row

AUTOMODEL = EXPERTS | {
    "framework": "NeMo-AutoModel FSDP2",
    "tp": "1",
    "dp": "8",
    "ep": "1",
    "zero_stage": "3",
    "notes": "kernels: TE + DeepEP",
}


def test_experts_of_megatron_core_run_micro_batch_1_unless_a_row_says() -> None:
    """yanring/Megatron-MoE-ModelZoo, runtime.conf: MBS 1."""
    open_row = EXPERTS | {"framework": "Megatron-Core", "micro_batch": "", "dp": "4"}
    assert {plan.micro_batch for plan in plans(**open_row)} == {1}
    assert {plan.micro_batch for plan in plans(**open_row | {"micro_batch": "2"})} == {2}
    dense = open_row | {"num_experts": ""}
    assert {plan.micro_batch for plan in plans(**dense)} == {1, 2}


def test_deepep_over_one_rank_means_all_fsdp_ranks() -> None:
    """AutoModel's gptoss_20b_te_deepep.yaml: ep_size 8 on 8 GPUs."""
    assert {plan.ep for plan in plans(**AUTOMODEL)} == {8}
    assert {plan.ep for plan in plans(**AUTOMODEL | {"ep": "4"})} == {4}
    assert {plan.ep for plan in plans(**AUTOMODEL | {"notes": "kernels: TE"})} == {1}
    assert {plan.ep for plan in plans(**AUTOMODEL | {"num_experts": "12"})} == {1}


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("gpt-oss-20b", {Recompute.NONE}),
        ("qwen3-30b-a3b", {Recompute.FULL}),
        ("other", set(Recompute) - {Recompute.BLOCK}),
    ],
)
def test_automodel_recomputes_as_its_recipes_do(model: str, kinds: set[Recompute]) -> None:
    """activation_checkpointing of examples/benchmark/configs; an unknown model leaves every mode open."""
    found = plans(**AUTOMODEL | {"recompute": "unknown", "model_name": model})
    assert {plan.recompute for plan in found} == kinds
    stated = plans(**AUTOMODEL | {"recompute": "selective", "model_name": model})
    assert {plan.recompute for plan in stated} == {Recompute.SELECTIVE}


@pytest.mark.parametrize(
    ("cells", "modules"),
    [
        ({"model_name": "gpt-oss-120b", "gpu": "GB200"}, {"layernorm", "moe_act"}),
        ({"model_name": "gpt-oss-120b", "gpu": "GB300"}, set()),
        ({"model_name": "deepseek-v3", "gpu": "H100-80GB"}, {"mla_up_proj", "mlp"}),
        ({"model_name": "qwen3-30b-a3b", "gpu": "B200-SXM"}, set()),
        ({"model_name": "gpt-oss-120b", "gpu": "GB200", "recompute": "none"}, set()),
        (
            {"model_name": "gpt-oss-120b", "gpu": "GB300", "notes": "recompute_modules=['moe_act']"},
            {"moe_act"},
        ),
        ({"model_name": "gpt-oss-120b", "gpu": "GB200", "framework": "Megatron-Core"}, set()),
    ],
)
def test_bridge_recomputes_the_modules_of_its_recipes(cells: dict[str, str], modules: set[str]) -> None:
    one = row(**EXPERTS | {"framework": "Megatron-Bridge 26.02", "recompute": "unknown", "dp": ""} | cells)
    found, _ = candidates_of(one, notes_of(one), job_of_row(one))
    assert {frozenset(each.plan.recompute_modules) for each in found} == {frozenset(modules)}


def test_graphs_are_as_stated_or_as_the_recipes_for_experts_set_them() -> None:
    bridge = EXPERTS | {"framework": "Megatron-Bridge 25.11", "gpu": "B200"}
    none: frozenset[str] = frozenset()
    assert recipes.cuda_graphs(row(**bridge, notes="cuda_graph=None:None"), none) == none
    assert recipes.cuda_graphs(row(**bridge, notes="not matched"), none) == {"moe_router", "moe_preprocess"}
    assert recipes.cuda_graphs(row(**bridge, notes="variant: tokendrop"), none) == {"full_iteration"}
    assert recipes.cuda_graphs(row(**(bridge | {"gpu": "H100-80GB"}), notes=""), none) == none
    assert recipes.cuda_graphs(row(framework="Megatron-Bridge 25.11", gpu="B200", notes=""), none) == none
    predicted = "cuda_graph=transformer_engine:['attn', 'moe_router']"
    assert notes_of(row(**bridge, notes=predicted)).cuda_graphs == {"attn", "moe_router"}
    assert notes_of(row(**bridge, notes="cuda_graph=None:None")).cuda_graphs == none


def test_internevo_repeats_norms_only_where_it_does_not_checkpoint() -> None:
    assert recipes.recompute_modules(row(framework="InternEvo", recompute="none"), ()) == ("dropout_norm",)
    assert recipes.recompute_modules(row(framework="InternEvo", recompute="full"), ()) == ()


@pytest.mark.parametrize(
    ("cells", "extra"),
    [
        ({"model_name": "deepseek-v3"}, 1),
        ({"model_name": "deepseek-v3", "framework": "Megatron-Core"}, 0),
        ({"model_name": "kimi-k2"}, 0),
        ({"model_name": "kimi-k2", "notes": "MTP block on"}, 1),
        ({"model_name": "kimi-k2", "notes": "MTP=0"}, 0),
        ({"model_name": "kimi-k2", "notes": "without MTP"}, 0),
    ],
)
def test_prediction_blocks_are_the_recipes_or_the_rows(cells: dict[str, str], extra: int) -> None:
    one = row(**EXPERTS | {"framework": "Megatron-Bridge 26.02"} | cells)
    model, _ = model_of(one, notes_of(one))
    assert [run.count for run in model.blocks if run.block.mtp] == [1] * extra
    assert model.num_layers == 4


def test_deepseek_v3_routes_to_four_of_eight_groups() -> None:
    one = row(**EXPERTS | {"model_name": "deepseek-v3"})
    moe = model_of(one, notes_of(one))[0].blocks[-1].block.moe
    assert moe is not None
    assert (moe.route_groups, moe.route_chosen_groups) == (8, 4)


@pytest.mark.parametrize("framework", ["nanotron 1F1B", "Nanotron 0.4", "nanotron v0.4 (2024-2025, SmolLM3)"])
def test_nanotron_reduces_beside_the_backward_without_zero_alone(framework: str) -> None:
    """trainer.py: make_ddp unless gradients accumulate in fp32 under ZeRO-1."""
    cells = {"framework": framework}
    overlaps = {
        stage: job_of_row(row(**cells, zero_stage=stage)).preset.data_parallel.overlap_grad_reduce
        for stage in (0, 1)
    }
    assert overlaps == {0: True, 1: False}
    assert job_of_row(row(**cells)).attention_kernel == "flash2"
    plain = job_of_row(row(**cells, notes="no async TP communication")).preset.tensor_parallel
    assert (plain.overlap_backward, plain.strategies) == (False, ("mtp", "msp"))


def test_nanotrons_runs_with_stages_compare_ranks_and_the_largest_look_for_messages() -> None:
    """run_multinode.sh of 77f54c1, parallel/pipeline_parallel/p2p.py of 67c5ebb; which runs had them is inferred."""

    def told(**cells: str) -> tuple[bool, float]:
        job = job_of_row(row(dataset="nanotron_bench", framework="nanotron 1F1B", **cells))
        return job.checked_collectives, job.preset.pipeline.looks_every_s

    assert told(pp="1", num_gpus="512") == (False, 0.0)
    assert told(pp="2", num_gpus="256") == (True, 0.0)
    assert told(pp="2", num_gpus="512") == (True, 0.1)
    assert told(pp="2", tp="32", num_gpus="64") == (True, 0.1)


def test_a_submission_to_mlperf_runs_in_fp8_without_recomputation_unless_it_says() -> None:
    """training_results_v4.1, NVIDIA: config_fp8.sh, conf/custom.yaml."""
    cells = {"framework": "MLPerf v5.1 NeMo NVIDIA", "precision": "", "recompute": "unknown"}
    job = job_of_row(row(**cells))
    assert (job.preset.name, job.precision.linear, job.precision.gradient) == ("nemo2", "fp8", "bf16")
    assert {plan.recompute for plan in plans(**cells)} == {Recompute.NONE}
    assert job_of_row(row(**cells | {"precision": "bf16"})).precision.linear == "bf16"


def test_xtuner_shards_parameters_unless_it_says() -> None:
    cells = {
        "framework": "XTuner (HF + DeepSpeed, Ulysses)",
        "tp": "1",
        "pp": "1",
        "dp": "8",
        "zero_stage": "",
    }
    assert {plan.zero_stage for plan in plans(**cells)} == {3}
    assert {plan.zero_stage for plan in plans(**cells | {"zero_stage": "2"})} == {2}
    assert job_of_row(row(**cells)).unfused == {"norm", "rotary"}


def test_xtuner_with_experts_is_its_engine_over_fsdp2() -> None:
    """InternLM/xtuner b934f46, xtuner/v1: config/fsdp.py, loss/ce_loss.py, ops/flash_attn/gpu.py."""
    cells = {
        "framework": "XTuner",
        "num_experts": "8",
        "topk": "2",
        "moe_ffn_hidden": "1024",
        "moe_layer_freq": "1",
        "tp": "1",
        "pp": "1",
        "ep": "8",
        "dp": "8",
        "zero_stage": "3",
        "recompute": "unknown",
    }
    job = job_of_row(row(**cells))
    assert (job.preset.name, job.preset.host.code, job.unfused) == ("xtuner-v1", "compiled", frozenset())
    assert (job.preset.loss.chunked, job.preset.recomputation.stops_early) == (True, False)
    assert job.attention_kernel == "flash"
    assert {plan.recompute for plan in plans(**cells)} == {Recompute.FULL}


def test_torchtitan_without_compile_runs_norms_rotary_and_gates_one_operation_after_another() -> None:
    """models/llama/model.py: nn.RMSNorm, apply_rotary_emb on fp32 copies, w2(silu(w1(x)) * w3(x))."""
    job = job_of_row(row(framework="torchtitan FSDP2 eager"))
    layers = job.preset.layers
    assert (job.unfused, layers.fused_activation, layers.joined_gate) == ({"norm", "rotary"}, False, False)
    assert job_of_row(row(framework="torchtitan FSDP2+compile")).unfused == frozenset()


@pytest.mark.parametrize(
    ("word", "recipe"),
    [
        ("FP8", ("tensor", "current", "fp8")),
        ("FP8-CS", ("tensor", "current", "fp8")),
        ("FP8-DS", ("tensor", "delayed", "fp8")),
        ("FP8-SC", ("block", "block", "bf16")),
        ("fp8_sc", ("block", "block", "bf16")),
        ("FP8-MX", ("mx", "block", "bf16")),
        ("MXFP8", ("mx", "block", "bf16")),
        ("NVFP4", ("block", "block", "bf16")),
    ],
)
def test_bridge_names_its_recipes_by_two_letters(word: str, recipe: tuple[str, str, str]) -> None:
    """scripts/performance/utils/precision.py: cs, ds, sc and mx; parameters are gathered in fp8 under tensor
    scales alone.
    """
    found = job_of_row(row(framework="Megatron-Bridge 26.04", precision=word, gpu="B200-SXM")).precision
    assert (found.scale_recipe, found.scaling or "current", found.parameter_gather) == recipe
    assert found.linear == ("fp4" if "4" in word else "fp8")


def test_bridge_gathers_fp4_parameters_from_the_release_that_says_so() -> None:
    """fp4_param_gather True in v0.5.0 (release 26.06), absent in v0.4.1."""
    cells = {"precision": "NVFP4", "gpu": "B200-SXM"}
    held = {
        release: job_of_row(row(framework=f"Megatron-Bridge {release}", **cells)).precision
        for release in ("26.04.01", "26.06", "26.08")
    }
    assert [one.parameter_gather for one in held.values()] == ["bf16", "fp4", "fp4"]
    assert [one.narrow_parameters for one in held.values()] == [False, True, True]


def test_kimi_is_trained_with_muon_in_bridge_and_holds_no_mxfp8_parameters() -> None:
    """recipes/kimi/kimi_k2.py and scripts/performance/configs/kimi: dist_muon, no gather beside the forward,
    16-bit parameters.
    """
    cells = EXPERTS | {
        "framework": "Megatron-Bridge 26.04",
        "precision": "FP8-MX",
        "gpu": "GB300",
        "heads": "4",
    }
    kimi = job_of_row(row(**cells | {"model_name": "kimi-k2"}))
    assert (kimi.optimizer, kimi.precision.narrow_parameters) == ("muon", False)
    assert not kimi.preset.data_parallel.overlap_param_gather
    other = job_of_row(row(**cells | {"model_name": "deepseek-v3"}))
    assert (other.optimizer, other.precision.narrow_parameters) == ("adamw", True)
    core = job_of_row(
        row(**cells | {"model_name": "kimi-k2", "framework": "Megatron-Core", "precision": "bf16"})
    )
    assert core.optimizer == "adamw"


def test_nemotron_has_no_gate_no_biases_and_rotary_positions() -> None:
    """NeMo's NemotronConfig: squared_relu, rope, add_bias_linear False, nothing tied, LayerNorm."""
    one = row(model_name="nemotron4-15b", gated_mlp="0", framework="NeMo (DGX Cloud recipe v25.02)")
    model = model_of(one, notes_of(one))[0]
    mlp, mixer = model.blocks[0].block.mlp, model.blocks[0].block.mixer
    assert mlp is not None
    assert (mlp.activation, mlp.gated, mlp.bias) == ("squared_relu", False, False)
    assert isinstance(mixer, AttentionSpec)
    assert not mixer.qkv_bias
    assert not mixer.out_bias
    assert (model.tied_embeddings, model.position, model.norm) == (False, PositionKind.ROTARY, NormKind.LAYER)


@pytest.mark.parametrize(
    ("release", "kept"), [("25.01.1", {"qkv", "out"}), ("25.02.02", {"qkv"}), ("25.04.02", {"qkv"})]
)
def test_maxtext_keeps_products_of_attention(release: str, kept: set[str]) -> None:
    """dgxc-benchmarking, maxtext/configure.sh of that release: POLICY, CONFIG_OVERRIDES."""
    one = row(
        framework=f"MaxText (DGX Cloud recipe v{release})", precision="fp8", zero_stage="3", recompute=""
    )
    assert job_of_row(one).preset.recomputation.keeps == kept
    assert recipes.recomputes(one) == (Recompute.FULL,)
    assert not job_of_row(row(framework="MaxText")).preset.recomputation.keeps
