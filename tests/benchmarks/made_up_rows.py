"""Made-up rows of the measurements schema; every test changes the few cells it is about."""

import csv
from pathlib import Path

from benchmarks.accuracy_rows.books import Books
from benchmarks.accuracy_rows.job import asked_job
from benchmarks.accuracy_rows.notes import notes_of
from benchmarks.accuracy_rows.plan import candidates_of
from benchmarks.accuracy_rows.pricing import Prediction, Pricing
from benchmarks.accuracy_rows.row import Row
from solver.plans.plan_table import Plan
from spec.job import JobSpec
from spec.settings.job import job_of

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


def job_of_row(one: Row) -> JobSpec:
    return job_of(asked_job(one, notes_of(one))[0])


def plans(**cells: object) -> list[Plan]:
    one = row(**cells)
    notes = notes_of(one)
    return [candidate.plan for candidate in candidates_of(one, notes, job_of_row(one))[0]]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(CELLS))
        writer.writeheader()
        writer.writerows(rows)
    return path


def predict(*rows: Row) -> list[Prediction]:
    return Pricing(root=ROOT, books=Books(root=ROOT, measured={})).predict(rows)
