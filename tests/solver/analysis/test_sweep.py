"""Sweeps: each row is the answer of its own question, and one book answers all questions about one cluster."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from solver.analysis.goodput import Reliability, RunTerms
from solver.analysis.sweep import (
    ProfileCache,
    SweepRow,
    efficiencies,
    judge,
    node_counts,
    plans_by_nodes,
    rank_rows,
    run_sweep,
    sweep_requests,
    tokens_per_s,
)
from solver.plans.space import full_space
from solver.problem.loading import load_problem
from solver.report.files import write_sweep_csv
from solver.report.sweeps import (
    fewest_words,
    goodput_words,
    nodes_record,
    nodes_table,
    sweep_record,
    sweep_sections,
    sweep_table,
)
from solver.search import search
from spec.errors import ConfigError
from spec.program.kinds import Sequences
from tests.solver.questions import ROOT, gpt_request, request

REQUEST = gpt_request(
    profile=ROOT / "prof_data" / "data.pt",
    constraints={
        "fix": {"cp": 1, "vpp": 1, "pp": 1},
        "no_recompute": True,
        "modes": ["mtp"],
        "max": {"micro_batch": 2, "tp": 4},
    },
)
WORLDS = (1, 8, 16, 24, 32)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def shared() -> ProfileCache:
    return ProfileCache()


@pytest.fixture(scope="module")
def rows(shared: ProfileCache, own_cache: None) -> tuple[SweepRow, ...]:
    return run_sweep(sweep_requests(REQUEST, {"world_size": WORLDS}), cache=shared)


def test_sequences_are_shown_as_the_tokens_that_they_are(shared: ProfileCache) -> None:
    batches = (REQUEST.global_batch_tokens, Sequences(64))
    rows = run_sweep(sweep_requests(REQUEST, {"global_batch_tokens": batches}), cache=shared)
    shown = [row.values["global_batch_tokens"] for row in rows]
    assert shown == [REQUEST.global_batch_tokens, 64 * rows[1].inputs.problem.job.seq_len]


def test_models_are_told_apart_by_name_with_what_is_assumed_of_each(shared: ProfileCache, tmp_path: Path) -> None:
    models = ("7B_gpt", ROOT / "configs" / "8B_qwen3.json")
    rows = run_sweep(sweep_requests(replace(REQUEST, seq_len=None), {"model": models}), cache=shared)
    assert [row.values for row in rows] == [{"model": "7B_gpt"}, {"model": "8B_qwen3"}]
    assert [row.inputs.problem.model.name for row in rows] == ["7B_gpt", "8B_qwen3"]
    (section,) = sweep_sections(rows, [judge(row, None, None) for row in rows])
    assert section.title == "2 questions about 7B_gpt, 8B_qwen3"
    assert section.paragraphs[:2] == [
        "7B_gpt: megatron preset; sequences of 2,048",
        "8B_qwen3: megatron preset; sequences of 8,192; assumed: sequences of 8,192 tokens, of "
        "max_position_embeddings = 40,960 (--seq_len)",
    ]
    varied = run_sweep(sweep_requests(REQUEST, {"framework": ("fsdp",), "seq_len": (1024,)}), cache=shared)
    (section,) = sweep_sections(varied, [judge(row, None, None) for row in varied])
    assert section.paragraphs[0].startswith("answered from")
    # Two files of one name are told apart by their paths.
    same = tmp_path / "7B_gpt.toml"
    same.write_bytes((ROOT / "configs" / "7B_gpt.toml").read_bytes())
    rows = run_sweep(sweep_requests(REQUEST, {"model": ("7B_gpt", same)}), cache=shared)
    assert [row.values["model"] for row in rows] == ["7B_gpt", str(same)]


def test_a_row_is_the_answer_of_its_question(rows: tuple[SweepRow, ...], shared: ProfileCache) -> None:
    (values, request) = sweep_requests(REQUEST, {"world_size": (16,)})[0]
    alone = load_problem(request)
    space = full_space(alone.problem.model, alone.problem.job, alone.constraints)
    best = search(alone.problem, space, top_k=1).best[0]
    row = rows[2]
    assert (row.values, row.answer and row.answer.plan) == (values, best.plan)
    assert row.answer is not None
    assert row.answer.step_s == pytest.approx(best.step_s, rel=1e-12)
    assert len(shared.times) == len(shared.files) == 1


def test_clusters_of_a_sweep_have_their_own_profiles() -> None:
    cache, question = ProfileCache(), request("7B_llama2.py", 8)
    files = [
        cache.file(replace(question, profile=None, cluster=name)).path.name for name in ("h100-sxm", "h200", "b200")
    ]
    assert files == ["h100-sxm.pt", "data.pt", "b200.pt"]


def test_a_world_too_small_says_what_it_lacks(rows: tuple[SweepRow, ...]) -> None:
    assert rows[0].answer is None
    assert rows[0].why_none.startswith("nearest miss: mtp ")
    assert "GiB of 71.3" in rows[0].why_none
    # 512 sequences do not divide by three nodes' ranks.
    assert rows[3].answer is None or rows[3].answer.plan.dp % 3


def test_efficiency_is_against_the_fewest_gpus_of_the_series(rows: tuple[SweepRow, ...]) -> None:
    found = efficiencies(rows)
    assert (found[0], found[1]) == (None, 1.0)
    assert rows[1].answer is not None
    assert rows[4].answer is not None
    assert found[4] == pytest.approx(rows[4].answer.tgs / rows[1].answer.tgs)
    assert 0.5 < (found[4] or 0.0) < 1.0


def test_a_replan_takes_the_best_world_of_at_most_so_many(rows: tuple[SweepRow, ...]) -> None:
    taken = {row.values["world_size"]: best and best.values["world_size"] for row, best in plans_by_nodes(rows)}
    assert taken == {1: None, 8: 8, 16: 16, 24: 16, 32: 32}
    assert next(row for row in nodes_table(rows).rows if row[0] == "3")[:3] == ["3", "24", "1"]
    assert node_counts(32, rows[0].inputs.problem.cluster) == (8, 16, 24, 32)
    assert node_counts(4, rows[0].inputs.problem.cluster) == (4,)


def test_rows_are_ranked_by_what_is_asked(rows: tuple[SweepRow, ...]) -> None:
    terms = RunTerms(tokens=1e12, price_per_gpu_hour=2.0)
    found = [judge(row, Reliability(), terms) for row in rows]
    worlds = {by: [one.row.values["world_size"] for one in rank_rows(found, by)] for by in ("step", "goodput", "cost")}
    assert worlds["step"][0] == worlds["goodput"][0] == 32
    assert worlds["cost"][0] == 8
    assert worlds["step"][-2:] == worlds["cost"][-2:] == [1, 24]
    # On GPUs that fail all the time more of them train less.
    failing = [judge(row, Reliability(mtbf_hours=0.5, checkpoint_s=60.0), terms) for row in rows]
    assert rank_rows(failing, "goodput")[0].row.values["world_size"] == 8
    assert rank_rows([judge(row, None, None) for row in rows], "cost")[0].row.values["world_size"] == 8


def test_nodes_held_idle_are_paid_for_in_any_ranking(rows: tuple[SweepRow, ...]) -> None:
    # Eight spare nodes make nine of one, and three times as many of four.
    spared = Reliability(spare_nodes=8, repair_hours=1.0)
    assert [judge(row, spared, None).paid_gpus for row in rows] == [65, 72, 80, 88, 96]
    for terms in (None, RunTerms(tokens=1e12, spare_nodes=8)):
        found = [judge(row, spared, terms) for row in rows]
        assert rank_rows(found, "cost")[0].row.values["world_size"] == 32


def test_questions_that_share_no_series_are_neither_mixed_nor_compared(
    rows: tuple[SweepRow, ...], shared: ProfileCache
) -> None:
    """Of a cluster twice as fast no other takes a plan, nor the fewest GPUs that fit."""
    faster = run_sweep(sweep_requests(replace(REQUEST, cluster="b200"), {"world_size": (8, 16)}), cache=shared)
    both = [
        *(replace(row, values={"cluster": "h100-sxm", **row.values}) for row in rows),
        *(replace(row, values={"cluster": "b200", **row.values}) for row in faster),
    ]
    runs = [(row.values["cluster"], best and best.values["cluster"]) for row, best in plans_by_nodes(both)]
    assert runs == [("h100-sxm", None), *[("h100-sxm", "h100-sxm")] * 4, *[("b200", "b200")] * 2]
    found = nodes_table(both)
    assert (found.header[0], found.rows[0][0], found.rows[-1][0]) == ("cluster", "h100-sxm", "b200")
    assert 0 in found.words
    record = nodes_record(both)
    assert [one["idle_nodes"] for one in record] == [None, 0, 0, 1, 0, 0, 0]
    assert record[2]["best"] is not None
    assert record[3]["best"] == record[2]["best"]
    assert [one["why_none"] == "" for one in record] == [False, *[True] * 6]
    assert fewest_words(both) == "fewest GPUs that fit, of these: 8, in each series"
    assert fewest_words([both[0], both[-1]]).endswith("cluster h100-sxm: none; cluster b200: 16")
    assert fewest_words([both[0]]) == "no plan fits any of these"


def test_a_wait_for_a_node_is_told_where_it_is_a_tenth_of_a_minute(rows: tuple[SweepRow, ...]) -> None:
    for spare_nodes, told in ((0, True), (50, False)):
        one = judge(rows[4], Reliability(spare_nodes=spare_nodes, repair_hours=1.0), None).goodput
        assert one is not None
        assert ("for a node" in goodput_words(one)) == told


def test_efficiency_is_told_where_worlds_are_varied_and_wherever_a_sweep_is_written(
    rows: tuple[SweepRow, ...], tmp_path: Path
) -> None:
    found = [judge(row, None, None) for row in rows]
    assert "efficiency" in sweep_table(found).header
    alone = [judge(replace(row, values={"micro_batch": 1}), None, None) for row in rows[1:2]]
    assert "efficiency" not in sweep_table(alone).header
    record = sweep_record(found)["sweep"]
    assert isinstance(record, list)
    assert [one["efficiency"] for one in record] == efficiencies(rows)
    write_sweep_csv(tmp_path / "sweep.csv", found)
    with (tmp_path / "sweep.csv").open(newline="") as handle:
        told = [line["efficiency"] for line in csv.DictReader(handle)]
    assert told == ["" if one is None else repr(one) for one in efficiencies(rows)]


def test_the_table_has_every_question_and_the_fewest_gpus(rows: tuple[SweepRow, ...]) -> None:
    found = [judge(row, Reliability(), RunTerms(tokens=1e12)) for row in rows]
    body = sweep_table(found).rows
    assert [row[0] for row in body] == [str(world) for world in WORLDS]
    assert f"{tokens_per_s(rows[1]):,.0f}" in body[1]
    assert fewest_words(rows) == "fewest GPUs that fit, of these: 8"
    record = sweep_record(found)["sweep"]
    assert isinstance(record, list)
    assert [one["best"] is None for one in record] == [True, False, False, True, False]


def test_the_csv_has_every_question_with_its_best_plan(rows: tuple[SweepRow, ...], tmp_path: Path) -> None:
    found = [judge(row, Reliability(), RunTerms(tokens=1e12)) for row in rows]
    write_sweep_csv(tmp_path / "sweep.csv", found)
    with (tmp_path / "sweep.csv").open(newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert [line["asked_world_size"] for line in lines] == [str(world) for world in WORLDS]
    for line, one in zip(lines, found, strict=True):
        assert one.goodput is not None
        assert float(line["goodput_effective"]) == one.goodput.effective
        if one.row.answer is None:
            assert (line["tp"], line["step_s"], line["run_seconds"]) == ("", "", "")
            assert line["why_none"] == one.row.why_none != ""
        else:
            assert (line["tp"], line["why_none"]) == (str(one.row.answer.plan.tp), "")
            assert float(line["step_s"]) == one.row.answer.step_s
    write_sweep_csv(tmp_path / "none.csv", [judge(rows[0], None, None)])
    assert (tmp_path / "none.csv").read_text().splitlines()[0] == "asked_world_size,why_none"


def test_other_axes_change_the_request() -> None:
    found = sweep_requests(
        REQUEST, {"framework": ("fsdp", "megatron"), "micro_batch": (1, 2), "cluster": ("a100-sxm-80g",)}
    )
    assert [tuple(values.values()) for values, _ in found] == [
        ("a100-sxm-80g", framework, micro) for framework in ("fsdp", "megatron") for micro in (1, 2)
    ]
    request = found[1][1]
    assert (request.cluster, request.framework) == ("a100-sxm-80g", "fsdp")
    assert request.constraints["fix"] == {"cp": 1, "vpp": 1, "pp": 1, "micro_batch": 2}


def test_a_micro_batch_is_fixed_or_varied() -> None:
    fixed = replace(REQUEST, constraints={"fix": {"micro_batch": 4}})
    with pytest.raises(ConfigError, match="fixed or varied, not both"):
        sweep_requests(fixed, {"micro_batch": (1, 2)})
    assert len(sweep_requests(fixed, {"world_size": (8, 16)})) == 2


def test_what_cannot_be_asked_is_refused_before_anything_is_priced() -> None:
    ticks: list[int] = []
    with pytest.raises(ConfigError, match="a multiple of 8"):
        run_sweep(sweep_requests(REQUEST, {"world_size": (8, 12)}), tick=lambda: ticks.append(1))
    assert not ticks
    assert isinstance(REQUEST.config, Path)
