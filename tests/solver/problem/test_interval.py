"""The 80 % interval: it holds the step, is as wide as the step's causes make it, and covers what it says."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profdb.cases import GemmCase
from profdb.modelled.flash_generations import LENGTHS
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import save_profile
from solver.estimate import STEP_PARTS
from solver.problem.interval import (
    EIGHTY_PERCENT,
    EXPERTS,
    NETWORK,
    NEW_SOURCES,
    UNPRICED,
    WIDTHS,
    Evidence,
    causes,
    interval_of,
    measured_share,
    relative_std,
    standard_errors_s,
)
from solver.problem.loading import load_problem
from solver.times.step_parts import CARRIED
from spec.arrays import FloatArray, floats
from spec.origin import Origin
from tests.ops.layouts import job
from tests.solver.questions import request


def parts(**seconds: float) -> dict[str, FloatArray]:
    return {name: floats(seconds.get(name, 0.0)) for name in STEP_PARTS}


def std_of(
    *,
    errors: tuple[float, ...] = (),
    carried: float = 0.0,
    narrow: bool = False,
    attended: int = 4096,
    **seconds: float,
) -> float:
    asked = job(seq_len=attended)
    if narrow:
        asked = replace(asked, precision=replace(asked.precision, linear="fp8"))
    std_s = {f"family {at}": floats(error) for at, error in enumerate(errors)} | {CARRIED: floats(carried)}
    return float(relative_std(causes(asked, parts(**seconds), std_s))[0])


@given(st.floats(1e-6, 1e6), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_it_holds_the_step_and_widens_with_the_error(step: float, std: float, more: float) -> None:
    low, high = interval_of(floats(step), floats(std))
    lower, higher = interval_of(floats(step), floats(std + more))
    assert lower[0] <= low[0] <= step < high[0] <= higher[0]


def test_it_lies_about_what_nobody_prices() -> None:
    low, high = interval_of(floats(2.0), floats(0.1))
    assert (low[0], high[0]) == pytest.approx((2 * np.exp(UNPRICED - 0.12816), 2 * np.exp(UNPRICED + 0.12816)))


def test_a_step_of_products_errs_by_curves_and_formulas() -> None:
    assert std_of(gemm=3.0) == pytest.approx(WIDTHS["formulas"])
    assert std_of(gemm=2.0, memory_bound=1.0, errors=(0.3,)) == pytest.approx(
        np.hypot(WIDTHS["formulas"], 0.1 * WIDTHS["curves"])
    )


def test_the_error_of_a_carried_constant_counts_whole_and_not_twice() -> None:
    """A third of the step rests on a constant that may be off by 30 %: 10 % beside what curves and formulas tell."""
    of_curves = 0.05 * WIDTHS["curves"]
    assert std_of(gemm=3.0, errors=(3.0 * 0.03, 3.0 * 0.04), carried=0.3) == pytest.approx(
        np.sqrt(WIDTHS["formulas"] ** 2 + of_curves**2 + 0.1**2)
    )


@pytest.mark.parametrize("part", NETWORK)
def test_each_wait_for_a_network_widens_by_its_share(part: str) -> None:
    of = [WIDTHS["formulas"], 0.25 * WIDTHS["network"]] + [0.25 * WIDTHS["experts"]] * (part in EXPERTS)
    assert std_of(gemm=3.0, **{part: 1.0}) == pytest.approx(np.sqrt(np.sum(np.square(of))))


@pytest.mark.parametrize(
    ("part", "cause"),
    [("grouped_gemm", "experts"), ("host", "host"), ("attention", "attention"), ("bubble", "waiting")],
)
def test_so_does_every_other_cause(part: str, cause: str) -> None:
    assert std_of(memory_bound=1.0, **{part: 1.0}) == pytest.approx(np.hypot(WIDTHS["formulas"], 0.5 * WIDTHS[cause]))


@pytest.mark.parametrize(
    ("tokens", "cause"),
    [(16384, "attention"), (LENGTHS[-1], "attention"), (16385, "long_attention"), (2**20, "long_attention")],
)
def test_sequences_longer_than_any_that_was_measured_are_known_less_well(tokens: int, cause: str) -> None:
    """Half of the step attends; rates of flash kernels are published up to 16,384 tokens."""
    assert WIDTHS["long_attention"] > WIDTHS["attention"]
    assert std_of(gemm=1.0, attention=1.0, attended=tokens) == pytest.approx(
        np.hypot(WIDTHS["formulas"], 0.5 * WIDTHS[cause])
    )


@pytest.mark.parametrize(
    ("document", "cause"), [(2048, "attention"), (0, "long_attention"), (131072, "long_attention")]
)
def test_packed_documents_attend_to_no_more_than_themselves(document: int, cause: str) -> None:
    asked = replace(job(seq_len=65536), document_tokens=document)
    shares = causes(asked, parts(attention=1.0), {})
    assert {name for name in ("attention", "long_attention") if shares[name][0]} == {cause}


def test_narrow_formats_widen_products_alone() -> None:
    assert std_of(gemm=1.0, optimizer=1.0, narrow=True) == pytest.approx(
        np.hypot(WIDTHS["formulas"], 0.5 * WIDTHS["narrow"])
    )
    assert std_of(memory_bound=1.0, narrow=True) == pytest.approx(WIDTHS["formulas"])


def test_parts_of_one_cause_add_up() -> None:
    """A quarter each of two collectives is half a step of waiting for a network."""
    assert std_of(gemm=2.0, tp_comm=1.0, dp_comm=1.0) == pytest.approx(
        np.hypot(WIDTHS["formulas"], 0.5 * WIDTHS["network"])
    )


def test_seconds_of_error_by_cause_are_those_of_the_width() -> None:
    seconds = parts(gemm=2.0, attention=1.0, dp_comm=0.5, host=0.5)
    std_s = {"gemm": floats(0.3), "host": floats(0.1), CARRIED: floats(0.2)}
    errors_s = standard_errors_s(job(), seconds, std_s)
    width = relative_std(causes(job(), seconds, std_s))
    assert np.sqrt(np.sum(np.square(list(errors_s.values())))) == pytest.approx(4.0 * width[0])
    assert errors_s["curves of gemm"] == pytest.approx(WIDTHS["curves"] * 0.3)


def test_a_new_source_lies_inside_as_often_as_the_known_ones_say() -> None:
    """Six sources of an unknown spread and a seventh: its step lies within the interval that the six give eight times in ten."""
    rng = np.random.default_rng(0)
    known, new = rng.normal(0.0, 0.2, (20_000, 6)), rng.normal(0.0, 0.2, 20_000)
    std = np.sqrt((known**2).mean(axis=1))
    assert (np.abs(new) < NEW_SOURCES.reach * std).mean() == pytest.approx(0.8, abs=0.012)
    none, nothing = floats(0.0), floats(0.0)
    assert NEW_SOURCES.interval_std(none, nothing) * EIGHTY_PERCENT == pytest.approx(
        NEW_SOURCES.reach * NEW_SOURCES.std
    )
    assert NEW_SOURCES.interval_std(floats(0.3), nothing)[0] ** 2 == pytest.approx(
        0.3**2 + NEW_SOURCES.interval_std(none, nothing)[0] ** 2
    )


def test_a_profile_takes_the_machine_out_of_the_spread_as_far_as_it_measured() -> None:
    whole, half, rest = (NEW_SOURCES.interval_std(floats(0.0), floats(share))[0] ** 2 for share in (0.0, 0.5, 1.0))
    assert rest == pytest.approx((1.0 - NEW_SOURCES.machine) * whole)
    # Of the half that was not measured, the whole error in seconds is left.
    assert half - rest == pytest.approx(0.25 * (whole - rest))
    seconds = {Origin.MEASURED: 2.0, Origin.EXTRAPOLATED: 1.0, Origin.MODELLED: 1.0, Origin.DERIVED: 5.0}
    assert measured_share({origin: floats(value) for origin, value in seconds.items()}) == pytest.approx(0.75)
    assert measured_share({Origin.DERIVED: floats(1.0)}) == 0.0


@pytest.mark.parametrize(
    ("facts", "cluster", "evidence"),
    [
        ({"torch": "2.9.0"}, "h100-sxm", Evidence.PROFILE),
        ({}, "h100-sxm", Evidence.SPEC),  # imported: measured on another machine
        ({"torch": "2.9.0"}, "h200", Evidence.SPEC),  # of another GPU
    ],
)
def test_only_a_profile_of_the_cluster_itself_narrows(
    tmp_path: Path, facts: dict[str, str], cluster: str, evidence: Evidence
) -> None:
    sample = Sample(case=GemmCase(m=4096, k=4096, n=4096), trials_s=(2e-4,))
    machine = MachineFacts(gpu="H100-SXM-80GB", cluster="h100-sxm", **facts)  # type: ignore[arg-type]
    save_profile(tmp_path / "p.pt", ProfileDatabase(machine=machine, samples=(sample,)))
    sizes = {"global_batch_tokens": 2**20, "profile": tmp_path / "p.pt", "missing": "modelled"}
    assert load_problem(request("7B_llama2.py", 8, cluster=cluster, **sizes)).problem.evidence is evidence


def test_eight_draws_in_ten_lie_inside() -> None:
    rng = np.random.default_rng(0)
    true = np.exp(rng.normal(UNPRICED, 0.12, 20_000))
    low, high = interval_of(np.ones(20_000), np.full(20_000, 0.12))
    # 20,000 draws: 0.8 with a standard error of 0.003.
    assert ((true > low) & (true < high)).mean() == pytest.approx(0.8, abs=0.012)


def test_the_widths_are_those_that_the_formulas_page_states() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "formulas.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| (\w+) \| [^|]+ \| (\d\.\d+) \|$", page.split("## Interval and calibration")[1], re.M)
    assert {name: float(width) for name, width in said} == WIDTHS
    assert f"`u` = {UNPRICED} is the time that" in page
