"""Launches matched to operations: a run that is made of what is expected is known again, whatever it leaves out."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from runner.comparison.expected import Expected, expected_step
from runner.comparison.matching import match_launches
from runner.comparison.operations import OperationComparison, compare_operations, lines
from runner.traces.launches import step_launches
from runner.traces.trace_file import (
    BACKWARD,
    FORWARD,
    Key,
    MeasuredLaunch,
    Part,
    collective_key,
    product_key,
    read_trace,
)
from solver.plans.plan_table import Plan
from solver.problem.loading import load_problem
from solver.problem.problem import Problem
from solver.problem.requested_plan import parse_plan, plan_of
from tests.runner.traces.made_traces import trace_of
from tests.solver.questions import request
from workload.stage_work import stage_works


@pytest.fixture(scope="module")
def question() -> tuple[Problem, Plan]:
    """Two stages of two tensor-parallel ranks."""
    sizes = {"global_batch_tokens": 2048, "cluster": "h100-sxm", "framework": "megatron", "missing": "modelled"}
    question = load_problem(request("tiny_internlm2.py", 4, **sizes)).problem
    return question, plan_of(parse_plan("tp=2,pp=2,strategy=fsp,micro_batch=1"), question, "--plan")


def compare_run(question: tuple[Problem, Plan], path: Path, *, shapes: bool) -> OperationComparison:
    expected = expected_step(*question, 0)
    path.write_text(json.dumps(trace_of(expected, slower=2.0, shapes=shapes)))
    trace = read_trace(path)
    result = step_launches(trace)
    return compare_operations("made", expected, result.launches, result.num_steps, result.idle_s)


def test_every_operation_of_a_gpus_trace_is_known_again(question: tuple[Problem, Plan], tmp_path: Path) -> None:
    one = compare_run(question, tmp_path / "a.json", shapes=True)
    assert (one.num_steps, one.matched_share) == (2, 1.0)
    assert (list(one.matched.only_expected), list(one.matched.only_measured)) == ([], [])
    assert all(pair.ratio == pytest.approx(2.0, rel=1e-3) for pair in one.matched.pairs)
    for part, expected_s in one.expected_s.items():
        assert one.measured_s[part] == pytest.approx(2 * expected_s, rel=1e-3)
    # tp's four collectives a layer and pass, and the messages both ways: 2 layers, 8 micro-batches on this stage
    counts = {(pair.key.what, pair.axis): pair.expected_count for pair in one.collectives if pair.axis == "pp"}
    assert counts == {("p2p", "pp"): 2 * 8}
    assert one.idle_s is not None


def test_what_names_no_shape_is_known_by_its_order(question: tuple[Problem, Plan], tmp_path: Path) -> None:
    one = compare_run(question, tmp_path / "a.json", shapes=False)
    products = [pair for pair in one.matched.pairs if pair.key.part is Part.PRODUCT]
    assert {pair.how for pair in products} == {"by order"}
    assert all(pair.ratio == pytest.approx(2.0, rel=1e-3) for pair in products)
    assert (list(one.matched.only_expected), list(one.matched.only_measured)) == ([], [])


def test_the_last_stage_has_the_head(question: tuple[Problem, Plan]) -> None:
    labels = [{one.label for one in expected_step(*question, rank)} for rank in range(4)]
    assert labels[0] == labels[1] != labels[2] == labels[3]
    assert "forward head.logits" in labels[2] - labels[0]


def test_the_expected_step_is_the_priced_one(question: tuple[Problem, Plan]) -> None:
    """Six products of a stage's two layers and 8 micro-batches and their gradients: 6 N T, with N the weights
    of products on a rank and T the step's tokens of it (arXiv 2001.08361 sec. 2.1)."""
    flops = 0.0
    for one in expected_step(*question, 0):
        if one.key.shape is not None and one.key.part is Part.PRODUCT:
            batch, low, inner, high = one.key.shape
            flops += 2.0 * batch * low * inner * high * one.count
    weights = 2 * (256 * 512 + 256 * 256 + 3 * 256 * 896) / 2
    assert flops == pytest.approx(6 * weights * 8 * 256)


def test_every_second_priced_is_expected(question: tuple[Problem, Plan]) -> None:
    work = stage_works(*question)[-1]
    priced_s = sum(times * item.seconds for times, item in work.per_step())
    priced_s += work.num_micro * work.p2p_messages * work.p2p_s
    assert sum(one.seconds * one.count for one in expected_step(*question, 2)) == pytest.approx(priced_s, rel=1e-9)


def want(key: Key, label: str, seconds: float = 1.0, count: int = 1) -> Expected:
    return Expected(key=key, label=label, axis="tp", seconds=seconds, count=count)


def ran(*keys: Key, seconds: float = 2.0) -> list[MeasuredLaunch]:
    return [MeasuredLaunch(key=key, name="mm", start_s=float(at), seconds=seconds) for at, key in enumerate(keys)]


QKV = product_key(1, 64, 256, 512, FORWARD)
Q, K = product_key(1, 64, 256, 256, FORWARD), product_key(1, 64, 256, 128, FORWARD)


def test_queries_keys_and_values_apart_are_one_product() -> None:
    result = match_launches([want(QKV, "qkv")], ran(K, Q, K), 1)
    (pair,) = result.pairs
    assert (pair.how, pair.measured_s, pair.measured_count, pair.ratio) == ("ran as 3 products", 6.0, 1, 6.0)
    assert not result.only_measured
    # what adds up to something else is no part of it
    result = match_launches([want(QKV, "qkv")], ran(Q, K), 1)
    assert ([one.label for one in result.only_expected], len(result.only_measured)) == (["qkv"], 2)


def test_gradients_of_products_apart_add_up_in_another_side() -> None:
    input_grad, weight_grad = product_key(1, 64, 512, 256, BACKWARD), product_key(1, 512, 64, 256, BACKWARD)
    parts = [product_key(1, 64, inner, 256, BACKWARD) for inner in (256, 128, 128)]
    parts += [product_key(1, rows, 64, 256, BACKWARD) for rows in (256, 128, 128)]
    result = match_launches([want(input_grad, "dx"), want(weight_grad, "dw")], ran(*parts), 1)
    assert [(pair.label, pair.how) for pair in result.pairs] == [
        ("dx", "ran as 3 products"),
        ("dw", "ran as 3 products"),
    ]
    assert not result.only_measured


def test_equal_parts_are_likelier_than_a_gate_and_a_query() -> None:
    """Widths of 64 for queries, keys and values, of 128 for gate and up: 64 + 128 would be 192 as well."""
    qkv, up = product_key(1, 32, 64, 192, FORWARD), product_key(1, 32, 64, 256, FORWARD)
    narrow, wide = product_key(1, 32, 64, 64, FORWARD), product_key(1, 32, 64, 128, FORWARD)
    result = match_launches([want(qkv, "qkv"), want(up, "up")], ran(narrow, narrow, narrow, wide, wide), 1)
    assert {pair.label: pair.how for pair in result.pairs} == {"qkv": "ran as 3 products", "up": "ran as 2 products"}
    assert not result.only_measured


def attention(elements: int) -> Key:
    return Key(part=Part.ATTENTION, what="attention", direction=FORWARD, shape=(elements,))


def test_an_attention_in_other_calls_looks_at_as_many_pairs() -> None:
    """Rank 0 of 2 of a sequence of 32: its 16 queries to their own keys and to half of the others', or the first and
    the last quarter of the sequence to all before them (8 9 / 2 + 8 24 + 8 9 / 2)."""
    ours = [replace(want(attention(16), "core"), pairs=16 * 17 / 2), replace(want(attention(16), "ring"), pairs=16 * 8)]
    halves = [
        replace(one, pairs=pairs) for one, pairs in zip(ran(attention(8), attention(8)), (36.0, 228.0), strict=True)
    ]
    (pair,) = match_launches(ours, halves, 1).pairs
    assert (pair.how, pair.expected_s, pair.measured_s) == ("split differently, same pairs", 2.0, 4.0)
    fewer = [halves[0], replace(halves[1], pairs=200.0)]
    assert len(match_launches(ours, fewer, 1).only_measured) == 1
    silent = [halves[0], replace(halves[1], pairs=None)]
    assert not match_launches(ours, silent, 1).pairs


def test_a_message_over_all_ranks_is_one_of_the_pipelines() -> None:
    key, own = collective_key("p2p", 64, 4), collective_key("p2p", 64, 2)
    assert [pair.measured_s for pair in match_launches([want(own, "hop")], ran(key), 1).pairs] == [2.0]
    result = match_launches([want(own, "hop")], ran(key, own), 1)
    assert [one.key for one in result.only_measured] == [key]
    other = [collective_key("all_gather", 64, ranks) for ranks in (2, 4)]
    assert not match_launches([want(other[0], "gather")], ran(other[1]), 1).pairs


def test_as_many_launches_as_operations_are_paired_one_by_one() -> None:
    key = collective_key("all_gather", 64, 2)
    launched = [replace(one, seconds=float(at)) for at, one in enumerate(ran(*[key] * 6))]
    result = match_launches([want(key, "first"), want(key, "second", count=2)], launched, 2)
    assert {pair.label: (pair.measured_count, pair.measured_s) for pair in result.pairs} == {
        "first": (1, (0 + 3) / 2),
        "second": (2, (1 + 2 + 4 + 5) / 2),
    }


def test_too_few_and_too_many_are_left_over() -> None:
    key, other = collective_key("all_gather", 64, 2), collective_key("all_gather", 64, 4)
    unlike = [replace(one, seconds=each) for one, each in zip(ran(key, key), (1.0, 3.0), strict=True)]
    result = match_launches([want(key, "a"), want(key, "b"), want(key, "c")], unlike, 1)
    assert [pair.label for pair in result.pairs] == ["a", "b"]
    assert [(one.label, one.count) for one in result.only_expected] == [("c", 1)]
    assert [(pair.measured_s, pair.fastest_s) for pair in result.pairs] == [(2.0, 1.0), (2.0, 1.0)]
    result = match_launches([want(key, "a")], ran(key, key, other), 1)
    assert Counter((one.key, one.count) for one in result.only_measured) == {(key, 1): 1, (other, 1): 1}


def test_gradients_cut_into_other_buckets_are_one_reduction() -> None:
    whole = collective_key("all_reduce", 4000, 8)
    parts = [collective_key("all_reduce", size, 8) for size in (2500, 1480)]
    (pair,) = match_launches([want(whole, "gradients")], ran(*parts), 1).pairs
    assert (pair.how, pair.expected_s, pair.measured_s) == ("split differently, same bytes", 1.0, 4.0)
    assert pair.ratio == 4.0  # both pieces against the one that was expected
    less = match_launches([want(whole, "gradients")], ran(parts[0]), 1)
    assert (len(less.pairs), len(less.only_expected), len(less.only_measured)) == (0, 1, 1)


@pytest.mark.parametrize(
    ("size_bytes", "seconds", "hint"),
    [
        (2**20, (9.0, 9.0), "always: bandwidth"),
        (2**10, (9.0, 9.0), "always: latency"),
        (2**20, (1.0, 9.0), "its fastest 1.00 x: ranks arrive late"),
        (2**20, (0.5, 0.5), "its curve is too slow"),
        (2**20, (1.2, 1.1), ""),
    ],
)
def test_what_a_gap_suggests(size_bytes: int, seconds: tuple[float, float], hint: str) -> None:
    key = collective_key("all_reduce", size_bytes, 8)
    launched = [replace(one, seconds=each) for one, each in zip(ran(key, key), seconds, strict=True)]
    words = lines(compare_operations("made", [want(key, "a", count=2)], launched, 1))
    suggested = [line for line in words if line.startswith("all_reduce of")]
    assert len(suggested) == bool(hint)
    assert all(hint in line for line in suggested)


def test_a_receive_that_takes_long_is_one_that_waits() -> None:
    key = collective_key("p2p", 2**20, 2)
    output = lines(compare_operations("made", [want(key, "hop")], ran(key, seconds=9.0), 1))
    assert output[-1] == "p2p of 1.0 MB over tp 2: 9.00 x predicted: a receive includes the wait for the other stage"


# Experts' exchanges and products are known again however the router deals the tokens.

SENT = collective_key("all2all", 1000, 2)
# 128 rows of 64 to gate and up of 96 each, priced as one, and back; weights' gradients by rows, as they are priced.
UP, DOWN = product_key(1, 128, 64, 192, FORWARD), product_key(1, 128, 96, 64, FORWARD)


def routed(key: Key, label: str, weight: tuple[int, int] | None = None) -> Expected:
    return Expected(key=key, label=label, axis="ep", seconds=1.0, count=1, routed=True, weight=weight)


def test_exchanges_of_other_sizes_are_paired_in_order() -> None:
    wanted = [routed(SENT, "dispatch"), routed(SENT, "combine")]
    sizes = [1000, 1750]
    result = match_launches(wanted, ran(*(collective_key("all2all", size, None) for size in sizes)), 1)
    assert [(pair.label, pair.how, pair.ratio) for pair in result.pairs] == [
        ("dispatch", "as routed", 2.0),
        ("combine", "as routed", 2.0),
    ]
    assert (list(result.only_expected), list(result.only_measured)) == ([], [])


def test_exchanges_of_what_no_rank_can_have_are_none() -> None:
    """Both ranks' rows are 2000 bytes; the counts of rows that go before them 32."""
    wanted = [routed(SENT, "dispatch"), routed(SENT, "combine")]
    result = match_launches(wanted, ran(*(collective_key("all2all", size, None) for size in (1000, 2001, 32))), 1)
    assert [pair.label for pair in result.pairs] == ["dispatch"]
    assert {one.key.size_bytes for one in result.only_measured} == {2001, 32}


def test_each_experts_products_are_those_of_all() -> None:
    wanted = [routed(UP, "up", (64, 192)), routed(DOWN, "down", (96, 64))]
    rows = (30, 66)
    apart = [product_key(1, each, *sides, FORWARD) for each in rows for sides in ((64, 96), (64, 96), (96, 64))]
    other = product_key(1, 128, 64, 64, FORWARD)
    (pair,) = match_launches(wanted, ran(*apart), 1).pairs
    assert pair.how == "per expert, 0.75 x the rows"
    assert (pair.label, pair.expected_s, pair.measured_s, pair.ratio) == ("forward products of experts", 2, 12, 6)
    assert [one.key for one in match_launches(wanted, ran(*apart, other), 1).only_measured] == [other]
    backward = [replace(key, direction=BACKWARD) for key in apart]
    assert not match_launches(wanted, ran(*backward), 1).pairs
