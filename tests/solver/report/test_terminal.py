"""What a terminal shows: never wider than it is, what matters first, and 30 lines unless more is requested."""

import io
import sys
from collections.abc import Callable

import pytest

import pss.plans
import simulation_train_formulaic as command
from ops.recompute import Recompute
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.problem.price import price_plan
from solver.report.plans import plans_table
from solver.report.sections import ReportSection, Table
from solver.report.summary import plan_words
from solver.report.terminal import fit, fitted, terminal_width, text
from spec.frameworks import framework_preset
from tests.solver.questions import ROOT, question, small_model

TINY = f"--config {ROOT}/configs/tiny_internlm2.py --cluster h100-sxm --world_size 8 --global_batch_size 65536"
MOE = f"--config {ROOT}/configs/tiny_deepseek.toml --cluster h100-sxm --world_size 8 --global_batch_size 65536"
FEW = "--run_all_solu --fix cp=1,pp=1,micro_batch=1"
QUESTIONS = {
    "dense": f"{TINY} {FEW}",
    "dense, everything": f"{TINY} {FEW} --framework megatron --verbose",
    "MoE": f"{MOE} {FEW} --framework megatron",
    "sweep": f"{TINY} {FEW} --framework megatron --world_size 8,16 --tokens 1T --price_per_gpu_hour 2",
    "no plan fits": f"{TINY} {FEW} --framework megatron --memory_gib 0.1",
    "given": f"{TINY} --framework megatron --plan tp=2,pp=2",
    "compared": f"{TINY} --framework internevo --compare tp=2,pp=2 tp=1,micro_batch=2 --explain tp=2,pp=2",
}


class Screen(io.StringIO):
    """A terminal's error stream."""

    def isatty(self) -> bool:
        """Always."""
        return True


def computed_once(function: Callable[..., object]) -> Callable[..., object]:
    """The function, which returns its first result from then on: what an answer says hangs on no width."""
    results: list[object] = []

    def first_result(*arguments: object) -> object:
        if not results:
            results.append(function(*arguments))
        return results[0]

    return first_result


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=[pytest.mark.nightly] * (one not in ("dense", "MoE", "sweep", "no plan fits")))
        for one in QUESTIONS
    ],
)
def test_an_answer_is_at_most_as_wide_as_the_terminal_and_30_lines(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = name not in ("dense, everything", "compared")
    for called in ("search_plans", "other_frameworks_of", "price_given_plan"):
        monkeypatch.setattr(pss.plans, called, computed_once(getattr(pss.plans, called)))
    for width in (60, 80, 100, 200) if name == "dense" else (60, 100):
        screen = Screen()
        with pytest.MonkeyPatch.context() as terminal:
            terminal.setenv("COLUMNS", str(width))
            terminal.setattr(sys, "stderr", screen)
            status = command.main(QUESTIONS[name].split())
        lines = capsys.readouterr().out.splitlines()
        # Below the progress bar.
        error = screen.getvalue()[screen.getvalue().rfind("error: ") :].splitlines() if status == 2 else []
        copied = [line for line in lines if line.startswith("{'algo_type'")]
        assert all(len(line) <= width for line in (*lines, *error) if line not in copied), (width, lines, error)
        assert not short or width < 80 or len(lines) <= 30, (width, lines)
        assert (status, bool(copied)) == ((2, False) if name == "no plan fits" else (0, name != "sweep"))
        assert not error or error[0].startswith("error: no plan fits: nearest miss: ")
        if short and copied:
            assert lines[-1] == copied[0]
            assert [line.split()[0] for line in lines if line.startswith(("w", "n"))][-3:] == ["why", "watch", "next"]


def test_columns_go_in_the_stated_order_and_plan_and_step_stay() -> None:
    plans = tuple(Plan(strategy="fsp", preset="megatron", tp=tp, pp=2, dp=4 // tp, num_micro=16) for tp in (2, 4))
    case = question(model=small_model(layers=8), world_size=8, sequences=16, preset=framework_preset("megatron"))
    shown = plans_table([price_plan(case, PlanTable.of(plan))[0] for plan in plans], "plans", "full")
    widths = [max(map(len, column)) for column in zip(shown.header, *shown.rows, strict=True)]
    gone = [len(shown.header) - len(fit(widths, shown, width)[0]) for width in range(200, 30, -1)]
    assert gone == sorted(gone)
    assert (gone[0], gone[-1]) == (0, len(shown.header) - 2)
    names = [shown.header[at] for at in shown.drops]
    assert (names[0], names[-4:]) == ("origin", ["MFU % (full)", "TGS", "80 % interval", "GiB"])
    for width in range(30, 200):
        columns, _ = fit(widths, shown, width)
        assert set(range(len(widths))) - set(columns) == set(shown.drops[: len(widths) - len(columns)])
        assert columns[:2] == [0, 1]


def test_a_label_folds_at_its_spaces_and_what_is_left_out_is_named() -> None:
    label = "fsp tp2 pp16 ep8 dp32 zero32 mb2x256 recompute-layernorm+mla_up_proj+moe"
    rows = [[label, "59445.5", "70.3", "1102"]]
    shown = Table(caption="", header=("plan", "step ms", "GiB", "TGS"), rows=rows, drops=(3, 2))
    assert fitted(shown, 45) == [
        "plan                                  step ms",
        "---------------------------------------------",
        "fsp tp2 pp16 ep8 dp32 zero32 mb2x256  59445.5",
        " recompute-layernorm+mla_up_proj+moe",
        "left out for the width: GiB, TGS",
    ]
    assert " ".join(line[:72].strip() for line in fitted(shown, 120)[2:]).startswith(label)


def test_facts_hang_and_details_are_printed_on_request() -> None:
    section = ReportSection(anchor="a", title="A", facts=[("best", "one two three four five six")])
    hidden = ReportSection(anchor="b", title="B", paragraphs=["shown only when wanted, at length"], details=True)
    assert text([section, hidden], 24, verbose=False) == "best     one two three\n         four five six"
    assert text([hidden], 24) == "B\n  shown only when\n    wanted, at length"


def test_an_unknown_width_is_100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())
    assert terminal_width() == 100
    monkeypatch.setenv("COLUMNS", "20")
    assert terminal_width() == 40


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            Plan(strategy="msp", preset="", tp=4, pp=4, vpp=5, dp=2, zero_stage=1, zero_size=2, num_micro=8),
            "tensor and sequence parallel 4, pipeline 4 with 5 chunks, data parallel 2, optimizer state sharded over 2, "
            "8 micro-batches of 1 sequence",
        ),
        (
            Plan(strategy="isp", preset="", tp=2, wp=8, cp=2, micro_batch=2, recompute=Recompute.FULL),
            "sequence parallel 2 by all-to-all around attention, context parallel 2, weights sharded over 8, "
            "1 micro-batch of 2 sequences, recomputes every layer",
        ),
        (
            Plan(
                strategy="mtp",
                preset="",
                ep=8,
                etp=2,
                tp=2,
                schedule=Schedule.GPIPE,
                stage_layout="Et|tL",
                recompute=Recompute.BLOCK,
                num_recompute_layers=3,
                recompute_modules=("mla_up_proj",),
                optimizer_offload=0.5,
                offloaded_layers=2,
                offload_modules=("core_attn",),
            ),
            "tensor parallel 2, expert parallel 8, tensor parallel 2 in experts, 1 micro-batch of 1 sequence, schedule "
            "gpipe, layers of each stage written out, recomputes 3 layers of a stage's chunk, mla up proj, 50 % of the "
            "optimizer on the host, saved activations of 2 layers, core attn on the host",
        ),
    ],
)
def test_codes_of_a_plan_are_words(plan: Plan, words: str) -> None:
    assert plan_words(plan) == words
