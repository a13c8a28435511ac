"""The content of a report, however it is rendered: sections of sentences, facts, pictures and tables.

Three renderers read it: solver.report.terminal, solver.report.html for a browser, and ``record`` for other programs
(``--json``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture for wide pages and one for narrow ones (SVG), with their alternative text and caption."""

    wide: str
    narrow: str
    alt: str
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One figure of the summary: its label, its value, and a note."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its caption; a page sorts it by any column. ``words`` are columns of text, the others of
    numbers. A terminal shows the first ``shown`` rows, a page all of them, ``folded`` until a reader opens it. Where a
    terminal is too narrow, the columns ``drops`` go, the least important first."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})
    shown: int | None = None
    drops: Sequence[int] = ()
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """A part of a report: its anchor, title, sentences, labelled facts, pictures, tables, and text to copy.

    ``record`` returns the section's data for machines, by the keys of ``--json``. A terminal prints ``details`` with
    ``--verbose`` alone.
    """

    anchor: str
    title: str
    paragraphs: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    literal: str = ""
    details: bool = False
    record: Callable[[], Mapping[str, object]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page: its title, its first sentences, a summary of figures, its sections, and what its numbers are."""

    title: str
    lead: Sequence[str]
    tiles: Sequence[KeyFigure]
    sections: Sequence[ReportSection]
    numbers: str = "Seconds are predicted; each says where it comes from."


def record(sections: Iterable[ReportSection]) -> dict[str, object]:
    """Returns the data of all sections for machines; lists under one key are concatenated."""
    whole: dict[str, object] = {}
    for section in sections:
        for key, value in section.record().items():
            before = whole.get(key)
            whole[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
    return whole
