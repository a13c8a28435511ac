"""docs/api.md and the notebooks: all their code runs, as shown."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_the_page_shows_code_and_a_notebook() -> None:
    assert len(blocks()) >= 4
    assert all(f"examples/{path.name}" in PAGE.read_text(encoding="utf-8") for path in NOTEBOOKS)
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_output(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")


@pytest.mark.nightly
def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    """In one go, in a folder of its own, with a figure printed by each block."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = '\nprint("--next--")\n'.join(blocks())
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert all(re.search(r"\d", said) for said in ran.stdout.split("--next--"))


@pytest.mark.nightly
@pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="nbclient and ipykernel (requirements-nightly.txt) are not installed",
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # A notebook draws where it is shown, unless somebody says otherwise.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    done = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2
    assert any("text/html" in output.get("data", {}) for output in shown)
