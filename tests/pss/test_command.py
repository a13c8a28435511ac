"""pss: every verb reaches its program, which speaks under the verb's name; what cannot be meant is one line and 2."""

from unittest.mock import patch

import pytest

from pss import plans, profile, workload
from pss.command import help_lines, main
from pss.subcommands import SUBCOMMANDS
from spec.program.command import VERSION_LINE

# The verbs that the project promises.
PROMISED = (
    *("search", "price", "explain", "sweep", "profile", "workload"),
    *("calibrate", "merge", "run", "train", "compare"),
)


def test_every_promised_verb_is_there() -> None:
    assert set(PROMISED) <= set(SUBCOMMANDS)
    assert all(any(line.split()[:1] == [verb] for line in help_lines()) for verb in SUBCOMMANDS)


@pytest.mark.parametrize("verb", SUBCOMMANDS)
def test_a_verb_speaks_under_its_own_name(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--nothing"] if verb != "explain" else [verb, "tp=2", "--nothing"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(("error: pss: ", f"error: pss {verb}: "))
    assert main([verb, "--help"]) == 0
    assert f"pss {verb}" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "handed"),
    [
        (["search", "--x"], ["--run_all_solu", "--x"]),
        (["price", "tp=8,pp=2", "--x"], ["--plan=tp=8,pp=2", "--x"]),
        (["price", "--x"], ["--x"]),
        (["explain", "tp=8", "pp=2", "--x"], ["--explain=tp=8", "--explain=pp=2", "--x"]),
        (["explain", "rank=2", "--x"], ["--run_all_solu", "--explain=rank=2", "--x"]),
        (["compare", "tp=8", "tp=4", "--x"], ["--compare=tp=8", "--compare=tp=4", "--x"]),
    ],
)
def test_plans_are_typed_before_options(words: list[str], handed: list[str]) -> None:
    with patch.object(plans, "main", return_value=3) as called:
        assert main(words) == 3
    called.assert_called_once_with(handed, f"pss {words[0]}")


@pytest.mark.parametrize(
    ("words", "handed", "program"),
    [
        (["workload", "groups", "--tp", "2"], ["groups", "--tp", "2"], "pss workload"),
        (["compare", "log.txt"], ["compare", "log.txt"], "pss"),
    ],
)
def test_workloads_verbs(words: list[str], handed: list[str], program: str) -> None:
    with patch.object(workload, "main", return_value=0) as called:
        assert main(words) == 0
    called.assert_called_once_with(handed, program)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serch"], "no verb 'serch'; one of search, price"),
        (["price", "tp8"], "pss price: 'tp8' is no plan"),
        (["price", "tp=8", "tp=4"], "pss price: 2 plans, at most 1"),
        (["explain", "--config", "x"], "pss explain: a plan first"),
        (["sweep", "--world_size", "64"], "pss sweep: a list, such as --world_size 64,128"),
        (["schema", "question"], "pss schema: the name of a schema: answer, plan, job, constraints"),
        (["completion", "powershell"], "pss completion: the name of a shell"),
        (["merge", "a"], "pss merge: the following arguments are required"),
        (["compare", "a.json", "b.json"], "pss compare: a.json: no such file"),
        (["compare", "README.md", "b.json"], "pss compare: README.md: not what --json wrote"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    "program", [main, plans.main, profile.main, workload.main], ids=["pss", "search", "profile", "workload"]
)
def test_every_program_says_its_version(program, capsys: pytest.CaptureFixture[str]) -> None:
    assert program(["--version"]) == 0
    assert capsys.readouterr().out == f"{VERSION_LINE}\n"
