"""docs/adding.md read as recipes: what a section writes, changes and runs.

A fence whose first line names a file in ``title="..."`` is that file, or, as ```diff, a change of it: lines that
stay (they say where), lines added, lines taken away. A ```console fence holds commands behind ``$ ``, each with
lines that must be in what it prints.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fence: its language, the file it names ("" for none) and its text."""

    language: str
    title: str
    text: str


@dataclass(frozen=True)
class Recipe:
    """A section of the page with fences that can be carried out."""

    name: str
    blocks: tuple[Block, ...]

    @property
    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command with the lines shown below it."""
        for block in self.blocks:
            if block.language == "console":
                for part in re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
                    command, *shown = part.splitlines()
                    yield command, [line.strip() for line in shown if line.strip()]


def recipes_of(page: str) -> list[Recipe]:
    """The recipes of a page, in order."""
    names = SECTION.findall(page)
    texts = SECTION.split(page)[2::2]
    found = []
    for name, text in zip(names, texts, strict=True):
        blocks = tuple(Block(*parts) for parts in FENCE.findall(text))
        if any(block.title or block.language == "console" for block in blocks):
            found.append(Recipe(name, blocks))
    return found


def carry_out(recipe: Recipe, folder: Path) -> None:
    """Write and change the files of ``folder`` as the recipe says; AssertionError where a change has no place."""
    for block in recipe.blocks:
        if not block.title:
            continue
        path = folder / block.title
        if block.language == "diff":
            path.write_text(changed(path.read_text(encoding="utf-8"), block.text, block.title), encoding="utf-8")
            continue
        assert not path.exists(), f"{block.title} is there already: show a change of it"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")


def changed(text: str, difference: str, title: str) -> str:
    """The text after a change; hunks are parted by ``@@``. The lines that stay and go stand in it once."""
    for hunk in re.split(r"^@@.*\n", difference, flags=re.MULTILINE):
        lines = [line for line in hunk.splitlines() if line]
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        if not lines:
            continue
        assert text.count(before) == 1, f"{title}: {text.count(before)} places hold\n{before}"
        text = text.replace(before, after)
    return text


def run(command: str, folder: Path) -> str:
    """What a command prints in ``folder``, both streams; AssertionError where it fails."""
    words = shlex.split(command)
    words = [sys.executable, *words[1:]] if words[0] == "python" else words
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr
