"""Fitted and assumed constants are found wherever the code says so, varied where they act, and listed in the docs."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.constant_table import (
    APART,
    ENTRIES,
    HEAD,
    UNPRICED,
    Constant,
    constants,
    effects_in,
    in_module,
    in_spec,
    line_of,
    updated_page,
    why_unpriced,
)
from benchmarks.constants import (
    changed_constant,
    first_of_each,
    largest_effects,
    main,
    number_of,
    readers,
    row_figures,
    rows_on_spec,
    sample_rows,
    scaled,
    with_number,
)
from benchmarks.measured_times import MeasuredTimes
from ops import cpu_overhead as issuing
from profdb.modelled import gemm
from solver.times import op_times
from spec.program.command import exit_status
from tests.benchmarks.made_up_rows import EXPERTS, LARGE, ROOT, row

MODULE = '''"""About one thing.

Assumption: everything here."""

PLAIN = "word"
FIRST = 1.5
'''
BESIDE = '''
# Assumption: two that stand together.
FIRST, SECOND = 1, 2.0
THIRD: float = 3.0

# From a paper.
SOURCED = 4.0
BARE = 5.0  # Fitted: to something
FLAG = True  # Assumption: no number

BELOW = 6.0
"""Assumption: said below."""


def function() -> None:
    """Assumption: not a constant."""
    LOCAL = 7.0  # Assumption
'''
SHEET = """name = "made-up"

[gpu]
rate = 0.5
[[domains]]
name = "inner"
latency_s = 1e-6
[[domains]]
name = "outer"
latency_s = 2.5e-6

[sources]
"gpu.rate" = "Fitted: to a paper"
"domains.outer.latency_s" = "Assumption: as others"
"domains.inner.latency_s" = "a data sheet"
"node.max_nodes" = "Assumption: a fat tree"
"""


def test_constants_are_found_by_the_word_near_them() -> None:
    assert [one.name for one in in_module("a.py", MODULE)] == ["FIRST"]
    result = {one.name: one for one in in_module("b.py", BESIDE)}
    assert list(result) == ["FIRST", "SECOND", "THIRD", "BARE", "BELOW"]
    assert (result["BARE"].kind, result["BARE"].source) == ("Fitted", "Fitted: to something")
    assert result["THIRD"].source == "Assumption: two that stand together."
    sheet = {"gpu": {"rate": 0.5}, "sources": {"gpu.rate": "of that; Assumption: half", "gpu": "a data sheet"}}
    assert [(one.name, one.source) for one in in_spec("c.toml", sheet)] == [("gpu.rate", "Assumption: half")]


def short(key: str) -> str:
    """File and name of a constant, whatever the folder."""
    return key.rsplit("/", maxsplit=1)[-1]


def named(short_key: str) -> Constant:
    """The constant of the tree with this file and name."""
    (one,) = (one for one in constants(ROOT) if short(one.key) == short_key)
    return one


def test_every_constant_is_listed_and_nothing_else() -> None:
    """python benchmarks/constants.py --out benchmarks/notes/constants.md brings the list up to the tree."""
    listed = effects_in((ROOT / "benchmarks" / "notes" / "constants.md").read_text(encoding="utf-8"))
    result = [short(one.key) for one in constants(ROOT)]
    assert sorted(map(short, listed)) == sorted(result)
    assert len(result) > 150


def test_a_sheet_changes_in_one_place() -> None:
    assert (number_of(SHEET, "gpu.rate"), number_of(SHEET, "domains.outer.latency_s")) == (0.5, 2.5e-6)
    text = with_number(SHEET, "domains.outer.latency_s", 2.0)
    assert number_of(text, "domains.outer.latency_s") == 5e-6
    assert number_of(text, "domains.inner.latency_s") == 1e-6
    assert number_of(SHEET, "domains") is None
    with pytest.raises(ValueError, match="no number"):
        with_number(SHEET, "domains", 2.0)


def test_numbers_scale_and_words_stay() -> None:
    assert scaled({"a": 4, "b": (2.0, "word", True, 0)}, 0.75) == {"a": 3, "b": (1.5, "word", True, 0)}


@pytest.mark.nightly
def test_a_varied_constant_acts_everywhere_and_only_meanwhile(tmp_path: Path) -> None:
    rows, times = [row(tmp_path, LARGE, seq_len=2048)], MeasuredTimes(fitted={})
    before = row_figures(rows, times, ROOT)
    one = named("gemm.py:MMA_EFFICIENCY")
    with changed_constant(ROOT, one, 0.5, tmp_path / "root") as root:
        slower = row_figures(rows, times, root)
    assert pytest.approx(0.9) == gemm.MMA_EFFICIENCY
    assert slower.seconds.iloc[-1] > 1.01 * before.seconds.iloc[-1]
    assert row_figures(rows, times, ROOT).seconds.iloc[-1] == before.seconds.iloc[-1]
    ratio = named("a100-sxm-80g.toml:gpu.training_rate_ratio")
    with changed_constant(ROOT, ratio, 0.5, tmp_path / "root") as root:
        assert row_figures(rows, times, root).seconds.iloc[-1] > 1.01 * before.seconds.iloc[-1]


@pytest.mark.nightly
def test_what_is_made_of_a_constant_goes_with_it(tmp_path: Path) -> None:
    one = named("op_times.py:VARIATION")
    spread, calls = op_times.SPREAD, issuing.CALLS["modules"].linear
    with changed_constant(ROOT, one, 2.0, tmp_path):
        assert pytest.approx(2.0 * spread) == op_times.SPREAD
    one = named("cpu_overhead.py:CALLS")
    with changed_constant(ROOT, one, 2.0, tmp_path):
        assert issuing.CALLS["modules"].linear == pytest.approx(2.0 * calls)
    assert (op_times.SPREAD, issuing.CALLS["modules"].linear) == (spread, calls)
    # A table with a type beside its name, of entries whose class stands at the constant.
    each = {kind: entry.collective for kind, entry in issuing.CALLS.items()}
    one = named("cpu_overhead.py:NCCL_CALLS")
    with changed_constant(ROOT, one, 2.0, tmp_path):
        assert issuing.CALLS["modules"].collective == 2.0 * each["modules"] == 4.0
        assert issuing.CALLS["nanotron"].collective == each["nanotron"] + 2.0
    assert {kind: entry.collective for kind, entry in issuing.CALLS.items()} == each


def test_an_effect_names_the_datasets_that_move_most(tmp_path: Path) -> None:
    rows = [row(tmp_path, dataset=name, measured_step_s=seconds) for name, seconds in (("near", 0.01), ("far", 1e-6))]
    plain = row_figures(rows, MeasuredTimes(fitted={}), ROOT)
    slower = row_figures([row(tmp_path, dataset="near", measured_step_s=0.02), rows[1]], MeasuredTimes(fitted={}), ROOT)
    points = 100.0 * (slower.error[0] - plain.error[0])
    assert largest_effects(plain, plain, slower) == f"near +0.0 / {points:+.1f}"
    assert largest_effects(plain, plain, plain) == "nothing on these rows"
    gone = plain.assign(seconds=0.0)
    assert largest_effects(plain, plain, gone) == "near +0.0 / refused, far +0.0 / refused"


def test_rows_are_drawn_evenly_from_each_dataset(tmp_path: Path) -> None:
    rows = [row(tmp_path, row_id=f"r{n}") for n in range(9)] + [
        row(tmp_path, dataset="other"),
        row(tmp_path, measured_step_s=""),
    ]
    assert [one.row_id for one in sample_rows(rows, 1)] == ["r4", "r1"]
    assert [one.row_id for one in sample_rows(rows, 2)] == ["r2", "r6", "r1"]
    drawn = sample_rows(rows, 3)
    assert [one.row_id for one in drawn] == ["r4", "r1", "r7", "r1"]
    assert first_of_each(drawn, [1, 2, 3]) == [1, 3]


@pytest.mark.nightly
def test_a_constant_is_priced_on_the_rows_that_read_it(tmp_path: Path) -> None:
    """How experts fill tiles is read by a model with experts alone, the sheet of Hopper by a row on Hopper alone."""
    (tmp_path / "other").mkdir()
    dense = row(tmp_path)
    experts = {"dataset": "routed", "plans": "tp=2,ep=2,micro_batch=1"}
    routed = row(tmp_path / "other", EXPERTS, **experts)
    times = MeasuredTimes(fitted={})
    reading = readers([dense, routed], times, ROOT)
    everywhere = named("gemm.py:MMA_EFFICIENCY")
    assert reading.of(everywhere, ROOT) == [0, 1]
    made_into = named("op_times.py:VARIATION")
    assert reading.of(made_into, ROOT) == [0, 1]
    assert reading.of(named("op_times.py:TILE"), ROOT) == [1]
    hopper = row(tmp_path, cluster="h100-sxm")
    assert rows_on_spec("configs/clusters/h100-sxm.toml", [dense, hopper], ROOT) == [hopper]
    assert rows_on_spec("configs/architectures/ampere.toml", [dense, hopper], ROOT) == [dense]


@pytest.mark.nightly
def test_a_page_follows_where_constants_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was priced stays, also of a constant that moved; what is gone goes, what is new says that it lacks."""
    a, b, c = (Constant(path=f"{name}.py", name=name.upper(), kind="Fitted", source="Fitted: a | b") for name in "abc")
    empty = f"# Title\n\n{HEAD}\n|---|---|---|---|---|\n\nafter\n"
    page = updated_page(empty, [b, a], {a.key: "first", b.key: "second"})
    assert effects_in(page) == {"a.py:A": "first", "b.py:B": "second"}
    assert "| a / b | first |" in page
    assert page.startswith("# Title\n")
    assert page.endswith("\nafter\n")
    moved = replace(a, path="other/new.py")
    page = updated_page(page, [moved, b, c], {b.key: "third"})
    assert list(effects_in(page).items()) == [("b.py:B", "third"), ("c.py:C", UNPRICED), ("other/new.py:A", "first")]
    path = tmp_path / "page.md"
    path.write_text("nothing")
    assert exit_status(lambda: main(["--out", str(path)])) == 2
    assert HEAD in capsys.readouterr().err
    path.write_text(empty)
    assert main(["--out", str(path)]) == 0
    assert list(effects_in(path.read_text())) == [one.key for one in sorted(constants(ROOT), key=path_of)]


def path_of(constant: Constant) -> str:
    return constant.path


def test_what_no_step_is_made_of_says_why() -> None:
    assert why_unpriced(Constant(path="solver/plans/space.py", name="A", kind="Fitted", source=""))
    assert not why_unpriced(Constant(path="solver/times/op_times.py", name="A", kind="Fitted", source=""))
    assert line_of(named("flash_generations.py:WIDTHS"), "x").endswith("| x |")
    # The places are those of the tree.
    assert all((ROOT / key.split(":")[0]).is_file() for key in ENTRIES)
    assert all(list(ROOT.glob(f"{start}*")) for start in APART)
