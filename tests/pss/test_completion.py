"""Completion: what a shell that reads the script offers at a place, and that nothing of a parser is missing."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from pss.completion import bash_script, completion_points, fish_lines
from pss.subcommands import SUBCOMMANDS

TOLD = list(completion_points())


def offered(script: Path, words: Sequence[str]) -> set[str]:
    """What bash completes the last word to."""
    typed = " ".join(f"'{word}'" for word in words)
    asked = f'source "{script}"; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _pss; echo "${{COMPREPLY[@]}}"'
    said = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert not said.stderr
    return set(said.stdout.split())


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "pss.bash"
    path.write_text(bash_script(TOLD), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["pss", "se"], {"search"}),
        (["pss", "search", "--clus"], {"--cluster"}),
        (["pss", "search", "--cluster", "h100-s"], {"h100-sxm"}),
        (["pss", "search", "--framework", "megatron-b"], {"megatron-bridge"}),
        (["pss", "price", "--config", "70B_llama3"], {"70B_llama3"}),
        (["pss", "explain", "tp", "=", "8,pp", "=", "2", "--why"], {"--why_not"}),
        (["pss", "search", "--missing", ""], {"error", "modelled"}),
        (["pss", "workload", "gr"], {"groups"}),
        (["pss", "workload", "groups", "--or"], {"--order"}),
        (["pss", "completion", "f"], {"fish"}),
        (["pss", "search", "--json", "x"], set()),
    ],
)
def test_bash_offers(words: list[str], found: set[str], script: Path) -> None:
    assert offered(script, words) == found


def test_every_option_of_every_verb_is_known() -> None:
    paths = {one.path for one in TOLD}
    assert {(verb,) for verb in SUBCOMMANDS} <= paths
    assert ("workload", "generate") in paths
    search = next(one for one in TOLD if one.path == ("search",))
    assert {"--config", "--world_size", "--fix", "--why_not", "--version"} <= set(search.options)


def test_fish_has_a_line_for_each() -> None:
    lines = list(fish_lines(TOLD))
    assert "complete -c pss -n '__fish_seen_subcommand_from search' -l config -x -a" in "\n".join(lines)
    assert sum(line.startswith("complete -c pss") for line in lines) == sum(
        len(one.options) + len(one.below) for one in TOLD
    )


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers(tmp_path: Path) -> None:
    path = tmp_path / "pss.fish"
    path.write_text("\n".join(fish_lines(TOLD)), encoding="utf-8")
    said = subprocess.run(
        ["fish", "-c", f"source {path}; complete -C 'pss search --clus'"], capture_output=True, text=True, check=True
    )
    assert "--cluster" in said.stdout


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_the_script(script: Path) -> None:
    asked = f"autoload -U +X compinit && compinit -u; autoload -U +X bashcompinit && bashcompinit; source {script}"
    said = subprocess.run(["zsh", "-fc", asked], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
