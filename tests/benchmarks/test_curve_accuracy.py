"""One command prints how well curves, sheets and restated times do, for any folder in the generic form."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import curve_accuracy
from benchmarks.modelled_accuracy import SpecScore
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


@pytest.fixture
def document(curves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """What the benchmark writes of the folder as it stands."""

    def written() -> dict[str, Any]:
        out = tmp_path / "out.json"
        assert run(monkeypatch, "--curves", str(curves), "--draws", "1", "--json", str(out)) in (0, 1)
        result: dict[str, Any] = json.loads(out.read_text())
        return result

    return written


def test_one_command_prints_all_three_tables(
    curves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    code = run(monkeypatch, "--curves", str(curves), "--seed", "3", "--draws", "1", "--json", str(out))
    printed = capsys.readouterr().out
    document = json.loads(out.read_text())
    held = {(row["test"], row["gpu"]) for row in document["rows"]}
    assert ("gemm (n, k)", "A100-made-up") in held
    assert ("8 GPUs from 2 and 4", "H100-made-up") in held
    predicted = {(row["what"], row["gpu"]): row for row in document["modelled"]}
    # Every made-up product above 1 GFLOP: m n k above 2^29, of 2^9 .. 2^12 each (60 of 64).
    assert predicted["modelled gemm", "A100-made-up"]["points"] == 60
    assert ("transferred gemm", "A100 -> H100") in predicted
    # 2 to 128 MiB on 2, 4 and 8 GPUs.
    assert predicted["modelled nccl all_gather", "H100-made-up"]["points"] == 3 * 7
    assert "notes.csv" in printed
    for words in ("held out", "modelled gemm", "transferred gemm"):
        assert words in printed
    missed = [one for one in (*document["rows"], *document["modelled"]) if not one["passed"]]
    assert code == (1 if missed else 0)
    assert ("MISSED" in printed) == bool(missed)
    # The restated times are off by what the made-up rates are off, and that is a miss.
    assert predicted["modelled nccl", "A100-made-up"]["target"] == 0.2


def test_targets_hold_for_neighbouring_generations_only() -> None:
    def score(what: str, gpu: str, median: float) -> SpecScore:
        return SpecScore(what=what, gpu=gpu, points=1, median=median, p90=1.0, bias=0.0)

    assert not score("transferred gemm", "A100 -> H100", 0.11).passed
    assert score("transferred gemm", "A100 -> B200", 0.11).passed
    assert not score("modelled nccl", "B200-SXM", 0.21).passed
    assert score("modelled nccl all_gather", "B200-SXM", 0.21).passed


@pytest.mark.parametrize(("kept", "predicted"), [((2, 4), False), ((8,), False), ((4, 8), True)])
def test_eight_gpus_are_predicted_only_from_fewer(
    kept: tuple[int, ...], predicted: bool, curves: Path, document: Callable[[], dict[str, Any]]
) -> None:
    messages = (curves / "second.csv").read_text().splitlines()
    (curves / "second.csv").write_text(
        "\n".join(row for row in messages if not row.split(",")[2].isdigit() or int(row.split(",")[2]) in kept)
    )
    (curves / "first.csv").unlink()
    tests = {row["test"] for row in document()["rows"]}
    assert ("8 GPUs from 2 and 4" in tests) is predicted
    assert "collective sizes" in tests


def test_times_that_no_two_gpus_share_are_not_transferred(curves: Path, document: Callable[[], dict[str, Any]]) -> None:
    (curves / "second.csv").unlink()
    header, *rows = (curves / "first.csv").read_text().splitlines()
    apart = [row for row in rows if row.startswith("A100") == (row.split(",")[1] == str(SIZES[-1]))]
    (curves / "first.csv").write_text("\n".join([header, *apart]) + "\n")
    assert {row["what"] for row in document()["modelled"]} == {"modelled gemm"}


def test_a_kind_of_which_nothing_is_left_to_fit_is_not_scored(
    curves: Path, document: Callable[[], dict[str, Any]]
) -> None:
    (curves / "first.csv").unlink()
    with (curves / "second.csv").open("a") as rows:
        rows.write("A100-made-up,all_reduce,8,4194304,50.0\n")
    held = {(row["test"], row["gpu"]): row for row in document()["rows"]}
    assert held["8 GPUs from 2 and 4", "A100-made-up"]["points"] == 7
    assert held["collective sizes", "A100-made-up"]["median"] < 1.0


def test_nothing_to_score_is_said(curves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (curves / "second.csv").unlink()
    (curves / "first.csv").write_text("gpu,m,n,k,latency_us\nA100-made-up,1,32,32,2.5\n")
    with pytest.raises(ProfileError, match="nothing to score"):
        run(monkeypatch, "--curves", str(curves), "--draws", "1")
