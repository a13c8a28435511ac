"""Questions from Python: each word reaches the request, and what cannot be meant is refused."""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solver
from profdb.sample import MachineFacts, ProfileDatabase
from solver.api import AskArguments, Session, plan_keys, request_of, sweep
from solver.memory.device import usable_bytes
from solver.plans.plan_table import PlanTable
from solver.plans.space import full_space
from solver.problem.cluster_times import ClusterTimes
from solver.problem.loading import LoadedProblem
from solver.problem.price import price_plan
from solver.problem.request import Request
from solver.problem.requested_plan import parse_plan
from solver.problem.result import answer_values
from solver.report.frames import frame_of_columns, to_frame, write_parquet
from solver.search import candidate_pool, ranked_result, search
from spec.errors import ConfigError, NoFeasiblePlanError, ProfileError
from spec.files import shipped_folder
from spec.frameworks import framework_preset
from spec.readers.config_file import ConfigFile
from spec.settings.constraints import Constraints, constraints_of
from spec.settings.plan import PlanSettings, plan_settings
from tests.solver.questions import cluster, question, small_model

JOB = {"world_size": 8, "global_batch_tokens": 524288, "framework": "megatron"}


def test_exported_names() -> None:
    assert solver.__all__ == [
        *("Answer", "ConfigError", "Explanation", "MissingCurveError", "NoFeasiblePlanError", "ProfileError"),
        *("Result", "Session", "SweepRow", "UserError", "ask", "sweep", "to_frame", "write_parquet"),
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
    assert request == Request(
        root=shipped_folder(),
        config=Path("8B_llama3"),
        cluster="h100-sxm",
        world_size=8,
        global_batch_tokens=524288,
        seq_len=4096,
        framework="megatron",
        precision="fp8-tensor",
        job={"dropout": True},
        constraints={"fix": {"tp": 2}},
        profile=Path("p.pt"),
        missing="modelled",
        transfer=True,
        calibration=Path("c.json"),
    )


def test_words_are_those_of_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert all(f"`{word}`" in page for word in AskArguments.__annotations__)
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
    with pytest.raises(ConfigError, match="lists of model, cluster"):
        sweep({"tp": [1]}, model="8B_llama3", job=JOB)


# few plans, which still have stages, recomputation, ZeRO and micro-batches
FEW = {"modes": ["fsp"], "fix": {"cp": 1, "vpp": 1}, "max": {"micro_batch": 2}}
ASKED = question(world_size=8, sequences=16, preset=framework_preset("megatron"), model=small_model())


def session(asked=ASKED, **constraints: object) -> Session:
    profile = ProfileDatabase(machine=MachineFacts(gpu="flat"))
    return Session(
        inputs=LoadedProblem(
            problem=asked,
            config=ConfigFile(path="made for tests", format="toml", model=asked.model),
            times=ClusterTimes(cost_model=asked.op_timer.cost_model, profile=profile, source="the flat cost model"),
            profile_path=Path("none.pt"),
            source="the flat cost model",
            constraints=constraints_of(constraints) if constraints else Constraints(),
        )
    )


def test_the_keys_said_are_those_written_however_they_are() -> None:
    said = {"tp": 2, "vpp": 1}
    assert plan_keys("tp=2,vpp=1", "a test") == plan_keys(said, "a test") == said
    assert plan_keys(parse_plan("tp=2,vpp=1"), "a test") == {"tp": 2}
    keys = plan_keys({"recompute_modules": ("mlp", "layernorm"), "optimizer_offload": 0.5}, "plan")
    assert PlanSettings(**keys) == parse_plan("recompute_modules=mlp+layernorm,optimizer_offload=0.5")
    with pytest.raises(ConfigError, match="mine: tq = '2'"):
        plan_keys({"tq": 2}, "mine")


def test_the_best_is_that_of_a_search() -> None:
    found = search(ASKED, full_space(ASKED.model, ASKED.job, constraints_of(FEW)), top_k=3)
    asked = session(**FEW)
    assert asked.search(top_k=3).best == found.best
    assert asked.best == asked.search().best[0] == found.best[0]
    assert asked.obstacles(asked.best) == ()


@pytest.mark.parametrize("plan", ["tp=2,pp=2", {"tp": 2, "pp": 2}, parse_plan("tp=2,pp=2")])
def test_a_plan_may_be_written_three_ways(plan) -> None:
    answer = session().price(plan)
    assert (answer.plan.tp, answer.plan.pp, answer.plan.dp) == (2, 2, 2)
    assert answer == price_plan(ASKED, PlanTable.of(answer.plan))[0]
    assert session().price(answer) is answer
    assert session().explain(plan).plan == answer.plan


def test_obstacles_are_rules_constraints_and_memory() -> None:
    held = session(fix={"tp": 4}, memory_gib=0.001)
    assert any("tp = 4" in one for one in held.obstacles("tp=2"))
    assert any("GiB" in one for one in held.obstacles("tp=4"))
    with pytest.raises(NoFeasiblePlanError):
        held.search()


def test_times_that_no_gpu_reaches_are_refused() -> None:
    """With a hundred times its peak the sheet's own FLOP/s would be a hundredth of what it claims."""
    slow = cluster()
    slower = replace(slow, gpu=replace(slow.gpu, peak_flops={"bf16": 1e9}))
    asked = replace(ASKED, cluster=slower)
    for call in (lambda: session(asked).price("tp=2"), lambda: session(asked, **FEW).search()):
        with pytest.raises(ProfileError, match="which no GPU reaches"):
            call()


def test_every_plan_that_fits_is_in_the_table() -> None:
    """Priced one by one, from the keys in the table, each plan has the row's figures; the search sees as many."""
    asked = session(**FEW)
    columns, frame = asked.every_plan(), to_frame(asked)
    space = full_space(ASKED.model, ASKED.job, constraints_of(FEW))
    found = ranked_result(ASKED, *candidate_pool(ASKED, space, everything=True), space.constraints.rank_by)
    assert len(frame) == found.num_priced
    assert frame["step_s"].is_monotonic_increasing
    assert frame["step_s"][0] == found.best[0].step_s
    assert frame["needed_bytes"].max() <= usable_bytes(ASKED.cluster)
    keys = [key for key in columns if key in plan_settings() and key not in ("preset", "num_micro")]
    for row in (0, 1, len(frame) // 2, len(frame) - 1):
        said = {key: columns[key][row] for key in keys if columns[key][row] not in (None, ())}
        values = answer_values(session().price(said))
        assert list(values) == list(columns)
        for name, value in values.items():
            told = columns[name][row]
            assert told == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name


def test_frames_of_answers_and_operations() -> None:
    asked = session(**FEW)
    found = asked.search(top_k=2)
    frame = to_frame(found)
    assert frame.equals(to_frame(found.best))
    assert frame["tp"].dtype == "Int64"
    apart = asked.explain("tp=2")
    operations = to_frame(apart)
    assert operations["own_s"].tolist() == [one.own_s for one in apart.operations]
    assert to_frame([]).empty


def test_parquet_is_read_as_it_was_written(tmp_path: Path) -> None:
    frame = to_frame([session().price(plan) for plan in ("tp=2", "tp=4,recompute=full")])
    if find_spec("pyarrow") is None:
        with pytest.raises(ConfigError, match="pip install pyarrow"):
            write_parquet(tmp_path / "plans.parquet", frame)
        assert not list(tmp_path.iterdir())
        pytest.skip("pyarrow is not installed: reading back is not tried")
    import pandas as pd

    write_parquet(tmp_path / "plans.parquet", frame)
    again = pd.read_parquet(tmp_path / "plans.parquet")
    assert list(again) == list(frame)
    assert np.array_equal(again["step_s"], frame["step_s"])
    assert again["recompute_layers"].isna().all()


def test_what_is_not_said_is_missing() -> None:
    frame = frame_of_columns({"tp": [1, None], "recompute_modules": [("mlp", "norm"), ()], "step_s": [1.0, 2.0]})
    assert frame["tp"].isna().tolist() == [False, True]
    assert frame["recompute_modules"].tolist() == ["mlp+norm", "none"]
