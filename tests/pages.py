"""Pages of docs/ that show commands: each command with the lines below it."""

import re

from tests.solver.questions import ROOT


def commands(page: str, fence: str = "```") -> list[tuple[str, list[str]]]:
    """Each command of docs/``page`` in blocks that begin with ``fence``, and the lines shown below it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(rf"^{fence}\n(\$ .*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
    return found
