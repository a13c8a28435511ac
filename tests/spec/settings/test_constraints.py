"""Constraints as written: read from a file, a command line and Python alike, and contradictions refused."""

from math import inf
from pathlib import Path

import pytest

from pss.plan_options import constraint_options, options_parser
from spec.errors import ConfigError
from spec.readers.read_config import read_config
from spec.settings.constraints import HEADROOM, Bound, bounded_settings, constraints_of, merged, requested_constraints
from spec.settings.plan import plan_settings

TYPED = [
    *("--world_size", "64", "--fix", "tp=8,schedule=1f1b", "--max", "micro_batch=4", "--min", "pp=2,micro_batch=2"),
    *("--modes", "mtp,fsp", "--zero", "0,1", "--no_recompute", "--memory_gib", "72", "--headroom", "10%"),
    "--keep_tp_in_node",
]
WRITTEN = {
    "fix": {"tp": 8, "schedule": "1f1b"},
    "max": {"micro_batch": 4},
    "min": {"pp": 2, "micro_batch": 2},
    "modes": ["mtp", "fsp"],
    "zero": [0, 1],
    "no_recompute": True,
    "memory_gib": 72,
    "headroom": 0.1,
    "keep_tp_in_node": True,
}
IN_TOML = """
[constraints]
fix = { tp = 8, schedule = "1f1b" }
max = { micro_batch = 4 }
min = { pp = 2, micro_batch = 2 }
modes = ["mtp", "fsp"]
zero = [0, 1]
no_recompute = true
memory_gib = 72
headroom = "10%"
keep_tp_in_node = true
"""


def test_three_ways_of_writing_mean_the_same(tmp_path: Path) -> None:
    typed = constraints_of(constraint_options(options_parser().parse_args(TYPED)))
    config = Path("configs/7B_gpt.toml").resolve().read_text()
    (tmp_path / "model.toml").write_text(config + IN_TOML)
    assert constraints_of(WRITTEN) == typed
    assert constraints_of(read_config(tmp_path / "model.toml").constraints) == typed
    assert (typed.memory_gib, typed.headroom, typed.keep_tp_in_node) == (72.0, 0.1, True)
    assert typed.words() == [
        "tp = 8",
        "schedule = 1f1b",
        "micro_batch at least 2 and at most 4",
        "pp at least 2",
        "strategy = mtp or fsp",
        "zero_stage = 0 or 1",
        "recompute = none",
        "at most 72 GiB needed",
        "10 % of memory left free",
        "tp inside a node",
    ]


def test_an_option_typed_again_adds_to_what_it_said() -> None:
    both = ["--world_size", "8", "--fix", "tp=8", "--fix", "pp=2", "--max", "micro_batch=4", "--max", "vpp=2"]
    options = options_parser().parse_args([*both, "--compare", "tp=2", "--compare", "tp=4", "tp=8"])
    said = constraint_options(options)
    assert said == {"fix": {"tp": 8, "pp": 2}, "max": {"micro_batch": 4, "vpp": 2}}
    assert options.compare == ["tp=2", "tp=4", "tp=8"]
    twice = options_parser().parse_args(["--world_size", "8", "--fix", "tp=8", "--fix", "tp=4"])
    with pytest.raises(ConfigError, match="--fix: tp"):
        constraint_options(twice)


def test_nothing_said_demands_nothing() -> None:
    nothing = constraints_of(constraint_options(options_parser().parse_args(["--world_size", "8"])))
    assert (nothing.bounds, nothing.memory_gib, nothing.words()) == ((), inf, [])


def test_what_is_typed_beats_the_file_key_by_key() -> None:
    both = merged({"fix": {"tp": 8, "pp": 2}, "headroom": 0.1}, {"fix": {"tp": 4}, "headroom": 0.2})
    assert both == {"fix": {"tp": 4, "pp": 2}, "headroom": 0.2}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"fix": {"tp": 8}, "max": {"tp": 4}}, "tp = 'at most 4': what does not contradict tp = 8"),
        ({"min": {"pp": 4}, "max": {"pp": 2}}, "contradict"),
        ({"modes": ["mtp"], "fix": {"strategy": "fsp"}}, "contradict"),
        ({"no_recompute": True, "fix": {"recompute": "full"}}, "contradict"),
        ({"zero": [2, 3], "max": {"zero_stage": 1}}, "contradict"),
        ({"fix": {"layout": "Et|tL"}}, "a searched key"),
        ({"max": {"strategy": "mtp"}}, "a searched key"),
        ({"fix": {"tp": 0}}, "a whole number"),
        ({"headroom": 1.0}, "a share below the whole"),
        ({"headroom": "110%"}, "a share below the whole"),
        ({"memory": 3}, "memory_gib"),
        ({"fix": 8}, "values by key"),
    ],
)
def test_what_is_no_constraint_is_refused(said: dict[str, object], shown: str) -> None:
    with pytest.raises(ConfigError, match=shown):
        constraints_of(said)


def test_every_key_that_a_search_chooses_can_be_asked_for() -> None:
    assert set(plan_settings()) - set(bounded_settings()) == {"layout", "recompute_layers", "preset"}


def test_a_list_and_bounds_leave_what_is_in_both() -> None:
    both = Bound(key="tp", among=(2, 4, 8)).within(Bound(key="tp", least=3, most=8))
    assert both.among == (4, 8)
    assert not both.empty


@pytest.mark.parametrize(
    ("written", "headroom", "memory_gib"),
    [
        ({}, HEADROOM, inf),
        ({"fix": {"tp": 8}}, HEADROOM, inf),
        ({"headroom": 0.0}, 0.0, inf),
        ({"headroom": "20%"}, 0.2, inf),
        ({"memory_gib": 72}, 0.0, 72.0),
        ({"memory_gib": 72, "headroom": 0.1}, 0.1, 72.0),
    ],
)
def test_a_tenth_of_memory_stays_free_unless_a_limit_is_specified(
    written: dict[str, object], headroom: float, memory_gib: float
) -> None:
    asked = requested_constraints(written)
    assert (asked.headroom, asked.memory_gib) == (headroom, memory_gib)
    assert HEADROOM == 0.1
