"""Questions from Python: each word reaches the request, and what cannot be meant is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import solver
from solver.api import Asking, request_of, sweep
from spec.errors import ConfigError
from spec.files import shipped_folder

JOB = {"world_size": 8, "global_batch_tokens": 524288, "framework": "megatron"}


def test_exported_names() -> None:
    assert solver.__all__ == [
        *("Answer", "ConfigError", "Explanation", "MissingCurveError", "NoFeasiblePlanError", "ProfileError"),
        *("SearchResult", "Session", "SweepRow", "UserError", "ask", "sweep", "to_frame", "write_parquet"),
        "write_report",
    ]
    for name in solver.__all__:
        assert getattr(solver, name).__name__ == name
    assert set(solver.__all__) <= set(dir(solver))
    with pytest.raises(AttributeError, match="no attribute 'asks'"):
        solver.asks  # noqa: B018


def test_importing_is_light() -> None:
    """Nothing heavy with the package; with what answers questions neither torch nor pandas nor matplotlib."""
    program = (
        "import sys, solver; assert not {'numpy', 'torch'} & set(sys.modules);"
        "solver.ask; solver.to_frame; assert not {'torch', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


def test_every_word_reaches_the_request() -> None:
    request = request_of(
        model="8B_llama3",
        job={**JOB, "seq_len": 4096, "precision": "fp8-tensor", "dropout": True},
        cluster="h100-sxm",
        constraints={"fix": {"tp": 2}},
        profile="p.pt",
        missing="modelled",
        transfer=True,
        calibration="c.json",
    )
    assert request == solver_request(
        config=Path("8B_llama3"),
        profile=Path("p.pt"),
        calibration=Path("c.json"),
        job={"dropout": True},
        precision="fp8-tensor",
        seq_len=4096,
        transfer=True,
        missing="modelled",
    )


def solver_request(**values: Any) -> Any:
    from solver.problem.request import Request

    return Request(
        root=shipped_folder(),
        cluster="h100-sxm",
        world_size=8,
        global_batch_tokens=524288,
        framework="megatron",
        constraints={"fix": {"tp": 2}},
        **values,
    )


def test_words_are_those_of_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert all(f"`{word}`" in page for word in Asking.__annotations__)
    assert all(f"`{name}" in page for name in solver.__all__ if name not in ("SweepRow",))


@pytest.mark.parametrize(
    ("asking", "error", "said"),
    [
        ({"job": JOB}, TypeError, "'model' is missing"),
        ({"model": "8B_llama3", "job": JOB, "clusters": "x"}, TypeError, "unexpected keyword 'clusters'"),
        ({"model": "9B_llama9", "job": JOB}, ConfigError, "9B_llama9"),
        ({"model": "8B_llama3", "job": {**JOB, "world_size": "8"}}, ConfigError, "a whole number"),
        ({"model": "8B_llama3", "job": {**JOB, "world_size": True}}, ConfigError, "a whole number"),
        ({"model": "8B_llama3", "job": {**JOB, "batch": 4}}, ConfigError, "a key of"),
        ({"model": "8B_llama3", "job": JOB, "missing": "guess"}, ConfigError, "error or modelled"),
        ({"model": "8B_llama3", "job": JOB, "constraints": {"fix": {"tq": 1}}}, ConfigError, "tq"),
    ],
)
def test_what_cannot_be_meant_is_refused(asking: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        solver.ask(**{"cluster": "h100-sxm", **asking})


def test_a_sweep_has_a_row_a_question() -> None:
    """16 GPUs fit; on one GPU an 8B model with its optimizer does not."""
    rows = sweep(
        {"world_size": [1, 16]},
        model="8B_llama3",
        cluster="h100-sxm",
        job={**JOB, "world_size": 1},
        constraints={"fix": {"cp": 1, "pp": 1, "micro_batch": 1}, "no_recompute": True, "modes": ["fsp"]},
    )
    assert [row.values for row in rows] == [{"world_size": 1}, {"world_size": 16}]
    assert rows[0].answer is None
    assert rows[1].answer is not None
    frame = solver.to_frame(rows)
    assert frame["asked_world_size"].tolist() == [1, 16]
    assert frame["why_none"][0] == rows[0].why_none != ""
    assert frame["step_s"][1] == rows[1].answer.step_s
    assert frame["efficiency"][1] == 1.0
    with pytest.raises(ConfigError, match="lists of cluster"):
        sweep({"tp": [1]}, model="8B_llama3", job=JOB)
