"""Rows of a measurements file as questions: made-up rows of the schema, never published ones."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.accuracy_rows.books import Books, open_books
from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.hardware import cluster_of, fabric_of
from benchmarks.accuracy_rows.job import job_of
from benchmarks.accuracy_rows.measured import measured_step_s
from benchmarks.accuracy_rows.model import model_of
from benchmarks.accuracy_rows.notes import notes_of
from benchmarks.accuracy_rows.plan import candidates_of
from benchmarks.accuracy_rows.pricing import Prediction, Pricing
from benchmarks.accuracy_rows.residuals import gap_lines, residuals
from benchmarks.accuracy_rows.row import REQUIRED_COLUMNS, Row, RowError, read_rows
from ops.recompute import Recompute
from ops.strategies.sharding import StrategyName
from solver.plans import Plan
from solver.schedules import Schedule
from spec.errors import ConfigError
from spec.model import AttentionKind, NormKind, PositionKind

ROOT = Path(__file__).resolve().parent.parent.parent

# A small dense Llama on one node; every test changes the few cells it is about.
CELLS = {
    "dataset": "made_up",
    "row_id": "r1",
    "gpu": "A100-80GB",
    "gpus_per_node": "8",
    "num_gpus": "8",
    "inter_node": "",
    "framework": "Megatron-LM",
    "precision": "bf16",
    "model_name": "llama-tiny",
    "hidden": "512",
    "ffn_hidden": "1024",
    "layers": "4",
    "heads": "8",
    "kv_heads": "8",
    "head_dim": "64",
    "vocab": "1000",
    "seq_len": "256",
    "gated_mlp": "1",
    "num_experts": "",
    "topk": "",
    "moe_ffn_hidden": "",
    "moe_layer_freq": "",
    "shared_experts": "",
    "tp": "2",
    "sp": "1",
    "pp": "2",
    "vpp": "1",
    "cp": "1",
    "ep": "1",
    "dp": "2",
    "zero_stage": "1",
    "micro_batch": "1",
    "global_batch_sequences": "8",
    "recompute": "none",
    "flash_attention": "1",
    "measured_step_s": "1.5",
    "notes": "",
}
EXPERTS = {"num_experts": "8", "topk": "2", "moe_ffn_hidden": "256", "moe_layer_freq": "1", "pp": "1"}


def row(**cells: object) -> Row:
    return Row(path="made_up.csv", line=2, cells=CELLS | {name: str(value) for name, value in cells.items()})


def plans(**cells: object) -> list[Plan]:
    one = row(**cells)
    notes = notes_of(one)
    return [candidate.plan for candidate in candidates_of(one, notes, job_of(one, notes)[0])[0]]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(CELLS))
        writer.writeheader()
        writer.writerows(rows)
    return path


def predict(*rows: Row) -> list[Prediction]:
    return Pricing(root=ROOT, books=Books(root=ROOT, measured={})).predict(rows)


def test_stated_degrees_become_one_plan() -> None:
    (plan,) = plans()
    assert (plan.tp, plan.pp, plan.dp, plan.micro_batch, plan.num_micro) == (2, 2, 2, 1, 4)
    assert plan.strategy is StrategyName.FSP
    assert (plan.zero_stage, plan.zero_size) == (1, 2)
    assert plans(sp="0")[0].strategy is StrategyName.MTP


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


def test_unknown_settings_become_candidates_and_none_looks_at_the_measurement() -> None:
    unknown = {"micro_batch": "", "recompute": "unknown"}
    found = plans(**unknown)
    assert {plan.micro_batch for plan in found} == {1, 2, 4}  # 8 sequences over dp 2: 4 a rank
    assert {plan.recompute for plan in found} == set(Recompute)
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
    assert gpt.blocks[0].block.attention.qkv_bias
    first = row(**EXPERTS | {"moe_layer_freq": "first1dense"}, model_name="deepseek-x")
    deep, gaps = model_of(first, notes_of(first))
    assert [run.count for run in deep.blocks] == [1, 3]
    assert deep.blocks[0].block.mlp is not None
    assert deep.blocks[1].block.attention.kind is AttentionKind.MLA
    assert Gap.LATENT_SHAPES in gaps
    windowed = row(**EXPERTS | {"pp": "2"}, model_name="gpt-oss-x")
    oss, _ = model_of(windowed, notes_of(windowed))
    assert [run.count for run in oss.blocks] == [1, 1, 1, 1]
    assert [run.block.attention.window for run in oss.blocks] == [None, 128, None, 128]


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


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "Abacus-9000"}, "no hardware sheet"),
        ({"hidden": ""}, "hidden = ''"),
        ({"hidden": "many"}, "must be a number"),
        ({"layers": "-3"}, "not negative"),
        ({"layers": "2.5"}, "whole number"),
        ({"tp": "3"}, "does not divide num_gpus"),
        ({"dp": "7"}, "num_gpus / (tp pp cp) is 2"),
        ({"framework": "Pencil"}, "no preset"),
        ({"precision": "int7"}, "precision"),
        ({"recompute": "twice"}, "recompute"),
        ({"global_batch_sequences": ""}, "global_batch_sequences"),
        (EXPERTS | {"moe_layer_freq": "every7"}, "moe_layer_freq"),
    ],
)
def test_a_bad_cell_is_a_reason_with_its_line_and_never_a_dropped_row(
    cells: dict[str, object], reason: str
) -> None:
    bad, good = predict(row(**cells), row(row_id="r2"))
    assert bad.step_s is None
    assert bad.reason.startswith("made_up.csv:2: ")
    assert reason in bad.reason
    assert good.step_s is not None
    assert good.step_s > 0
    assert any(reason in line for line in gap_lines([bad, good]))


def test_every_row_is_in_the_file_and_priced_alike_alone_and_together(tmp_path: Path) -> None:
    rows = [
        CELLS,
        CELLS | {"row_id": "r2", "gpu": "Abacus-9000"},
        CELLS | {"row_id": "r3", "pp": "1", "dp": "4"},
    ]
    measurements = write(tmp_path / "rows.csv", rows)
    out = tmp_path / "pred.csv"
    command = [
        sys.executable,
        "benchmarks/accuracy.py",
        "--measurements",
        str(measurements),
        "--out",
        str(out),
    ]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "3 rows, 2 priced" in told.stdout
    with out.open(encoding="utf-8") as handle:
        found = list(csv.DictReader(handle))
    assert [line["row_id"] for line in found] == ["r1", "r2", "r3"]
    assert [bool(line["pred_step_s"]) for line in found] == [True, False, True]
    assert ":3: gpu" in found[1]["reason"]
    shares = sum(float(value) for name, value in found[0].items() if name.startswith("part_"))
    assert shares == pytest.approx(1.0, abs=0.01)
    (alone,) = predict(row(row_id="r3", pp=1, dp=4))
    assert float(found[2]["pred_step_s"]) == pytest.approx(alone.step_s, rel=1e-5)


def test_malformed_files(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", [CELLS])
    with path.open("a", encoding="utf-8") as handle:
        handle.write("made_up,short,line\n")
    good, short = read_rows([tmp_path])
    assert not good.fault
    assert f"{path}:3: 3 cells" in short.fault
    assert predict(short)[0].reason == short.fault
    empty = tmp_path / "empty.csv"
    empty.write_text("dataset,row_id\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"empty.csv:1"):
        read_rows([empty])
    with pytest.raises(ConfigError, match="nowhere"):
        read_rows([tmp_path / "nowhere.csv"])


def test_empty_cells_are_unknown_and_not_zero() -> None:
    assert row(tp="").whole_or("tp", 1) == 1
    assert not row(micro_batch="unknown").known("micro_batch")
    with pytest.raises(RowError):
        row(seq_len="").whole("seq_len")
    assert set(REQUIRED_COLUMNS) <= set(CELLS)


def test_measured_time_and_residual_splits() -> None:
    assert measured_step_s(row()) == 1.5
    tokens = row(measured_step_s="", measured_tokens_per_s_per_gpu="256")
    assert measured_step_s(tokens) == pytest.approx(8 * 256 / (256 * 8))
    assert measured_step_s(row(measured_step_s="")) is None
    (one,) = predict(row())
    by_dataset = next(found for found in residuals([one]) if found.split == "dataset")
    assert one.step_s is not None
    assert by_dataset.mape == pytest.approx(abs(one.step_s / 1.5 - 1))


def test_memory_is_what_the_dataset_measured() -> None:
    allocated, reserved, device = predict(
        row(dataset="simumax_b200"), row(dataset="torchtitan"), row(dataset="bigscience", notes="")
    )
    for one in (allocated, reserved, device):
        assert one.answer is not None
        assert one.memory_gib is not None
    assert allocated.memory_gib == pytest.approx(allocated.answer.allocated_bytes / 2**30)
    assert reserved.memory_gib == pytest.approx(reserved.answer.reserved_bytes / 2**30)
    assert device.memory_gib == pytest.approx(device.answer.device_bytes / 2**30)


def test_curves_change_the_price_and_are_restated_for_the_same_generation(tmp_path: Path) -> None:
    gemms = [
        f"A100-80GB,{m},{n},{k},bf16,{1e6 * 2 * m * n * k / 100e12 + 5}"
        for m in (64, 256, 1024)
        for n in (128, 512, 2048)
        for k in (256, 512, 1024)
    ]
    (tmp_path / "gemm.csv").write_text("gpu,m,n,k,dtype,latency_us\n" + "\n".join(gemms) + "\n", "utf-8")
    books = open_books(ROOT, tmp_path, None)
    rows = [row(), row(gpu="A800-80GB")]
    with_curves = Pricing(root=ROOT, books=books).predict(rows)
    for measured, modelled in zip(with_curves, predict(*rows), strict=True):
        assert measured.step_s is not None
        assert modelled.step_s is not None
        assert measured.step_s != pytest.approx(modelled.step_s, rel=1e-3)
    own, other = (one.answer for one in with_curves)
    assert own is not None
    assert other is not None
    assert own.origins_s["measured"] + own.origins_s["extrapolated"] > 0
    assert other.origins_s["transferred"] > 0


def test_schedules_and_chunks() -> None:
    deep = {"pp": 4, "tp": 1, "sp": 0, "dp": 2, "layers": 16, "notes": "schedule=ZB-2p"}
    assert plans(**deep)[0].schedule is Schedule.ZB_2P
    assert plans(**deep | {"notes": "schedule=1F1B-I", "vpp": 2})[0].vpp == 2
    assert {plan.vpp for plan in plans(**deep | {"notes": "", "vpp": ""})} == {1, 2, 4}  # 4 layers a stage
    assert {plan.vpp for plan in plans(**deep | {"notes": "", "vpp": "", "layers": 18})} == {1}
