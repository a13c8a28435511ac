"""Widths of the interval chosen from residuals: the bounds are the solver's own, and what is chosen covers."""

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.interval_widths import (
    EIGHTY_PERCENT,
    IN_USE,
    NAMES,
    PricedDataset,
    bounds,
    chosen_by,
    main,
    read_priced,
)
from solver.estimate import STEP_PARTS
from solver.problem.interval import UNPRICED, WIDTHS, causes, interval_of, relative_std
from solver.times.step_parts import CARRIED
from spec.arrays import floats
from spec.program.command import exit_status
from tests.benchmarks.made_up_rows import row
from tests.ops.layouts import job


def made_up(seed: int, share: float) -> PricedDataset:
    """Rows whose log(measured / predicted) spreads by half of their waiting for a network, and by 0.03 in any case."""
    rng = np.random.default_rng(seed)
    shares = np.zeros((60, len(NAMES)))
    shares[:, NAMES.index("formulas")] = 1.0
    shares[:, NAMES.index("network")] = share
    return PricedDataset(ratio=rng.normal(0.05, np.hypot(0.03, 0.5 * share), 60), shares=shares)


def test_bounds_are_those_of_the_solver() -> None:
    parts = {name: floats(0.1 if name in ("tp_comm", "host") else 0.0) for name in STEP_PARTS}
    parts["gemm"] = floats(0.8)
    shares = causes(job(), parts, {"gemm": floats(0.06), CARRIED: floats(0.02)})
    dataset = PricedDataset(ratio=np.zeros(1), shares=np.array([[*(float(shares[name][0]) for name in WIDTHS), 0.0]]))
    low, high = bounds(dataset, np.append(IN_USE, UNPRICED))
    own = interval_of(floats(1.0), relative_std(shares))
    assert (np.exp(low[0]), np.exp(high[0])) == pytest.approx((own[0][0], own[1][0]))


def test_the_cause_that_spreads_is_found() -> None:
    datasets = [made_up(0, 0.0), made_up(1, 0.2), made_up(2, 0.6)]
    chosen = chosen_by(datasets)
    for dataset in datasets:
        low, high = bounds(dataset, chosen)
        assert 0.7 <= ((dataset.ratio >= low) & (dataset.ratio <= high)).mean() <= 0.9
    wide, tight = (bounds(dataset, chosen) for dataset in (datasets[2], datasets[0]))
    # normal spreads of 0.3 and 0.03: 80 % lie within 1.28 of them
    assert (wide[1] - wide[0]).mean() / 2 == pytest.approx(EIGHTY_PERCENT * 0.3, rel=0.25)
    assert (tight[1] - tight[0]).mean() / 2 == pytest.approx(EIGHTY_PERCENT * 0.03, rel=0.5)


def test_rows_are_read_with_their_gaps(tmp_path: Path) -> None:
    """A step of 2 s predicted at 1.9, half of it waiting for tp: one missing piece beside an uneven batch, which is none."""
    (tmp_path / "runs").mkdir()
    one = row(tmp_path / "runs", measured_step_s="2.0")
    line = {f"part_{name}": "0.0" for name in STEP_PARTS} | {
        "dataset": one.dataset,
        "row_id": one.row_id,
        "pred_step_s": "1.9",
        "standard_error_s": "0.19",
        "carried_error_s": "0.0",
        "part_tp_comm": "0.5",
        "part_gemm": "0.5",
        "missing": "fp8 parameter gathers; a smaller last micro-batch (interpolated)",
    }
    with (tmp_path / "dataset.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(line))
        writer.writeheader()
        writer.writerow(line)
    (dataset,) = read_priced([one.path], tmp_path / "dataset.csv").values()
    assert dataset.ratio[0] == pytest.approx(np.log(2.0 / 1.9))
    shares = dict(zip(NAMES, dataset.shares[0], strict=True))
    assert (shares["curves"], shares["network"], shares["gaps"]) == pytest.approx((0.1, 0.5, 1.0))


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--measurements", str(tmp_path), "--predictions", str(tmp_path / "none.csv")]
    assert exit_status(lambda: main(words)) == 2
    assert capsys.readouterr().err.startswith("error: ")
