"""What a page holds: figures at a glance, then sections of words, pictures and tables."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture for wide pages and one for narrow ones (SVG), what both show, and what a reader takes from them."""

    wide: str
    narrow: str
    alt: str
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure at a glance: what it is, how much, and a note beside it."""

    what: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table with its caption; a reader sorts it by any column. ``folded``: shown when asked for. ``words``:
    columns that are text, of which the first names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page: its anchor, title, paragraphs, pictures, tables, and text as typed (commands)."""

    anchor: str
    title: str
    paragraphs: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[PageTable] = ()
    typed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page."""

    title: str
    lead: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
