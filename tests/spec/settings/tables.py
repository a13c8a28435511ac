"""A table of settings as docs/configs.md shows it."""

import re
from pathlib import Path

from spec.settings.setting import Settings

DOCS = Path(__file__).parents[3] / "docs" / "configs.md"


def rows(settings: Settings, *also: str) -> list[str]:
    """Key, values and meaning; ``also`` "column": whether it is one."""
    found = []
    for one in settings.values():
        cells = [f"`{one.key}`", one.kind.allowed.replace("|", chr(92) + "|")]
        cells += ["yes" if one.column else ""] * ("column" in also)
        found.append(f"| {' | '.join([*cells, one.meaning])} |")
    return found


def rows_in_docs(heading: str) -> list[str]:
    """The rows below the head that begins so."""
    text = DOCS.read_text(encoding="utf-8")
    shown = re.search(rf"\| {heading} \|.*?\n\|[-|]+\|\n(.*?)\n\n", text, flags=re.DOTALL)
    assert shown is not None
    return shown[1].splitlines()
