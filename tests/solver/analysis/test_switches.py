"""--try: each switch alone, then those that help together; what is no switch is refused."""

from dataclasses import replace

import pytest

from solver.analysis.best_plans import best_of
from solver.analysis.sensitivity import WhatIf
from solver.analysis.switches import current_value, tried_switches, try_switches
from solver.problem.loading import load_parsed
from solver.problem.request import ParsedRequest, read_request
from spec.errors import ConfigError
from spec.settings.job import LOW_PRECISION
from tests.solver.questions import ROOT, gpt_request

REQUEST = gpt_request(
    constraints={"fix": {"cp": 1, "vpp": 1, "pp": 1, "tp": 8}, "modes": ["fsp"], "no_recompute": True}
)


@pytest.fixture(scope="module")
def parsed() -> ParsedRequest:
    return read_request(REQUEST)


def test_a_flag_is_turned_and_of_a_choice_every_other_word_is_tried(parsed: ParsedRequest) -> None:
    assert tried_switches("tensor_parallel.overlap", parsed) == ({"tensor_parallel.overlap": True},)
    assert tried_switches("tensor_parallel.bulk_dgrad, flash_attention", parsed) == (
        {"tensor_parallel.bulk_dgrad": False},
        {"flash_attention": False},
    )
    words = tried_switches("context_parallel", parsed)
    assert {"context_parallel": current_value(parsed.job, "context_parallel")} not in words
    assert len(words) >= 1
    assert [one["precision.recipe"] for one in tried_switches("precision", parsed)] == list(LOW_PRECISION)


def test_auto_tries_switches_of_experts_where_there_are_experts(parsed: ParsedRequest) -> None:
    assert {key for one in tried_switches("auto", parsed) for key in one} == {
        "tensor_parallel.overlap",
        "precision.recipe",
    }
    request = replace(REQUEST, config=ROOT / "configs" / "30B_qwen3_moe.json", constraints={})
    keys = {key for one in tried_switches("auto", read_request(request)) for key in one}
    assert {"overlap_expert_a2a", "overlap_shared_experts", "moe_dispatcher"} <= keys


@pytest.mark.parametrize("name", ["overlap", "seq_len", "tp", ""])
def test_what_is_no_switch_is_refused(name: str, parsed: ParsedRequest) -> None:
    with pytest.raises(
        ConfigError, match=r"--try: .*auto, precision, or a setting of the job that is a flag or a choice"
    ):
        tried_switches(name, parsed)


def test_those_that_help_are_tried_together(parsed: ParsedRequest) -> None:
    inputs = load_parsed(REQUEST, parsed)
    now = best_of(inputs.problem, inputs.constraints)
    assert now is not None
    switches = (
        {"tensor_parallel.overlap": True},
        {"precision.recipe": "fp8-current"},
        {"precision.recipe": "mxfp8"},  # not on an H100
        {"flash_attention": False},
    )
    rows = try_switches(REQUEST, parsed, inputs, switches, now)
    by_words = {one.words: step(one) for one in rows}
    overlap, narrow = by_words["tensor_parallel.overlap=true"], by_words["precision.recipe=fp8-current"]
    assert max(overlap, narrow) < now.step_s < by_words["flash_attention=false"]
    assert "precision.recipe=mxfp8" not in by_words
    both = rows[-1]
    assert set(both.words.split(",")) == {"tensor_parallel.overlap=true", "precision.recipe=fp8-current"}
    assert step(both) < min(overlap, narrow)
    # One alone has nothing to be together with.
    assert len(try_switches(REQUEST, parsed, inputs, switches[:1], now)) == 1


def step(one: WhatIf) -> float:
    assert one.answer is not None
    return one.answer.step_s
