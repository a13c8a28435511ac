"""What a report says of the question, of its plans, and of the search: the answer's own figures."""

import re
import tomllib
from dataclasses import replace

import pytest

from ops.recompute import Recompute
from profdb.sample import MachineFacts, ProfileDatabase
from solver.analysis.explanation import adjacent_equal, explain_plan, memory_terms
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.cluster_times import ClusterTimes
from solver.problem.loading import load_problem
from solver.problem.price import price_plan
from solver.report.plans import PUBLISHED, difference, plans_table, published_words, question_section, rejected_section
from solver.report.reasons import stages_table
from solver.search import Result
from spec.frameworks import framework_preset
from spec.settings.job import JobRequest, job_of
from spec.units import bytes_to_gib, seconds_to_ms
from tests.solver.flat_cost_model import FlatCostModel
from tests.solver.questions import ROOT, question, request, small_model

PLANS = (
    Plan(strategy="fsp", preset="megatron", tp=2, pp=4, num_micro=16),
    Plan(strategy="fsp", preset="megatron", tp=2, pp=4, num_micro=16, recompute=Recompute.FULL),
)
CASE = question(model=small_model(layers=8), world_size=8, sequences=16, preset=framework_preset("megatron"))
ANSWERS = tuple(price_plan(CASE, PlanTable.of(plan))[0] for plan in PLANS)


def facts(*, origin: str = "", **settings: object) -> dict[str, str]:
    times = ClusterTimes(
        cost_model=FlatCostModel(),
        profile=ProfileDatabase(machine=MachineFacts(gpu="flat", cluster="flat"), samples=()),
        source="made for this test",
    )
    asked = JobRequest(
        world_size=16,
        seq_len=1024,
        global_batch_tokens=65536,
        settings={key.replace("__", "."): value for key, value in settings.items()},
    )
    here = replace(question(preset=framework_preset("megatron")), job=job_of(asked))
    return dict(question_section(here, times, framework_origin=origin).facts)


def test_an_assumed_framework_is_named() -> None:
    assert facts(origin="assumed, as nothing names one")["framework"] == (
        "megatron, assumed, as nothing names one; --framework names another"
    )
    assert "framework" not in facts()
    assert facts()["job"].endswith("megatron preset")


def test_settings_that_are_not_the_framework_s_own_are_shown_as_they_are_typed() -> None:
    assert "settings" not in facts(dropout=False, precision__gradient="fp32")
    shown = facts(cuda_graphs=["mlp", "attn"], precision__recipe="fp8-current", precision__gradient="bf16")
    assert shown["settings"] == (
        "precision.gradient=bf16, precision.linear=fp8, precision.scale_recipe=tensor, "
        "precision.scaling=current, cuda_graphs=attn+mlp"
    )


def test_the_rate_counts_feasible_plans_alone() -> None:
    found = Result(
        best=(),
        best_of_mode={},
        pareto=(),
        num_seen=400_000,
        num_priced=7_000,
        rejected={},
        nearest_miss="",
        seconds=2.0,
    )
    (line,) = rejected_section(found).paragraphs
    assert line.startswith("400,000 plans seen, 7,000 feasible")
    assert line.endswith("in 2.00 s (3,500 feasible plans/s)")


def test_the_parts_of_a_step_sum_to_it() -> None:
    shown = plans_table(ANSWERS, "plans", "causal")
    assert "MFU % (causal)" in shown.header
    for row, answer in zip(shown.rows, ANSWERS, strict=True):
        cells = dict(zip(shown.header, row, strict=True))
        step_ms = seconds_to_ms(answer.step_s)
        assert float(cells["step ms"]) == pytest.approx(step_ms, abs=0.06)
        parts = row[shown.header.index("GiB") + 1 : -1]
        assert sum(map(float, parts)) == pytest.approx(step_ms, abs=0.06 * len(parts))


def test_memory_terms_sum_to_what_a_stage_needs() -> None:
    found = explain_plan(CASE, PLANS[0])
    for stage in found.stages:
        terms = memory_terms(stage)
        assert sum(terms.values()) == pytest.approx(stage.needed_bytes, rel=1e-12)
        assert terms["context"] > 0
    table = stages_table(found.stages)
    assert [float(cell) for cell in table.rows[-1][1:]] == pytest.approx(
        [bytes_to_gib(stage.needed_bytes) for stage in found.stages], abs=0.006
    )


def test_neighbours_that_hold_the_same_are_shown_together() -> None:
    first, *others = explain_plan(CASE, PLANS[0]).stages
    pair = [replace(first, first=1, last=1), replace(first, first=2, last=3), *others]
    merged = adjacent_equal(pair)
    assert merged[0].words() == "stages 1 to 3"
    assert merged[1:] == adjacent_equal(others)


def test_a_difference_names_the_largest_parts_and_a_tie() -> None:
    best = replace(ANSWERS[0], scatter_s={"gemm": 1e-3})
    slower_by = 0.01 * best.step_s
    parts = best.mean_parts_s | {"gemm": best.mean_parts_s["gemm"] + slower_by}
    other = replace(best, step_s=best.step_s + slower_by, mean_parts_s=parts)
    assert "1.0 % slower: matrix products +" in difference(best, other)
    assert "1.0 % faster" in difference(other, best)
    assert "a tie" not in difference(best, other)
    unlike = replace(other, scatter_s={"all_reduce": slower_by})
    assert "a tie: within the 80 % interval" in difference(best, unlike)


def test_a_published_run_of_the_question_is_told_and_whether_it_lies_inside_the_interval() -> None:
    """11.3 GPU-hours of 2,048 GPUs for 62,914,560 of 10^12 tokens are 19.9 s."""
    job = {"framework": "hai-llm", "precision": "fp8-blockwise", "global_batch_tokens": 62_914_560}
    problem = load_problem(request("671B_deepseek_v3.toml", 2048, cluster="h800", **job)).problem
    (inside,) = published_words(problem, replace(ANSWERS[0], interval_low_s=19.0, interval_high_s=20.0))
    assert inside.startswith("a run with a plan of its own took 19900.0 ms (arXiv 2412.19437 table 1")
    assert inside.endswith(", inside the 80 % interval")
    (outside,) = published_words(problem, replace(ANSWERS[0], interval_low_s=15.0, interval_high_s=19.0))
    assert outside.endswith(", OUTSIDE the 80 % interval")
    other = replace(problem, job=replace(problem.job, global_batch_tokens=2 * 62_914_560))
    assert published_words(other, ANSWERS[0]) == []


def test_steps_of_published_runs_follow_from_what_was_published() -> None:
    runs = tomllib.loads((ROOT / PUBLISHED).read_text())["run"]
    for run in runs:
        if hours := re.search(r"(\d+) thousand GPU-hours a trillion tokens", run["source"]):
            step_s = 3.6e6 * int(hours[1]) * run["global_batch_tokens"] / 1e12 / run["world_size"]
        else:
            rate = re.search(r"([\d,]+) tokens/s a GPU", run["source"])
            assert rate is not None
            step_s = run["global_batch_tokens"] / run["world_size"] / int(rate[1].replace(",", ""))
        assert run["step_s"] == pytest.approx(step_s, rel=2e-3), run
    assert len(runs) == 4
