"""Published steps and a golden of predictions, priced from what the project ships.

Each is asked as a row that states its question (benchmarks/published_rows.py).
"""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.published_rows import RowPrediction
from benchmarks.row_scores import measured_step_s, memory_gib
from solver.estimate import STEP_PARTS
from tests.benchmarks.made_up_rows import predict, row

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = tomllib.loads((ROOT / "tests" / "published.toml").read_text("utf-8"))["step"]
NAMES = [f"{one['gpus']}x{one['hidden']}-{one['recompute']}-{number}" for number, one in enumerate(PUBLISHED)]


MODEL = """source = "published"

[model]
hidden = {hidden}
vocab = 51200
tied_embeddings = true
position = "learned"
max_positions = 2048
norm = "layernorm"

[[model.blocks]]
count = {layers}
attention = {{ num_heads = {heads}, qkv_bias = true, out_bias = true }}
mlp = {{ ffn_hidden = {ffn}, gated = false, bias = true }}
"""


def predicted_row(folder: Path, one: dict[str, object]) -> RowPrediction:
    """The prediction of a published step."""
    hidden = int(str(one["hidden"]))
    strategy = "fsp" if one["sequence_parallel"] else "mtp"
    plan = {key: one[key] for key in ("tp", "pp", "vpp", "micro_batch", "recompute")} | {"strategy": strategy}
    (found,) = predict(
        row(
            folder,
            MODEL.format(**one, ffn=4 * hidden),
            dataset="megatron_sc21" if "tflops_per_gpu" in one else "megatron_seqpar",
            num_gpus=one["gpus"],
            seq_len=2048,
            global_batch_sequences=one["global_batch_sequences"],
            preset="megatron-2021",
            job=one["job"],
            plans=",".join(f"{key}={value}" for key, value in plan.items()),
            hidden=hidden,
            layers=one["layers"],
            vocab=51200,
            measured_step_s=one.get("step_s", ""),
            measured_tflops_per_gpu=one.get("tflops_per_gpu", ""),
        )
    )
    return found


@pytest.fixture(scope="module")
def predictions(tmp_path_factory: pytest.TempPathFactory) -> list[RowPrediction]:
    return [predicted_row(tmp_path_factory.mktemp("row"), one) for one in PUBLISHED]


@pytest.mark.parametrize("number", range(len(PUBLISHED)), ids=NAMES)
def test_a_published_step_is_told(predictions: list[RowPrediction], number: int) -> None:
    one, predicted = PUBLISHED[number], predictions[number]
    measured = measured_step_s(predicted.row)
    assert measured is not None
    assert predicted.step_s == pytest.approx(measured, rel=one["within"]), one["source"]
    assert predicted.answer is not None
    assert predicted.answer.origins_s.get("measured", 0.0) == 0.0


def test_selective_recomputation_saves_what_the_paper_measured(predictions: list[RowPrediction]) -> None:
    # arXiv 2205.05198 table 5: 22B 1.42 s -> 1.10 s, a throughput gain of 29 %.
    full, selective = (
        predicted.step_s for one, predicted in zip(PUBLISHED, predictions, strict=True) if one["hidden"] == 6144
    )
    assert full / selective == pytest.approx(1.42 / 1.10, rel=0.1)


def test_predictions_stay_as_they_are(predictions: list[RowPrediction], golden: Callable[[str, str], None]) -> None:
    """A change that moves a prediction shows here: step, parts in shares of it, memory."""
    lines = []
    for name, predicted in zip(NAMES, predictions, strict=True):
        assert predicted.answer is not None
        shares = [(part, predicted.answer.parts_s[part] / predicted.answer.step_s) for part in STEP_PARTS]
        shown = " ".join(f"{part}={share:.4f}" for part, share in shares if share >= 0.00005)
        lines.append(f"{name} step_s={predicted.step_s:.5g} memory_gib={memory_gib(predicted):.4g} {shown}\n")
    golden("predictions.txt", "".join(lines))
