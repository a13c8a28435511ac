"""Made-up rows priced: nothing dropped, nothing tuned, and what the printed tables say."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy_rows.books import open_books
from benchmarks.accuracy_rows.calibration import by_dataset, calibrated, priced_rows, steps_by
from benchmarks.accuracy_rows.coverage import coverage_lines
from benchmarks.accuracy_rows.measured import measured_step_s
from benchmarks.accuracy_rows.memory import memory_gib
from benchmarks.accuracy_rows.pricing import Pricing
from benchmarks.accuracy_rows.residuals import gap_lines, residuals
from benchmarks.accuracy_rows.row import REQUIRED_COLUMNS, RowError, read_rows
from spec.errors import ConfigError
from tests.benchmarks.made_up_rows import CELLS, EXPERTS, ROOT, predict, row, write


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
        (EXPERTS | {"ep": "3", "dp": ""}, "must divide the 8 ranks"),
        ({"vpp": "2", "notes": "schedule=ZB-1p"}, "must be 1"),
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
    predicted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert predicted.returncode == 0, predicted.stderr
    assert "3 rows, 2 priced" in predicted.stdout
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


@pytest.mark.parametrize("dataset", ["bigscience", "nanotron_bench"])
def test_no_device_shows_more_than_it_has(dataset: str) -> None:
    """Beyond what there is the allocator hands its segments back: what is needed is left, here on one GPU of
    which 1 % less than what it would show is there; the first of one stage has all, without context and
    communicators."""
    (one,) = predict(row(dataset=dataset, notes="", num_gpus=1, tp=1, pp=1, dp=1))
    assert one.question is not None
    assert one.answer is not None
    gpu = replace(one.question.cluster.gpu, memory_bytes=0.99 * one.answer.device_bytes)
    crowded = replace(one.question, cluster=replace(one.question.cluster, gpu=gpu))
    left = memory_gib(dataset, crowded, one.answer) * 2**30
    segments = one.answer.device_bytes - one.answer.needed_bytes
    roomy = one.answer.device_bytes if dataset == "bigscience" else one.answer.reserved_bytes
    assert segments > 0
    assert left == pytest.approx(roomy - segments)


def test_memory_of_a_first_stage_lacks_the_logits_of_the_last() -> None:
    """A head of many words weighs most on the last of two stages, which rank 0 is not on, where layers keep little
    and the first stage has no second micro-batch in flight."""
    cells = {"dataset": "nanotron_old_bench", "framework": "nanotron", "vocab": "40000", "zero_stage": "0"}
    cells |= {"micro_batch": "8", "global_batch_sequences": "16", "layers": "40", "recompute": "full"}
    first, alone = predict(row(**cells, tp=1, num_gpus=4), row(**cells, tp=1, num_gpus=4, pp=1, dp=4))
    assert first.answer is not None
    assert alone.answer is not None
    assert first.memory_gib is not None
    assert first.memory_gib < 0.99 * first.answer.allocated_bytes / 2**30
    assert alone.memory_gib == pytest.approx(alone.answer.allocated_bytes / 2**30)
    (later,) = predict(row(**cells | {"dataset": "nanotron_bench"}, tp=1, num_gpus=4, pp=1, dp=4))
    assert later.memory_gib == pytest.approx(alone.answer.reserved_bytes / 2**30)


def test_curves_change_the_price_and_are_restated_for_the_same_generation(tmp_path: Path) -> None:
    gemms = [
        f"A100-80GB,{m},{n},{k},bf16,{1e6 * 2 * m * n * k / 100e12 + 5}"
        for m in (64, 256, 1024)
        for n in (128, 512, 2048)
        for k in (256, 512, 1024)
    ]
    (tmp_path / "gemm.csv").write_text("gpu,m,n,k,dtype,latency_us\n" + "\n".join(gemms) + "\n", "utf-8")
    books = open_books(ROOT, tmp_path, None)
    # A graph of the whole step, so that a model this small is not issued slower than it runs.
    graphed = "cuda_graph=local:full_iteration"
    rows = [row(notes=graphed), row(gpu="A800-80GB", notes=graphed)]
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


def test_calibration_finds_a_slowdown_and_leaves_other_datasets_alone() -> None:
    graphed = {"micro_batch": 1, "notes": "cuda_graph=local:full_iteration"}
    plain = [row(row_id=f"r{n}", seq_len=256 * n, **graphed) for n in range(1, 14)]
    # Steps 1.6 times as long as priced, whatever they consist of.
    slow = [
        row(
            row_id=one.row.row_id,
            seq_len=one.row.text("seq_len"),
            measured_step_s=1.6 * (one.step_s or 0.0),
            **graphed,
        )
        for one in predict(*plain)
    ]
    few = [row(dataset="small", row_id=f"s{n}") for n in range(3)]
    predictions = predict(*slow, *few)
    steps = steps_by(priced_rows(predictions), by_dataset)
    assert set(steps) == {"made_up"}
    (found,) = calibrated(steps, rows=5, seed=1)
    assert (found.group, found.rows) == ("made_up", 8)
    assert found.before == pytest.approx(1 - 1 / 1.6, rel=1e-3)
    assert found.after < 0.05
    assert found.covered == 1.0
    assert calibrated(steps, rows=5, seed=1) == [found]


def test_coverage_counts_rows_below_inside_and_above() -> None:
    (plain,) = predict(row())
    assert plain.step_s is not None
    near = [
        row(row_id=f"r{n}", measured_step_s=f * plain.step_s) for n, f in enumerate((0.5, 1.0, 1.05, 3.0))
    ]
    *_, last = coverage_lines(predict(*near, row(row_id="none", measured_step_s="")))
    assert last.split()[:6] == ["all", "rows", "4", "25.0", "50.0", "25.0"]


def test_the_fastest_candidate_that_fits_is_chosen() -> None:
    unknown = {"micro_batch": "", "recompute": "unknown"}
    stated = [
        row(micro_batch=micro, recompute=kind)
        for micro in (1, 2, 4)
        for kind in ("none", "selective", "full")
    ]
    chosen, *each = predict(row(**unknown), *stated)
    assert chosen.step_s == min(one.step_s for one in each if one.step_s is not None)
    # 96 layers of width 32,768 fit nowhere on 8 GPUs: the plan that needs least is taken.
    huge = {"seq_len": 4096, "hidden": 32768, "ffn_hidden": 131072, "layers": 96, "head_dim": 4096}
    least, *others = predict(
        row(**huge, recompute="unknown"), *(row(**huge, recompute=k) for k in ("none", "full"))
    )
    assert least.memory_gib == min(one.memory_gib for one in others if one.memory_gib is not None)


def test_measured_rates_become_times_by_their_sources_formula() -> None:
    # 96 B s l h^2 (1 + s/6h + V/16lh) with B 8, s 256, l 4, h 512, V 1000 (arXiv 2104.04473 eq. 3)
    flops = 96 * 8 * 256 * 4 * 512**2 * (1 + 256 / 3072 + 1000 / 32768)
    rated = row(dataset="megatron_sc21", measured_step_s="", measured_tflops_per_gpu="100")
    assert measured_step_s(rated) == pytest.approx(flops / (100e12 * 8))
    assert measured_step_s(row(measured_step_s="", measured_tflops_per_gpu="100")) is None


def test_a_scorer_is_handed_the_predictions_and_has_the_last_word(tmp_path: Path) -> None:
    scorer = tmp_path / "score.py"
    scorer.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n", "utf-8")
    out = tmp_path / "pred.csv"
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "accuracy.py"),
        "--out",
        str(out),
        "--scorer",
        str(scorer),
    ]
    command += ["--measurements", str(write(tmp_path / "rows.csv", [CELLS]))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.rstrip().endswith(f"['{out}', '--split', 'dev', '--strict', '--oom']")
