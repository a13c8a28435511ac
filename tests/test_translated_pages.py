"""The Chinese pages are in step with the English ones: headings, blocks of commands and what they print, rows
of tables, links that resolve. --update-golden copies the blocks of the English pages; their commands are run
where English pages are.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TRANSLATED = {path: DOCS / path.name for path in sorted((DOCS / "zh").glob("*.md")) if path.stem != "README"}
TRANSLATED[ROOT / "README.zh-CN.md"] = ROOT / "README.md"
# A fence with what it holds, or lines indented as code.
BLOCK = re.compile(r"^```[^\n]*\n(?:[^\n]*\n)*?```$|^ {4}\S[^\n]*(?:\n {4,}\S[^\n]*)*", re.MULTILINE)
NUMBER = re.compile(r"\d[\d,.]*\d|\d")


def plain(text: str) -> str:
    """The page without its blocks."""
    return BLOCK.sub("", text)


def levels(text: str) -> list[int]:
    """How deep each heading is."""
    return [len(line.partition(" ")[0]) for line in plain(text).splitlines() if re.match(r"#+ ", line)]


def rows(text: str) -> list[tuple[list[str], list[str]]]:
    """Of each row of a table what is code, and its numbers outside of it."""
    found = []
    for line in plain(text).splitlines():
        if line.startswith("| "):
            code = re.findall(r"`[^`]+`", line)
            found.append((sorted(code), sorted(NUMBER.findall(re.sub(r"`[^`]+`|\([^)]*\)|（[^）]*）", "", line)))))
    return found


def links(path: Path) -> Iterator[Path]:
    """The files that a page refers to."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        yield path.parent / target


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda path: path.name)
def test_blocks_are_those_of_the_english_page(page: Path, request: pytest.FixtureRequest) -> None:
    text, english = page.read_text(encoding="utf-8"), TRANSLATED[page].read_text(encoding="utf-8")
    blocks = BLOCK.findall(english)
    if request.config.getoption("--update-golden"):
        assert len(BLOCK.findall(text)) == len(blocks)
        told = iter(blocks)
        page.write_text(BLOCK.sub(lambda _: next(told), text), encoding="utf-8")
        return
    assert BLOCK.findall(text) == blocks


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda path: path.name)
def test_headings_and_tables_are_those_of_the_english_page(page: Path) -> None:
    text, english = page.read_text(encoding="utf-8"), TRANSLATED[page].read_text(encoding="utf-8")
    assert levels(text) == levels(english)
    assert len(rows(text)) == len(rows(english))
    for ours, theirs in zip(rows(text), rows(english), strict=True):
        assert ours == theirs


@pytest.mark.parametrize("page", [*TRANSLATED, DOCS / "zh" / "README.md"], ids=lambda path: path.name)
def test_links_resolve(page: Path) -> None:
    assert not [target for target in links(page) if not target.exists()]


def test_the_index_names_every_page() -> None:
    assert {path.resolve() for path in links(DOCS / "zh" / "README.md")} >= {path.resolve() for path in TRANSLATED}
