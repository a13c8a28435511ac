"""Sections as a terminal prints them, at most its width: sentences wrap with a hanging indent, tables drop columns and
fold text. Text to copy stays a line, and pictures are left out. ``say`` returns a phrase in the reader's language."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from shutil import get_terminal_size
from textwrap import wrap as wrap_words

from solver.report.sections import ReportSection, Table
from spec.program.columns import FILLER, wrap

NARROWEST_LABEL = 8
"""Letters that the labels of facts are padded to at least, so that those of several sections line up."""
UNKNOWN_WIDTH, NARROWEST = 100, 40
"""Columns of what is no terminal and sets no COLUMNS, and of the narrowest terminal that is respected."""
FOLDED, SHORTEST = 36, 8
"""Letters to which a column of text folds before any column is dropped, and when none is left to drop."""
GAP = "  "
Say = Callable[[str], str]


def terminal_width() -> int:
    """Returns the columns of the terminal: COLUMNS, else the terminal's own, else UNKNOWN_WIDTH."""
    return max(NARROWEST, get_terminal_size((UNKNOWN_WIDTH, 24)).columns)


def text(sections: Iterable[ReportSection], width: int, *, verbose: bool = True, say: Say = str) -> str:
    """Returns the sections as they are printed, a blank line between their parts; without details unless ``verbose``."""
    shown = (one for one in sections if verbose or not one.details)
    return "\n\n".join(part for section in shown for part in _parts(section, width, say)).replace(FILLER, "")


def _parts(section: ReportSection, width: int, say: Say) -> Iterable[str]:
    if section.paragraphs:
        yield "\n".join([say(section.title), *(hanging("  ", say(line), width, 4) for line in section.paragraphs)])
    if section.facts:
        facts = [(say(label), say(fact)) for label, fact in section.facts]
        indent = 1 + max(NARROWEST_LABEL, *(len(label) for label, _ in facts))
        yield "\n".join(hanging(label.ljust(indent), fact, width, indent) for label, fact in facts)
    for one in section.tables:
        yield "\n".join([*wrap_words(say(one.caption), width), *fitted(one, width, say)])
    if section.literal:
        yield section.literal


def hanging(start: str, sentence: str, width: int, indent: int) -> str:
    """Returns the sentence after its start, wrapped at the width; further lines stand ``indent`` to the right."""
    further = " " * indent
    lines = wrap(sentence, width, start, further)
    return "\n".join(lines) or start.rstrip()


def fitted(one: Table, width: int, say: Say = str) -> list[str]:
    """Returns the lines of a table at most ``width`` wide, then what is not in it."""
    one = replace(one, header=list(map(say, one.header)))
    rows = [list(map(say, row)) for row in one.rows[: one.shown]]
    widths = [max(map(len, column)) for column in zip(one.header, *rows, strict=True)]
    columns, widths = fit(widths, one, width)
    left_out = [name for at, name in enumerate(one.header) if at not in columns]
    header = [one.header[at] for at in columns]
    words = frozenset(new for new, at in enumerate(columns) if at in one.words)
    lines: list[Sequence[str]] = []
    for row in rows:
        cells = [fold(row[at], widths[at]) for at in columns]
        height = max(map(len, cells))
        lines += zip(*(cell + [""] * (height - len(cell)) for cell in cells), strict=True)
    printed = table(lines, header, words).splitlines()
    if left_out:
        printed += hanging("", say(f"left out for the width: {', '.join(left_out)}"), width, 2).splitlines()
    if len(rows) < len(one.rows):
        printed.append(say(f"and {len(one.rows) - len(rows)} more, in --report"))
    return printed


def fit(widths: Sequence[int], one: Table, width: int) -> tuple[list[int], list[int]]:
    """Returns the columns of a table that ``width`` has room for, and how wide every column becomes."""
    folded = [min(size, FOLDED) if at in one.words else size for at, size in enumerate(widths)]
    columns = list(range(len(widths)))

    def total(sizes: Sequence[int]) -> int:
        return sum(sizes[at] for at in columns) + len(GAP) * (len(columns) - 1)

    for at in one.drops or range(len(widths) - 1, 1, -1):
        if total(folded) <= width:
            break
        columns.remove(at)
    sizes = list(widths)
    while total(sizes) > width:
        widest = max((at for at in columns if at in one.words), key=lambda at: sizes[at], default=columns[0])
        if sizes[widest] <= max(SHORTEST, len(one.header[widest])):
            break
        sizes[widest] -= 1
    return columns, sizes


def fold(cell: str, width: int) -> list[str]:
    """Returns a cell's lines: folded at its spaces, and inside a word that is longer than the column."""
    return wrap(cell, width, "", " ") or [""]


def table(rows: Sequence[Sequence[str]], header: Sequence[str], words: frozenset[int] = frozenset({0})) -> str:
    """Returns aligned columns: the first and those of ``words`` to the left, numbers to the right."""
    everything = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[at]) for row in everything) for at in range(len(header))]
    lines = [
        GAP.join(
            cell.ljust(width) if at == 0 or at in words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in everything
    ]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)
