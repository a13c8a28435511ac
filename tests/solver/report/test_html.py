"""A page is one file, whole or not there, in which what others named stays text."""

import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from solver.report.html import check_report_requirements, page_text, write_page
from solver.report.sections import KeyFigure, Page, ReportSection, Table
from spec.errors import ConfigError, ExportError

EVIL = "<script>alert('a')</script>"
TABLE = Table(caption="Plans", header=("plan", "ms"), rows=[[EVIL, "1,2"], ["b", ""]])
PAGE = Page(
    title=EVIL,
    lead=["lead"],
    tiles=(KeyFigure(label="step", value="1 ms"),),
    sections=(ReportSection(anchor="one", title="One", tables=(TABLE,), literal=f"--config {EVIL}"),),
)


def test_names_from_outside_stay_text() -> None:
    text = page_text(PAGE)
    assert EVIL not in text
    assert text.count("&lt;script&gt;alert") == 4  # window, heading, a cell, what was typed
    assert text.count("<script>") == 1


def test_a_table_is_a_table() -> None:
    text = page_text(PAGE)
    assert "<caption><span>Plans</span></caption>" in text
    assert '<th scope="col">plan</th>' in text
    assert '<th scope="col" class="number">ms</th>' in text
    assert '<th scope="row">b</th><td class="number"></td>' in text


def test_no_script_but_the_pages_own_may_run() -> None:
    text = page_text(PAGE)
    script = text.split("<script>")[1].split("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = page_text(PAGE)
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert not any(word in text for word in ("http://", "https://", "@import", "src="))


def test_the_folder_is_made_and_an_older_page_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    path = write_page(PAGE, folder)
    (folder / "mine.txt").write_text("kept")
    first = path.read_text(encoding="utf-8")
    assert write_page(PAGE, folder).read_text(encoding="utf-8") == first
    assert sorted(one.name for one in folder.iterdir()) == ["index.html", "mine.txt"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be made"):
        write_page(PAGE, tmp_path / "file" / "folder")
    (tmp_path / "index.html").mkdir()
    with pytest.raises(ExportError, match="is a folder"):
        write_page(PAGE, tmp_path)


def test_without_jinja2_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_report_requirements(tmp_path)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    check_report_requirements(None)
    with pytest.raises(ConfigError, match=r"needs jinja2: pip install '[\w-]+\[report\]'"):
        check_report_requirements(tmp_path)
