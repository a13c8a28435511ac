"""A plan as a SimAI file: clean by the checker, its seconds those priced, and nothing left out in silence."""

from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from solver.plans.plan_table import Plan
from spec.errors import ExportError
from tests.solver.questions import question
from tests.workload.random_plans import Case, cases
from workload.simai.check import check_simai
from workload.simai.export import export_simai
from workload.simai.reader import read_simai
from workload.stage_work import stage_works


@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_the_checker_finds_no_defect(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("simai") / "w.txt"
    assume((case.plan.dp * case.plan.cp) % case.plan.ep == 0)
    exported = export_simai(case.question, case.plan, path, strict=False)
    # SimAI takes forward sizes below 4,096 bytes for 4,096, which its fixed times do not notice.
    assert {finding.code for finding in check_simai(read_simai(path))} <= {"forward-floor"}
    assert len(path.read_text().splitlines()) == 2 + exported.rows


def test_compute_seconds_in_the_file_are_the_seconds_priced(tmp_path: Path) -> None:
    plan = Plan(strategy="fsp", preset="internevo", tp=4, dp=4, micro_batch=2, num_micro=8)
    asked = question(world_size=16, sequences=64)
    work = stage_works(asked, plan)[0]
    path = tmp_path / "w.txt"
    export_simai(asked, plan, path, strict=False)
    cells = [line.split("\t") for line in path.read_text().splitlines()[2:]]
    written_s = sum(int(row[2]) + int(row[5]) + int(row[8]) for row in cells) * 1e-9
    priced_s = plan.num_micro * sum(
        repeat * item.seconds for repeat, item in work.per_micro_batch() if item.collective is None
    ) + sum(item.seconds for item in work.step if item.collective is None)
    # Every cell is rounded to a nanosecond.
    assert written_s == pytest.approx(priced_s, abs=3e-9 * len(cells))


def test_strict_export_refuses_what_the_format_cannot_say(tmp_path: Path) -> None:
    plan = Plan(strategy="isp", preset="internevo", tp=1, wp=8, dp=16, micro_batch=1, num_micro=4)
    path = tmp_path / "w.txt"
    with pytest.raises(ExportError, match=r"attention\.qkv\.weight"):
        export_simai(question(), plan, path, strict=True)
    assert not path.exists()


def test_nothing_is_written_for_groups_of_one(tmp_path: Path) -> None:
    plan = Plan(strategy="mtp", preset="internevo", tp=1, dp=1, micro_batch=1, num_micro=4)
    path = tmp_path / "w.txt"
    exported = export_simai(question(world_size=1, sequences=4), plan, path, strict=True)
    assert exported.beyond == ()
    assert {word for line in path.read_text().splitlines()[2:] for word in line.split("\t")[3::3][:3]} == {
        "NONE"
    }
