"""Spoilt files and command lines: an answer, or one line and exit status 2; never a traceback, a warning, NaN, a hang
or an answer that came from a number without meaning.

An input is named by its seed and a number: ``FUZZ="toml:17" python -m pytest tests/fuzz`` runs that one alone.
"""

import os
import re
import zlib
from functools import cache
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.command import Command
from tests.fuzz.damage import damage
from tests.fuzz.seeds import seeds
from tests.fuzz.verdict import Ending, complaint, run_command

NAMES = (
    *("llama_2_7b config.json", "mixtral_8x7b config.json", "deepseek_v2_lite config.json"),
    *("qwen3_30b_a3b config.json", "nemotron_h_56b config.json", "gpt_2 config.json", "toml", "py", "exports"),
    *("bundle", "internevo", "deepspeed", "search", "job", "cluster sheet", "calibration", "profile"),
    *("architecture", "check", "simulate", "replay", "busbw", "ratio tables", "AIOB file", "import-aiob"),
    *("general workload", "topology file", "generate of a config", "gemm csv", "comm csv", "attention csv"),
    *("nccl-tests", "journal", "import into", "show", "merge", "cases", "trace", "calibrate"),
    *("workload groups", "workload traffic", "workload topology", "workload generate moe", "workload generate zero"),
    *("workload tests", "search 7B", "profile options"),
)
SHORT, LONG = 1, 45
"""Inputs of a seed: 2 in every test run, 45 (over 2,000 in all) with -m nightly."""

# What asks for minutes of work by itself, not because it is spoilt.
LONG_WORK = frozenset({"--measure_missing", "--compile", "--help", "--refit"})


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Command]:
    result = seeds(tmp_path_factory.mktemp("seeds"))
    assert sorted(result) == sorted(NAMES)
    return result


@cache
def flags_of(program: str, verb: tuple[str, ...], folder: Path) -> list[str]:
    """Every flag of a program, or of its verb, as --help lists them."""
    if program == "readers":
        return []
    shown = run_command(Command(program=program, words=(*verb, "--help")), folder / "-".join((program, *verb))).out
    return sorted(set(re.findall(r"(?<!\w)--?[a-z][\w-]*", shown)) - LONG_WORK)


def undamaged(seed: Command, folder: Path) -> Ending:
    result = run_command(seed, folder)
    assert (result.status, complaint(result)) == (0, ""), result
    return result


def run_numbers(name: str, seed: Command, numbers: range, folder: Path) -> None:
    """Complain of every input of ``numbers`` that does not end as it should."""
    verb = () if seed.words[0].startswith("-") else seed.words[:1]
    base, flags = undamaged(seed, folder / "base"), flags_of(seed.program, verb, folder.parent / "fuzz_help")
    complaints = []
    for number in numbers:
        spoilt = damage(seed, Random(zlib.crc32(f"{name}:{number}".encode())), flags)
        result = run_command(spoilt.command, folder / str(number))
        if wrong := complaint(result, base if spoilt.same_or_refused else None):
            complaints.append(f"FUZZ={name}:{number} {spoilt.how}\n{spoilt.command.shown()}\n{wrong}")
    assert not complaints, f"{len(complaints)} of {len(numbers)}:\n\n" + "\n\n".join(complaints)


def chosen() -> tuple[str, int] | None:
    """The input named in FUZZ."""
    name, _, number = os.environ.get("FUZZ", "").rpartition(":")
    return (name, int(number)) if name else None


# "search" with another model.
BY_NIGHT = frozenset({"search 7B"})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in BY_NIGHT)) for name in NAMES]
)
def test_a_few(name: str, command: dict[str, Command], tmp_path: Path) -> None:
    if one := chosen():
        if one[0] == name:
            run_numbers(name, command[name], range(one[1], one[1] + 1), tmp_path)
        return
    run_numbers(name, command[name], range(SHORT), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_two_thousand(name: str, command: dict[str, Command], tmp_path: Path) -> None:
    run_numbers(name, command[name], range(SHORT, LONG), tmp_path)
