"""The content of a report, however it is rendered: sections of sentences, facts, pictures and tables.

Three renderers read it: ``text`` for a terminal, solver.report.html for a browser, and ``record`` for other
programs (``--json``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

NARROWEST_LABEL = 8
"""Letters that the labels of facts are padded to at least, so that those of several sections line up."""


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
    numbers. The text shows the first ``shown`` rows, a page all of them, ``folded`` until a reader opens it."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})
    shown: int | None = None
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """A part of a report: its anchor, title, sentences, labelled facts, pictures, tables, and text to copy.

    ``record`` returns the section's data for machines, by the keys of ``--json``.
    """

    anchor: str
    title: str
    paragraphs: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    literal: str = ""
    record: Callable[[], Mapping[str, object]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page: its title, its first sentence, a summary of figures, and its sections."""

    title: str
    lead: str
    tiles: Sequence[KeyFigure]
    sections: Sequence[ReportSection]


def record(sections: Iterable[ReportSection]) -> dict[str, object]:
    """Returns the data of all sections for machines; lists under one key are concatenated."""
    whole: dict[str, object] = {}
    for section in sections:
        for key, value in section.record().items():
            before = whole.get(key)
            whole[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
    return whole


def text(sections: Iterable[ReportSection]) -> str:
    """Returns the sections as they are printed, a blank line between their parts; pictures are left out."""
    return "\n\n".join(part for section in sections for part in _parts(section))


def _parts(section: ReportSection) -> Iterable[str]:
    if section.paragraphs:
        yield "\n".join([section.title, *(f"  {line}" for line in section.paragraphs)])
    if section.facts:
        width = max(NARROWEST_LABEL, *(len(label) for label, _ in section.facts))
        yield "\n".join(f"{label.ljust(width)} {fact}" for label, fact in section.facts)
    for one in section.tables:
        rows = one.rows[: one.shown]
        more = [f"and {len(one.rows) - len(rows)} more, in --report"] * (len(rows) < len(one.rows))
        yield "\n".join([one.caption, table(rows, one.header, one.words), *more])
    if section.literal:
        yield section.literal


def table(rows: Sequence[Sequence[str]], header: Sequence[str], words: frozenset[int] = frozenset({0})) -> str:
    """Returns aligned columns: the first and those of ``words`` to the left, numbers to the right."""
    everything = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[at]) for row in everything) for at in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if at == 0 or at in words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in everything
    ]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)
