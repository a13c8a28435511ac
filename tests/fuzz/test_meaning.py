"""No option and no key of a sheet takes a number that it cannot mean."""

import argparse
import importlib
import re
from pathlib import Path
from unittest.mock import patch

import pytest

from spec.cluster.reader import read_architecture, read_cluster
from spec.errors import ConfigError
from spec.readers.read_config import read_config
from tests.fuzz.command import PROGRAMS
from tests.fuzz.damage import MEANINGLESS

ROOT = Path(__file__).resolve().parents[2]
VERBS = {
    "workload": ("generate", "check", "simulate", "topology", "groups", "import-aiob", "traffic"),
    "profdb": ("show", "merge", "import"),
}
COMMANDS = [(name, verb) for name in PROGRAMS if name != "readers" for verb in VERBS.get(name, ("",))]
# A number that stands alone in TOML: no part of a name, a text or a comment.
LEAF = re.compile(r"(?<![\w.\"'])-?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.\"'])")


class _ParserError(Exception):
    """Carries the parser that a program would have command."""


def options_of(name: str, verb: str) -> list[argparse.Action]:
    """The options of a program, or of its verb."""

    def caught(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _ParserError(parser)

    with patch.object(argparse.ArgumentParser, "parse_args", caught), pytest.raises(_ParserError) as result:
        importlib.import_module(PROGRAMS[name]).main([verb] if verb else [])
    (parser,) = result.value.args
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and verb in action.choices:
            return list(action.choices[verb]._actions)
    return list(parser._actions)


@pytest.mark.parametrize(("name", "verb"), COMMANDS)
def test_no_option_takes_a_number_without_meaning(name: str, verb: str) -> None:
    taken = []
    for action in options_of(name, verb):
        if action.type is None or isinstance(action.type, type):
            continue
        for number in MEANINGLESS:
            try:
                value = action.type(number.decode())  # type: ignore[operator]
            except (ValueError, ConfigError):
                continue
            if not isinstance(value, (str, tuple, Path)):
                taken.append(f"{action.option_strings}: {number[:20]!r} is {value!r}")
    assert not taken, "\n".join(taken)


def numbers_of(text: str) -> list[re.Match[str]]:
    """Every number of a sheet but those of [sources]."""
    plain = re.sub(r"#.*", lambda comment: " " * len(comment[0]), text.partition("\n[sources]")[0])
    plain = re.sub(r'"[^"\n]*"', lambda quoted: '"' * len(quoted[0]), plain)
    return list(LEAF.finditer(plain))


# Presets are read by the table of a job's settings, whose numbers tests/spec/settings holds; published steps are ours alone.
SHEETS = [
    path
    for path in sorted((ROOT / "configs").rglob("*.toml"))
    if not {"suites", "frameworks", "published"} & {folder.name for folder in path.parents}
]


@pytest.mark.nightly
@pytest.mark.parametrize("path", SHEETS, ids=lambda path: path.stem)
def test_no_key_of_a_sheet_takes_a_number_without_meaning(path: Path, tmp_path: Path) -> None:
    folder = path.parent.name
    copy = tmp_path / "configs" / folder / path.name
    copy.parent.mkdir(parents=True)
    copy.write_text(text := path.read_text())

    def read() -> None:
        if folder == "architectures":
            read_architecture(path.stem, root=tmp_path)
        elif folder == "clusters":
            read_cluster(str(copy), root=ROOT)
        else:
            read_config(copy)

    read()
    result = numbers_of(text)
    assert result or "gpu = " in text
    taken = []
    for spot in result:
        for number in ("nan", "inf", "-7", "1e300", "9" * 30):
            copy.write_text(text[: spot.start()] + number + text[spot.end() :])
            try:
                read()
            except ConfigError:
                continue
            line = text.count("\n", 0, spot.start()) + 1
            taken.append(f"{path.name}:{line}: {text.splitlines()[line - 1]}: {spot[0]} becomes {number}")
    assert not taken, "\n".join(taken)
