"""Given cases are measured, those alone and in their order; what this machine cannot run is left and counted."""

from dataclasses import replace
from pathlib import Path

import pytest

from profdb.cases import FAMILY_OF, Case, CollectiveCase, GemmCase, MemoryBoundCase
from profdb.store.data_file import load_profile
from profiler.cases.collective_cases import collective_cases
from profiler.cases.sweep_plan import (
    SweepPlan,
    cases_here,
    gpu_compute,
    gpu_step_parts,
    idle_notes,
    plan_cases,
    skip_notes,
)
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.world import World
from profiler.profiling_run import RunOptions, run_profiling, sweep_plan
from spec.collectives import Collective
from tests.profiler.fakes import FakeClock, FakeLauncher, device_like

ROOT = Path(__file__).resolve().parents[3]
PRODUCTS = [GemmCase(m=m, k=8, n=8) for m in (64, 8, 512)]
FUSED = MemoryBoundCase(kernel="swiglu", direction="forward", rows=8, width=8)


def gathered(intra: int, inter: int, siblings: int) -> CollectiveCase:
    return CollectiveCase(
        collective=Collective.ALL_GATHER, size_bytes=1 << 20, intra=intra, inter=inter, siblings=siblings
    )


def test_groups_that_this_world_cannot_form_are_left_with_their_reason() -> None:
    plan = SweepPlan(device_kind="cuda", domain_ranks=8, domains=2, excluded_kernels=frozenset({"swiglu"}))
    fitting, others = [gathered(8, 2, 1), gathered(2, 1, 4)], [gathered(8, 4, 1), gathered(2, 1, 1)]
    cases: list[Case] = [*others, *fitting, FUSED, *PRODUCTS]
    assert cases_here(cases, plan) == [*fitting, *PRODUCTS]
    notes = skip_notes(cases, plan)
    assert len(notes) == 3
    assert any("do not tile 2 domains of 8" in note for note in notes)
    assert any("compiler" in note for note in notes)
    assert skip_notes(None, plan) == []


def test_cases_of_every_kind_are_measured_when_they_are_given() -> None:
    """As the sweep of two domains of eight holds them: each kind is in it, and none is left."""
    plan = SweepPlan(device_kind="cuda", domain_ranks=8, domains=2, node_ranks=8, transformer_engine=True)
    one_of_each: dict[type, Case] = {}
    for item in [*gpu_compute(), *gpu_step_parts(plan), *collective_cases(8, 2, "bf16")]:
        one_of_each.setdefault(type(item.case), item.case)
    assert set(one_of_each) == set(FAMILY_OF)
    cases = list(one_of_each.values())
    assert cases_here(cases, plan) == cases


@pytest.mark.parametrize(
    ("max_bytes", "left"), [(0, []), (4 << 20, ["1 of the given cases left: left out by --only or --max_size"])]
)
def test_large_messages_of_a_file_are_measured_on_a_processor_too(max_bytes: int, left: list[str]) -> None:
    """The sweep's own list ends at 1 MiB there, as a rehearsal."""
    large = CollectiveCase(collective=Collective.ALL_GATHER, size_bytes=8 << 20, intra=2, inter=1, siblings=1)
    options = RunOptions(output=Path("p.pt"), root=ROOT, cases=(large,), max_bytes=max_bytes)
    layout = RankLayout(size=2, local_size=2)
    plan = sweep_plan(options, device_like(kind="cpu"), 2, layout)
    assert skip_notes(options.cases, plan) == left
    assert bool(skip_notes([large], sweep_plan(replace(options, cases=None), device_like(kind="cpu"), 2, layout)))


def test_a_run_measures_the_given_cases_in_their_order_and_stores_nothing_else(tmp_path: Path) -> None:
    launcher = FakeLauncher(clock=FakeClock())

    def launcher_for(world: World) -> FakeLauncher:
        return launcher

    output = tmp_path / "data.pt"
    given = (*PRODUCTS, gathered(8, 1, 1))
    options = RunOptions(output=output, root=ROOT, device="cpu", cases=given, resume=True)
    report = run_profiling(options, RankLayout(), launcher_for)
    assert launcher.launched[: len(PRODUCTS)] == PRODUCTS  # then those that real clocks read unevenly
    assert {sample.case for sample in load_profile(output).samples} == set(PRODUCTS)
    assert report is not None
    assert [note for note in report.notes if note.startswith("1 of the given cases left: ")]
    run_profiling(options, RankLayout(), launcher_for)  # --resume measures what is not there yet
    assert launcher.launched[: len(PRODUCTS)] == PRODUCTS  # then those that real clocks read unevenly


def test_a_selected_benchmark_without_a_case_on_the_device_is_named() -> None:
    plan = SweepPlan(device_kind="cpu", only=("linear", "module"))
    assert idle_notes(plan.only, plan_cases(plan)) == ["--only module: no case of it runs here"]
    assert idle_notes((), []) == []
