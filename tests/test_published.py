"""Published steps and a golden of predictions, priced from what the project ships.

The benchmark's own mapping of rows (benchmarks/accuracy_rows) prices both.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.accuracy_rows.books import Books
from benchmarks.accuracy_rows.measured import measured_step_s
from benchmarks.accuracy_rows.pricing import Prediction, Pricing
from benchmarks.accuracy_rows.row import Row
from solver.estimate import STEP_PARTS

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = tomllib.loads((ROOT / "tests" / "published.toml").read_text("utf-8"))["step"]
NAMES = [f"{one['gpus']}x{one['hidden']}-{one['recompute']}-{number}" for number, one in enumerate(PUBLISHED)]


def row_of(one: dict[str, object]) -> Row:
    """A published step as a row of the measurements' schema."""
    hidden, heads = int(str(one["hidden"])), int(str(one["heads"]))
    cells = {
        "dataset": "megatron_sc21" if "tflops_per_gpu" in one else "megatron_seqpar",
        "row_id": "published",
        "gpu": "A100-80GB",
        "gpus_per_node": 8,
        "num_gpus": one["gpus"],
        "inter_node": "8x200 Gb/s HDR IB per node",
        "framework": "Megatron-LM",
        "precision": "fp16",
        "model_name": f"gpt-{hidden}",
        "hidden": hidden,
        "ffn_hidden": 4 * hidden,
        "layers": one["layers"],
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "vocab": 51200,
        "seq_len": 2048,
        "gated_mlp": 0,
        "num_experts": "",
        "topk": "",
        "moe_ffn_hidden": "",
        "moe_layer_freq": "",
        "shared_experts": "",
        "sp": one["sequence_parallel"],
        "cp": 1,
        "ep": 1,
        "flash_attention": 0,
        "measured_step_s": one.get("step_s", ""),
        "measured_tokens_per_s_per_gpu": "",
        "measured_tflops_per_gpu": one.get("tflops_per_gpu", ""),
        "notes": "",
    }
    same = ("tp", "pp", "vpp", "dp", "zero_stage", "micro_batch", "global_batch_sequences", "recompute")
    cells |= {name: one[name] for name in same}
    return Row(path="published.toml", line=1, cells={name: str(value) for name, value in cells.items()})


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    return Pricing(root=ROOT, books=Books(root=ROOT, measured={})).predict([row_of(one) for one in PUBLISHED])


@pytest.mark.parametrize("number", range(len(PUBLISHED)), ids=NAMES)
def test_a_published_step_is_told(predictions: list[Prediction], number: int) -> None:
    one, predicted = PUBLISHED[number], predictions[number]
    measured = measured_step_s(predicted.row)
    assert measured is not None
    assert predicted.step_s == pytest.approx(measured, rel=one["within"]), one["source"]
    assert predicted.answer is not None
    assert predicted.answer.origins_s.get("measured", 0.0) == 0.0


def test_selective_recomputation_saves_what_the_paper_measured(predictions: list[Prediction]) -> None:
    # arXiv 2205.05198 table 5: 22B 1.42 s -> 1.10 s, a throughput gain of 29 %.
    full, selective = (
        predicted.step_s
        for one, predicted in zip(PUBLISHED, predictions, strict=True)
        if one["hidden"] == 6144 and predicted.step_s is not None
    )
    assert full / selective == pytest.approx(1.42 / 1.10, rel=0.1)


def test_predictions_stay_as_they_are(
    predictions: list[Prediction], golden: Callable[[str, str], None]
) -> None:
    """A change that moves a prediction shows here: step, parts in shares of it, memory."""
    lines = []
    for name, predicted in zip(NAMES, predictions, strict=True):
        assert predicted.answer is not None
        assert predicted.step_s is not None
        assert predicted.memory_gib is not None
        shares = [(part, predicted.answer.parts_s[part] / predicted.answer.step_s) for part in STEP_PARTS]
        shown = " ".join(f"{part}={share:.4f}" for part, share in shares if share >= 0.00005)
        lines.append(f"{name} step_s={predicted.step_s:.5g} memory_gib={predicted.memory_gib:.4g} {shown}\n")
    golden("predictions.txt", "".join(lines))
