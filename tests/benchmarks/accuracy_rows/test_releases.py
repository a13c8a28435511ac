"""Releases of Megatron-LM as people name them, each with what its code does otherwise."""

import pytest

from benchmarks.accuracy_rows.clauses import Reading, readings
from benchmarks.accuracy_rows.releases import NEWEST, UNNUMBERED_CORE, Release, release_of
from ops.recompute import Recompute
from solver.pipeline.schedules import Schedule
from tests.benchmarks.made_up_rows import EXPERTS, job_of_row, plans, predict, row


@pytest.mark.parametrize(
    ("framework", "release"),
    [
        ("Megatron-LM", NEWEST),
        ("Megatron-LM@23e00ed0 + TE 2.11", NEWEST),
        ("Megatron-LM + Transformer Engine 0.11", NEWEST),
        ("Megatron-Core", UNNUMBERED_CORE),
        ("Megatron-Core r0.8.0", (0, 8, 0)),
        ("Megatron-LM core_r0.15.0", (0, 15, 0)),
        ("Megatron-LM v0.12.0rc3 + TE 2.1", (0, 12, 0)),
        ("Megatron-LM (core_v0.12.2)", (0, 12, 2)),
        ("MCore 0.11", (0, 11, 0)),
        ("Megatron-LM v2.6", (0, 0, 2, 6)),
        ("Megatron-LM v3.0.2", (0, 0, 3, 0)),
        ("Megatron-LM 23.06", (0, 0, 3, 0)),
        ("Megatron-LM 24.03", (0, 5)),
        ("Megatron-LM 24.09-alpha", (0, 8)),
    ],
)
def test_releases_are_read_out_of_names(framework: str, release: Release) -> None:
    assert release_of(framework) == release


@pytest.mark.parametrize(
    ("framework", "fused", "turned", "sent", "shared"),
    [
        ("Megatron-LM core_r0.4.0", False, False, False, False),
        ("Megatron-Core r0.8.0", True, False, False, False),
        ("Megatron-Core", True, False, False, False),
        ("Megatron-LM v0.11.0", True, True, False, False),
        ("Megatron-LM v0.12.0rc3", True, True, False, False),
        ("Megatron-LM v0.12.1", True, True, True, False),
        ("Megatron-Core 0.13", True, True, True, False),
        ("Megatron-Core 0.14", True, True, True, True),
        ("Megatron-LM", True, True, True, True),
    ],
)
def test_a_core_does_what_its_release_had(
    framework: str, fused: bool, turned: bool, sent: bool, shared: bool
) -> None:
    """core 0.5 fuses SwiGLU, 0.11 turns chunks of a capacity, 0.12.1 sends probabilities, 0.14 saves original inputs."""
    layers = job_of_row(row(framework=framework, **EXPERTS)).preset.layers
    found = (layers.fused_activation, layers.turns_chunks, layers.sends_probabilities)
    assert (*found, layers.shares_kept_inputs) == (fused, turned, sent, shared)


@pytest.mark.parametrize(
    ("framework", "dealt"),
    [("Megatron-Core 0.10", ""), ("Megatron-Core 0.12", "ends"), ("Megatron-Core 0.13", "layout")],
)
def test_layers_over_chunks_are_dealt_as_the_release_can(framework: str, dealt: str) -> None:
    """account_for_embedding_in_pipeline_split is of core 0.11, pipeline_model_parallel_layout of 0.13."""
    assert job_of_row(row(framework=framework)).preset.pipeline.uneven_chunks == dealt


@pytest.mark.parametrize(
    ("framework", "kept"),
    [
        ("Megatron-LM core_r0.12.0 + TE 2.1", False),
        ("Megatron-LM core_r0.12.0 + TE 2.3", True),
        ("Megatron-LM core_r0.12.0", False),
        ("Megatron-LM core_r0.13.0", True),
        ("Megatron-LM@23e00ed0 + TE 2.11", True),
        ("Megatron-LM core_r0.15.0 + Transformer Engine 1.13", False),
    ],
)
def test_the_engine_beside_a_release_decides_about_stand_ins(framework: str, kept: bool) -> None:
    assert job_of_row(row(framework=framework)).preset.data_parallel.keeps_stand_ins is kept


@pytest.mark.parametrize(
    ("framework", "precision", "dtype", "kernel"),
    [
        ("Megatron-LM", "bf16", "fp32", "accumulate_fp32"),
        ("Megatron-LM", "fp16", "fp16", "accumulate_16bit"),
        ("Megatron-LM v3.0", "fp16", "fp16", "accumulate_16bit"),
        ("Megatron-LM v3.0", "bf16", "fp32", "accumulate_fp32"),
        ("Megatron-LM v2.5", "fp16", "fp16", "accumulate"),
        ("Megatron-LM v2.5", "bf16", "fp32", "accumulate_wide"),
    ],
)
def test_gradients_are_added_up_as_format_and_release_say(
    framework: str, precision: str, dtype: str, kernel: str
) -> None:
    """arguments.py: "bfloat16 requires gradient accumulation and all-reduce to be done in fp32"; fused since 2022."""
    read = job_of_row(row(framework=framework, precision=precision))
    assert read.precision.gradient == dtype
    assert read.preset.data_parallel.accumulation == kernel


def test_before_core_messages_block_and_norms_are_elementwise() -> None:
    read = job_of_row(row(framework="Megatron-LM v3.0.2"))
    assert read.preset.name == "megatron-2021"
    assert not read.preset.pipeline.overlap_hops
    assert not read.preset.data_parallel.overlap_grad_reduce
    assert not read.preset.layers.two_pass_norms
    assert read.preset.data_parallel.gradient_sync == "reduce_scatter"
    assert read.attention_kernel == "flash1"
    assert read.unfused == {"rotary", "norm"}
    assert job_of_row(row(framework="Megatron-LM v2.5")).preset.layers.two_pass_norms


def test_an_older_release_is_never_faster() -> None:
    """What releases added saves passes, waits or bytes."""
    names = ("v2.5", "v3.0", "core_r0.4.0", "core_r0.8.0", "core_r0.14.0")
    wide = {
        "hidden": 4096,
        "ffn_hidden": 11008,
        "heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
        "seq_len": 4096,
    }
    rows = [row(framework=f"Megatron-LM {name}", flash_attention="0", **wide) for name in names]
    steps = [one.step_s or 0.0 for one in predict(*rows)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1] > 0.0


@pytest.mark.parametrize(
    ("framework", "preset"),
    [
        ("NeMo/Megatron-Core", "nemo"),
        ("NeMo 1.23", "nemo"),
        ("NeMo Framework 24.07", "nemo"),
        ("NeMo 2.0", "nemo2"),
        ("NVIDIA NeMo v2.2.0", "nemo2"),
        ("NeMo Framework 25.02", "nemo2"),
        ("NeMo 24.12", "nemo2"),
        ("NeMo 25.11", "megatron-bridge"),
        ("NeMo (DGX Cloud recipe v25.01.1)", "nemo2"),
    ],
)
def test_nemo_is_read_by_version_or_container(framework: str, preset: str) -> None:
    assert job_of_row(row(framework=framework)).preset.name == preset


def test_picotron_is_pure_bf16_and_adds_up_in_fp32_over_replicas_alone() -> None:
    """train.py: model.to(bfloat16), AdamW of it, DataParallelBucket where dp > 1, and nothing runs again."""
    read = job_of_row(row(framework="Picotron", dp="2"))
    assert (read.preset.name, read.attention_kernel) == ("picotron", "flash2")
    assert (read.precision.master, read.precision.moments, read.precision.gradient) == ("", "bf16", "fp32")
    alone = job_of_row(row(framework="picotron", tp="4", dp="1"))
    assert alone.precision.gradient == "bf16"
    unstated = plans(framework="picotron", recompute="unknown", zero_stage="0", sp="0", notes="schedule=AFAB")
    assert {plan.recompute for plan in unstated} == {Recompute.NONE}
    assert {plan.schedule for plan in unstated} == {Schedule.GPIPE}


@pytest.mark.parametrize(
    ("framework", "stage", "preset", "sync"),
    [
        ("DeepSpeed", 2, "deepspeed", "all_reduce"),
        ("DeepSpeed 0.16.4", 2, "deepspeed", "all_reduce"),
        ("DeepSpeed v0.9.2", 2, "deepspeed", "reduce_scatter"),
        ("DeepSpeed 0.9", 3, "deepspeed", "reduce_scatter"),
        ("DeepSpeed 0.5.3", 3, "deepspeed-2021", "reduce_scatter"),
        ("HF Trainer + DeepSpeed 0.12.6", 2, "xtuner", "reduce_scatter"),
        ("HF Trainer + DeepSpeed 0.14", 2, "xtuner", "all_reduce"),
    ],
)
def test_deepspeed_reduces_and_gathers_as_its_release_does(
    framework: str, stage: int, preset: str, sync: str
) -> None:
    read = job_of_row(row(framework=framework, zero_stage=stage, tp="1", pp="1", dp="8"))
    assert (read.preset.name, read.preset.data_parallel.gradient_sync) == (preset, sync)


@pytest.mark.parametrize(
    ("framework", "notes", "clips"),
    [
        ("torchtune FSDP2", "", False),
        ("llama-recipes FSDP", "", False),
        ("torchtitan FSDP2", "", True),
        ("Megatron-LM", "no gradient clipping", False),
        ("NeMo-AutoModel FSDP2", "mock data, balanced fake gate, no grad clipping", False),
    ],
)
def test_gradients_are_clipped_unless_framework_or_row_says_otherwise(
    framework: str, notes: str, clips: bool
) -> None:
    cells = row(framework=framework, notes=notes, tp="1", pp="1", dp="8", zero_stage="3")
    assert job_of_row(cells).preset.data_parallel.clips_gradients is clips
    assert {reading for reading, _ in readings(cells)} <= {Reading.TAKEN}


@pytest.mark.parametrize(
    ("framework", "precision", "delayed"),
    [
        ("Megatron-Core", "fp8", True),
        ("Megatron-LM v0.12.0", "fp8_hybrid", True),
        ("Megatron-LM", "fp8-current", False),
        ("Megatron-LM", "fp8-delayed", True),
        ("Megatron-LM", "mxfp8", False),
        ("Megatron-Bridge 26.02", "fp8", False),
    ],
)
def test_megatron_finds_scales_in_earlier_steps_unless_told_otherwise(
    framework: str, precision: str, delayed: bool
) -> None:
    """arguments.py: --fp8-recipe, default delayed; before core 0.12 there was no other."""
    read = job_of_row(row(framework=framework, precision=precision, gpu="H100-80GB"))
    assert (read.precision.scaling == "delayed") is delayed
