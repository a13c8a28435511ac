"""One command prints how well curves, sheets and restated times do, for any folder in the generic form."""

from pathlib import Path

import pytest

from benchmarks import curve_accuracy
from benchmarks.curve_accuracy import HoldoutResult
from benchmarks.measured_times import read_folder, tables_by_gpu
from benchmarks.modelled_accuracy import SpecScore, all_scores
from spec.errors import ProfileError

SIZES = (512, 1024, 2048, 4096)
PEAK_FLOPS = {"A100-made-up": 200e12, "H100-made-up": 500e12}
LINK_BYTES_PER_S = 100e9
STEP_S = 5e-6
"""Rates of made-up GPUs, whose names choose real sheets; launch 5 us, links 100 GB/s."""


@pytest.fixture
def curves(tmp_path: Path) -> Path:
    """Products and collectives that follow a formula, in files whose names say nothing."""
    folder = tmp_path / "curves"
    folder.mkdir()
    products, messages = ["gpu,m,n,k,latency_us"], ["gpu,collective,num_gpus,bytes,latency_us"]
    for gpu, flops in PEAK_FLOPS.items():
        products += [
            f"{gpu},{m},{n},{k},{1e6 * (2 * m * n * k / flops + STEP_S):.3f}"
            for m in SIZES
            for n in SIZES
            for k in SIZES
        ]
        messages += [
            f"{gpu},all_gather,{ranks},{1 << bits},{1e6 * (STEP_S * ranks + (1 << bits) / LINK_BYTES_PER_S):.3f}"
            for ranks in (2, 4, 8)
            for bits in range(10, 28)
        ]
    (folder / "first.csv").write_text("\n".join(products) + "\n")
    (folder / "second.csv").write_text("\n".join(messages) + "\n")
    (folder / "notes.csv").write_text("who,what\nme,nothing\n")
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The benchmark's main with these words."""
    monkeypatch.setattr("sys.argv", ["curve_accuracy.py", *words])
    return curve_accuracy.main()


Rows = dict[tuple[str, str], HoldoutResult | SpecScore]


def scored(curves: Path, draws: int = 1, seed: int = 0) -> Rows:
    """What the benchmark finds in the folder as it stands, by test and GPU."""
    tables = tables_by_gpu(read_folder(curves)[0])
    held = [one for gpu, own in tables.items() for one in curve_accuracy.holdout_results(gpu, own, seed, draws)]
    rows: Rows = {(one.test, one.gpu): one for one in held}
    return rows | {(one.what, one.gpu): one for one in all_scores(tables)}


@pytest.mark.nightly
def test_one_command_prints_all_three_tables(
    curves: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(monkeypatch, "--curves", str(curves), "--seed", "3", "--draws", "1")
    printed = capsys.readouterr().out
    rows = scored(curves, seed=3)
    assert {("gemm (n, k)", "A100-made-up"), ("8 GPUs from 2 and 4", "H100-made-up")} <= rows.keys()
    # Every made-up product above 1 GFLOP: m n k above 2^29, of 2^9 .. 2^12 each (60 of 64).
    assert rows["modelled gemm", "A100-made-up"].points == 60
    assert ("transferred gemm", "A100 -> H100") in rows
    # 2 to 128 MiB on 2, 4 and 8 GPUs.
    assert rows["modelled nccl all_gather", "H100-made-up"].points == 3 * 7
    for words in ("notes.csv", "held out", "modelled gemm", "transferred gemm"):
        assert words in printed
    # The restated times are off by what the made-up rates are off, and that is a miss.
    missed = [one for one in rows.values() if not one.passed]
    assert code == (1 if missed else 0)
    assert ("MISSED" in printed) == bool(missed)


def test_targets_hold_for_neighbouring_generations_only() -> None:
    def score(what: str, gpu: str, median: float) -> SpecScore:
        return SpecScore(what=what, gpu=gpu, points=1, median=median, p90=1.0, bias=0.0)

    assert not score("transferred gemm", "A100 -> H100", 0.11).passed
    assert score("transferred gemm", "A100 -> B200", 0.11).passed
    assert not score("modelled nccl", "B200-SXM", 0.21).passed
    assert score("modelled nccl all_gather", "B200-SXM", 0.21).passed


@pytest.mark.parametrize(("kept", "predicted"), [((2, 4), False), ((8,), False), ((4, 8), True)])
def test_eight_gpus_are_predicted_only_from_fewer(kept: tuple[int, ...], predicted: bool, curves: Path) -> None:
    messages = (curves / "second.csv").read_text().splitlines()
    (curves / "second.csv").write_text(
        "\n".join(row for row in messages if not row.split(",")[2].isdigit() or int(row.split(",")[2]) in kept)
    )
    (curves / "first.csv").unlink()
    tests = {test for test, _ in scored(curves)}
    assert ("8 GPUs from 2 and 4" in tests) is predicted
    assert "collective sizes" in tests


def test_times_that_no_two_gpus_share_are_not_transferred(curves: Path) -> None:
    (curves / "second.csv").unlink()
    header, *rows = (curves / "first.csv").read_text().splitlines()
    apart = [row for row in rows if row.startswith("A100") == (row.split(",")[1] == str(SIZES[-1]))]
    (curves / "first.csv").write_text("\n".join([header, *apart]) + "\n")
    assert {test for test, _ in scored(curves)} == {"gemm (n, k)", "modelled gemm"}


def test_a_kind_of_which_nothing_is_left_to_fit_is_not_scored(curves: Path) -> None:
    (curves / "first.csv").unlink()
    with (curves / "second.csv").open("a") as rows:
        rows.write("A100-made-up,all_reduce,8,4194304,50.0\n")
    rows = scored(curves)
    assert rows["8 GPUs from 2 and 4", "A100-made-up"].points == 7
    assert rows["collective sizes", "A100-made-up"].median < 1.0


def test_nothing_to_score_is_said(curves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (curves / "second.csv").unlink()
    (curves / "first.csv").write_text("gpu,m,n,k,latency_us\nA100-made-up,1,32,32,2.5\n")
    with pytest.raises(ProfileError, match="nothing to score"):
        run(monkeypatch, "--curves", str(curves), "--draws", "1")
