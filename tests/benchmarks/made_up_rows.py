"""Made-up rows that state their question; every test changes the few cells it is about."""

import csv
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measured_times import MeasuredTimes
from benchmarks.published_rows import QUESTION, SIZES, Pricing, PublishedRow, RowPrediction, read_rows

ROOT = Path(__file__).resolve().parent.parent.parent

# A small dense Llama on one node.
CELLS = {
    "dataset": "made_up",
    "row_id": "r1",
    "num_gpus": "8",
    "seq_len": "256",
    "global_batch_sequences": "8",
    "measured_step_s": "1.5",
    "cluster": "a100-sxm-80g",
    "preset": "megatron",
    "job": "",
    "model_file": "tiny.toml",
    "plans": "strategy=fsp,tp=2,pp=2,zero_stage=1,zero_size=2,micro_batch=1",
}
MODEL = """source = "made up"

[model]
hidden = {hidden}
vocab = 1000

[[model.blocks]]
count = 4
attention = {{ num_heads = {heads} }}
mlp = {{ ffn_hidden = {ffn}, gated = true }}
"""
DENSE = MODEL.format(hidden=512, heads=8, ffn=1024)
LARGE = MODEL.format(hidden=4096, heads=32, ffn=11008)
EXPERTS = DENSE.replace(
    "mlp = { ffn_hidden = 1024, gated = true }", "moe = { num_experts = 8, topk = 2, expert_ffn_hidden = 256 }"
)


def write(folder: Path, *rows: Mapping[str, object], model: str = DENSE) -> Path:
    """A file of rows under ``folder``, beside a folder of models as the rows name them."""
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models" / "tiny.toml").write_text(model, encoding="utf-8")
    (folder / "dev").mkdir(exist_ok=True)
    path = folder / "dev" / "made_up.csv"
    with path.open("w", newline="", encoding="utf-8") as handle:
        columns = dict.fromkeys((*SIZES, *QUESTION, *CELLS, *(key for row in rows for key in row)))
        writer = csv.DictWriter(handle, list(columns), restval="")
        writer.writeheader()
        writer.writerows(CELLS | {key: str(value) for key, value in row.items()} for row in rows)
    return path


def row(folder: Path, model: str = DENSE, **cells: object) -> PublishedRow:
    (one,) = read_rows([write(folder, cells, model=model)])
    return one


def predict(*rows: PublishedRow) -> list[RowPrediction]:
    """From hardware specs alone."""
    return Pricing(root=ROOT, cost_model=MeasuredTimes(fitted={}).cost_model).predict(rows)
