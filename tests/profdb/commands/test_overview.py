"""python -m profdb: what it shows, what it says is missing, and its exit codes."""

import json
from pathlib import Path

import pytest

from profdb.__main__ import main
from profdb.cases import Family
from profdb.fitting import stored_curves
from profdb.refit import with_fits
from profdb.store.data_file import load_profile, save_profile
from tests.profdb.profiles import collective_samples, gemm_samples, one_of_each, profile

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "tiny_internlm2.py"


@pytest.fixture
def stored(tmp_path: Path) -> str:
    path = tmp_path / "data.pt"
    save_profile(path, with_fits(profile(gemm_samples() + collective_samples() + one_of_each())))
    return str(path)


def test_text_names_machine_curves_and_failures(stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", stored]) == 0
    shown = capsys.readouterr().out
    assert main([stored]) == 0
    assert capsys.readouterr().out == shown
    assert "Testchip, 80 GiB, 1 x 8 GPUs" in shown
    assert "best seen 400.0 TFLOP/s bf16" in shown
    assert "(1 oom)" in shown
    assert "m 256..8192, k 512..4096, n 512..4096" in shown


def test_json_holds_every_curve_with_ranges_and_error(stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", stored, "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert predicted["samples"] == len(gemm_samples()) + len(collective_samples()) + len(one_of_each())
    gather = next(c for c in predicted["curves"] if c["key"].get("collective") == "all_gather")
    assert gather["ranges"]["size_bytes"] == [1 << 10, 1 << 28]
    assert gather["points"] == len(collective_samples())
    # the test profile is latency + bytes / rate: chords of bend 1 tell left-out sizes exactly
    assert gather["error"]["p90"] < 0.01
    assert gather["worst"][0]["error"] == pytest.approx(gather["error"]["worst"])


def test_config_lists_what_is_missing_and_what_would_measure_it(
    stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([stored, "--config", str(CONFIG)]) == 0
    shown = capsys.readouterr().out
    assert "--nnodes=2" in shown
    assert "all_reduce across domains" in shown
    assert "missing" in shown
    assert main([stored, "--config", str(CONFIG), "--json"]) == 0
    needs = json.loads(capsys.readouterr().out)["needs"]
    assert {need["answer"] for need in needs} >= {"missing", "measured"}


def test_a_bad_file_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent.pt")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'absent.pt'}: no such profile")


def test_refit_stores_valid_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "data.pt"
    save_profile(path, profile(gemm_samples()))
    assert stored_curves(load_profile(path), Family.GEMM) is None
    assert main(["show", str(path), "--refit"]) == 0
    assert stored_curves(load_profile(path), Family.GEMM) is not None
    assert "NT bf16" in capsys.readouterr().out
