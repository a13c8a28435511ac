"""Completion: what bash offers at a place."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from pss.completion import SHELLS, script, whole_parser
from pss.subcommands import SUBCOMMANDS, sub_parsers


def offered(path: Path, words: Sequence[str]) -> set[str]:
    """What bash completes the last word to."""
    typed = " ".join(f"'{word}'" for word in words)
    asked = f'compopt() {{ :; }}; source "{path}"; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_pss pss'
    asked += f" '{words[-1]}' '{words[-2]}'; echo \"${{COMPREPLY[@]}}\""
    said = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert not said.stderr
    return set(said.stdout.split())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "pss.bash"
    path.write_text(script(["bash"]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["pss", "se"], {"search"}),
        (["pss", "search", "--cluster", "h100-s"], {"h100-sxm"}),
        (["pss", "search", "--framework", "megatron-b"], {"megatron-bridge"}),
        (["pss", "price", "--config", "70B_llama3"], {"70B_llama3"}),
        # Bash cuts tp=8 in three words.
        (["pss", "explain", "tp", "=", "8,pp", "=", "2", "--why"], {"--why_not"}),
        (["pss", "completion", "b"], {"bash"}),
        (["pss", "schema", "a"], {"answer"}),
        (["pss", "lis"], {"list"}),
        (["pss", "search", "--missing", ""], {"error", "modelled"}),
        (["pss", "workload", "gr"], {"groups"}),
        (["pss", "workload", "groups", "--or"], {"--order"}),
    ],
)
def test_bash_offers(words: list[str], found: set[str], path: Path) -> None:
    assert offered(path, words) == found


def test_every_shell_has_a_script_of_every_verb() -> None:
    assert set(SUBCOMMANDS) <= set(sub_parsers(whole_parser()))
    for shell in SHELLS:
        assert "--why_not" in script([shell]), shell
