"""Rows of a measurements file as questions: made-up rows of the schema, never published ones."""

import pytest

from benchmarks.accuracy_rows.clauses import Reading, readings
from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.hardware import cluster_of, fabric_of
from benchmarks.accuracy_rows.model import model_of
from benchmarks.accuracy_rows.notes import notes_of
from benchmarks.accuracy_rows.plan import candidates_of
from benchmarks.accuracy_rows.row import RowError
from ops.recompute import Recompute
from solver.pipeline.schedules import Schedule
from spec.mixers.attention import AttentionKind
from spec.model import ModelSpec, NormKind, PositionKind
from tests.benchmarks.made_up_rows import EXPERTS, ROOT, job_of_row, plans, predict, row


def test_stated_degrees_become_one_plan() -> None:
    (plan,) = plans()
    assert (plan.tp, plan.pp, plan.dp, plan.micro_batch, plan.num_micro) == (2, 2, 2, 1, 4)
    assert plan.strategy == "fsp"
    assert (plan.zero_stage, plan.zero_size) == (1, 2)
    assert plans(sp="0")[0].strategy == "mtp"


@pytest.mark.parametrize(
    ("cells", "stage", "size"),
    [
        ({"zero_stage": ""}, 0, 1),
        ({"zero_stage": "0"}, 0, 1),
        ({"notes": "zero1 shard group=8 GPUs", "num_gpus": 64, "dp": 16}, 1, 8),
        ({"notes": "zero1 shard group=all GPUs", "num_gpus": 64, "dp": 16}, 1, 16),
        ({"notes": "Megatron-FSDP shard group=4", "zero_stage": "3", "num_gpus": 64, "dp": 16}, 3, 4),
        ({"notes": "sharding=HSDP", "zero_stage": "3", "num_gpus": 64, "dp": 16}, 3, 8),
    ],
)
def test_shard_groups_are_read_from_notes(cells: dict[str, object], stage: int, size: int) -> None:
    (plan,) = plans(**({"global_batch_sequences": 64} | cells))
    assert (plan.zero_stage, plan.zero_size) == (stage, size)


@pytest.mark.parametrize(("dataset", "overlaps"), [("simumax_b200", False), ("made_up", True)])
def test_a_source_without_overlap_waits_for_tensor_communication(dataset: str, overlaps: bool) -> None:
    one = row(dataset=dataset)
    preset = job_of_row(one).preset
    assert (preset.tensor_parallel.overlap_backward, preset.data_parallel.overlap_grad_reduce) == (
        overlaps,
        overlaps,
    )


def test_a_stated_layout_is_the_plans_where_it_fits() -> None:
    assert plans(notes="pp_layout=Et*3|tL; bf16")[0].stage_layout == "Et*3|tL"
    assert plans(notes="pp_layout=Et*3|t*2L")[0].stage_layout == ""
    assert plans(notes="pp_layout=None")[0].stage_layout == ""


def test_unknown_settings_become_candidates_and_none_looks_at_the_measurement() -> None:
    unknown = {"micro_batch": "", "recompute": "unknown"}
    found = plans(**unknown)
    assert {plan.micro_batch for plan in found} == {1, 2, 4}  # 8 sequences over dp 2: 4 a rank
    assert {plan.recompute for plan in found} == set(Recompute) - {Recompute.BLOCK}
    fast, slow = predict(row(**unknown, measured_step_s=1e-6), row(**unknown, measured_step_s=1e6))
    assert fast.answer is not None
    assert slow.answer is not None
    assert fast.answer.plan == slow.answer.plan
    assert fast.step_s == slow.step_s


def test_a_smaller_last_micro_batch_lies_between_its_neighbours() -> None:
    three, part, four = (row(global_batch_sequences=n, dp=1, num_gpus=4, micro_batch=2) for n in (6, 7, 8))
    low, middle, high = (one.step_s for one in predict(three, part, four))
    assert low is not None
    assert middle is not None
    assert high is not None
    assert middle == pytest.approx((low + high) / 2, rel=1e-9)


def test_expert_groups() -> None:
    assert plans(**EXPERTS, num_gpus=8, dp=4, ep=2)[0].etp == 2  # Megatron-Core's default: tp
    assert plans(**EXPERTS, num_gpus=8, dp=4, ep=2, notes="expert TP(ETP)=1; capacity factor 1")[0].etp == 1
    one = row(**EXPERTS, notes="token drop capacity factor 1.25", shared_experts=2, model_name="qwen2-x")
    model, _ = model_of(one, notes_of(one))
    moe = model.blocks[0].block.moe
    assert moe is not None
    assert (moe.capacity_factor, moe.shared_ffn_hidden, moe.shared_gate) == (1.25, 512, True)


def test_model_families() -> None:
    llama, _ = model_of(row(), notes_of(row()))
    assert (llama.norm, llama.position, llama.tied_embeddings) == (NormKind.RMS, PositionKind.ROTARY, False)
    gpt_row = row(model_name="gpt-x", gated_mlp=0)
    gpt, _ = model_of(gpt_row, notes_of(gpt_row))
    assert (gpt.norm, gpt.position, gpt.tied_embeddings) == (NormKind.LAYER, PositionKind.LEARNED, True)
    assert gpt.max_positions == 256
    assert gpt.blocks[0].block.mixer.qkv_bias
    first = row(**EXPERTS | {"moe_layer_freq": "first1dense"}, model_name="deepseek-x")
    deep, gaps = model_of(first, notes_of(first))
    assert [run.count for run in deep.blocks] == [1, 3]
    assert deep.blocks[0].block.mlp is not None
    assert deep.blocks[1].block.mixer.kind is AttentionKind.MLA
    assert Gap.LATENT_SHAPES in gaps
    windowed = row(**EXPERTS | {"pp": "2"}, model_name="gpt-oss-x")
    oss, _ = model_of(windowed, notes_of(windowed))
    assert [run.count for run in oss.blocks] == [1, 1, 1, 1]
    assert [run.block.mixer.window for run in oss.blocks] == [None, 128, None, 128]


@pytest.mark.parametrize(
    ("text", "per_gpu", "nics"),
    [
        # gigabits per second per node or GPU -> bytes per second per GPU of an 8-GPU node
        ("4x100 Gb/s RoCE per node", 6.25e9, 4),
        ("8x200 Gb/s HDR", 25e9, 8),
        ("800 Gb/s per node (4xHDR)", 12.5e9, 4),
        ("1600 Gb/s per node RoCE", 25e9, 0),
        ("IB, 400 Gb/s per GPU", 50e9, 8),
        ("1.6 Tb/s per node", 25e9, 0),
    ],
)
def test_fabrics(text: str, per_gpu: float, nics: int) -> None:
    fabric = fabric_of(text, 8)
    assert fabric is not None
    assert fabric.bandwidth == pytest.approx(per_gpu)
    assert fabric.nics == nics


def test_a_fabric_nobody_states_stays_the_sheets() -> None:
    assert fabric_of("InfiniBand, not stated", 8) is None
    stated = cluster_of(row(inter_node="4x100 Gb/s"), ROOT)
    unstated = cluster_of(row(), ROOT)
    assert stated.domains[-1].bandwidth == pytest.approx(6.25e9)
    assert unstated.domains[-1].bandwidth == pytest.approx(25e9)  # DGX A100: 200 Gb/s per GPU


def test_schedules_and_chunks() -> None:
    deep = {"pp": 4, "tp": 1, "sp": 0, "dp": 2, "layers": 16, "notes": "schedule=ZB-2p"}
    assert plans(**deep)[0].schedule is Schedule.ZB_2P
    assert plans(**deep | {"notes": "schedule=1F1B-I", "vpp": 2})[0].vpp == 2
    assert {plan.vpp for plan in plans(**deep | {"notes": "", "vpp": ""})} == {1, 2, 4}  # 4 layers a stage
    assert {plan.vpp for plan in plans(**deep | {"notes": "", "vpp": "", "layers": 18})} == {1}


def test_chunks_of_stages_that_count_embedding_and_loss_as_layers() -> None:
    """14 layers on 4 stages: 16 with the two ends, as Llama 3's 126 on 16 are 128 (arXiv 2407.21783 sec. 3.3.2)."""
    deep = {"pp": 4, "tp": 1, "sp": 0, "dp": 2, "layers": 14, "vpp": ""}
    assert {plan.vpp for plan in plans(**deep, framework="Meta 4D")} == {1, 2, 4}
    assert {plan.vpp for plan in plans(**deep, framework="Megatron-DeepSpeed")} == {1}


@pytest.mark.parametrize(
    ("notes", "vpp"),
    [("schedule Interleaved 1F1B", 2), ("schedule=Interleaved1F1B", 2), ("schedule 1F1B", 1), ("", 1)],
)
def test_torchtitan_cuts_a_rank_in_two_stages_under_an_interleaved_schedule(notes: str, vpp: int) -> None:
    """torchtitan/distributed/pipeline_parallel.py: stages_per_rank 1 or 2."""
    deep = {"pp": 4, "tp": 1, "sp": 0, "dp": 2, "layers": 16, "vpp": "", "zero_stage": 1}
    found = plans(**deep, framework="torchtitan FSDP2+PP+compile", notes=notes)
    assert {(plan.schedule, plan.vpp) for plan in found} == {(Schedule.ONE_F_ONE_B, vpp)}
    assert {reading for reading, _ in readings(row(notes=notes))} <= {Reading.TAKEN}


@pytest.mark.parametrize(
    ("gpu", "sheet"),
    [
        ("H200-141GB", "h200"),
        ("A100-80GB-PCIe", "a100-pcie-80g"),
        ("V100-32GB", "dgx2-v100"),
        ("GB300", "gb300-nvl72"),
        ("GH200 96GB", "jupiter-booster"),
        ("H20-SXM", "h20"),
        ("A100-SXM4-40GB", "a100-sxm-40g"),
        ("A100-PCIe", "a100-pcie-80g"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40g"),
        ("H100 PCIe", "h100-pcie"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("A10G-24GB", "aws-g5"),
        ("NVIDIA A40", "a40"),
        ("RTX A6000", "rtx-a6000"),
        ("A6000-48GB", "rtx-a6000"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD MI325X", "mi325x"),
    ],
)
def test_gpus_are_found_by_the_start_of_their_name(gpu: str, sheet: str) -> None:
    assert cluster_of(row(gpu=gpu), ROOT).name == sheet


@pytest.mark.parametrize(
    "gpu",
    [
        "H100-NVL",
        "H200 NVL",
        "V100-PCIe",
        "A800-PCIe",
        "GH200-144GB",
        "RTX 4090 D",
        "A4000",
        "RTX 6000 Ada",
        "A6000 Ada",
        "L40",
        "A10",
    ],
)
def test_a_card_is_not_taken_for_the_module_of_its_name(gpu: str) -> None:
    with pytest.raises(RowError, match="no hardware sheet"):
        cluster_of(row(gpu=gpu), ROOT)


def test_a_row_of_maxtext_is_compiled_code_that_casts_weights_anew() -> None:
    """MaxText e591f30: layers/quantizations.py, Fp8DirectDotGeneralOp; jax keeps no casts from one product to
    the next.
    """
    job = job_of_row(row(framework="MaxText (DGX Cloud recipe v25.04.02)", precision="fp8", zero_stage="3"))
    assert (job.preset.name, job.preset.host.code) == ("maxtext", "compiled")
    assert (job.precision.scaling, job.precision.casts_every_forward) == ("delayed", True)


def test_deepseeks_own_framework_has_its_preset() -> None:
    assert job_of_row(row(framework="HAI-LLM")).preset.name == "hai-llm"


def test_an_unknown_framework_is_priced_and_named() -> None:
    (one,) = predict(row(framework="Pencil"))
    assert one.step_s is not None
    assert Gap.UNKNOWN_FRAMEWORK in one.gaps


def test_interleaved_stages_take_micro_batches_in_turns_of_pp() -> None:
    deep = {"pp": 4, "tp": 1, "sp": 0, "dp": 1, "num_gpus": 4, "layers": 16, "vpp": 2}
    six, eight, twelve = (row(**deep, global_batch_sequences=n) for n in (6, 8, 12))
    notes = notes_of(six)
    (candidate,) = candidates_of(six, notes, job_of_row(six))[0]
    assert (candidate.plan.num_micro, candidate.longer.num_micro, candidate.beyond) == (4, 8, 0.5)
    low, middle, high = (one.step_s for one in predict(six, eight, twelve))
    assert low is not None
    assert middle is not None
    assert high is not None
    assert low < middle < high


@pytest.mark.parametrize(
    ("gpu", "words", "latency_s", "bandwidth", "nics"),
    [
        ("H100-80GB", "EFA (bandwidth not stated)", 20e-6, 50e9, 32),
        ("A100-40GB", "EFA", 75e-6, 6.25e9, 4),
        ("B200", "EFA", 18e-6, 50e9, 8),
        ("A100-80GB", "4x100 Gb/s RoCE per node", 2.7e-6, 6.25e9, 4),
        ("B300-SXM", "ConnectX IB, not stated", 2.7e-6, 100e9, 8),
    ],
)
def test_a_named_fabric_has_its_own_latency_and_the_rows_rate(
    gpu: str, words: str, latency_s: float, bandwidth: float, nics: int
) -> None:
    cluster = cluster_of(row(gpu=gpu, inter_node=words), ROOT)
    outer = cluster.domains[-1]
    assert (outer.latency_s, outer.bandwidth, cluster.nics_per_node) == (latency_s, bandwidth, nics)


def test_families_outside_nvidias_recipes_are_known_by_name() -> None:
    """config.json of gpt-neox-20b, bloom, opt and falcon."""

    def read(name: str) -> ModelSpec:
        one = row(model_name=name, gated_mlp="0")
        return model_of(one, notes_of(one))[0]

    neox, bloom, opt, falcon = map(read, ("gpt-neox-20b", "bloom-176b", "opt-175b", "falcon-40b"))
    assert [one.blocks[0].block.parallel_residual for one in (neox, bloom, opt, falcon)] == [1, 0, 0, 1]
    assert [one.tied_embeddings for one in (neox, bloom, opt, falcon)] == [0, 1, 1, 1]
    assert (neox.position, opt.position) == (PositionKind.ROTARY, PositionKind.LEARNED)
    assert bloom.embedding_norm
    halves = [one.blocks[0].block.mlp for one in (neox, bloom, opt, falcon)]
    assert [(one.activation, one.bias) for one in halves if one is not None] == [
        ("gelu", True),
        ("gelu", True),
        ("relu", True),
        ("gelu", False),
    ]
    assert read("pythia-12b").blocks == neox.blocks
