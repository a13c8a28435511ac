"""The page that --report and write_report write, from the command line to a real browser."""

from pathlib import Path
from typing import Any

import pytest

from simulation_train_formulaic import main
from solver.report.page import write_report
from solver.report.summary import plan_words
from spec.errors import ConfigError
from tests import chromium
from tests.solver.questions import ROOT
from tests.solver.test_api import FEW, session

QUESTION = [
    "--config",
    str(ROOT / "configs/7B_internlm2.py"),
    "--cluster",
    "h100-sxm",
    "--global_batch_size",
    "1048576",
]
SEARCH = [
    *QUESTION,
    "--world_size",
    "16",
    "--run_all_solu",
    "--top_k",
    "4",
    "--fix",
    "pp=2,cp=1",
    "--no_recompute",
    "--sensitivity",
    *("--why_not", "strategy=fsp,tp=4,pp=4"),
    *("--compare", "rank=1", "rank=2"),
    *("--explain", "rank=2"),
]
SWEEP = [*QUESTION, "--world_size", "8,16", "--run_all_solu", "--fix", "cp=1", "--modes", "fsp", "--no_recompute"]
COLUMN = "Array.from(document.querySelector('#ranking table').tBodies[0].rows, row => row.cells[{at}].textContent)"
UNSEEN = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
NUMBERS_END = (
    "Math.max(...[1, 5].map(at => document.querySelector('#ranking table').tBodies[0].rows[0].cells[at]"
    ".getBoundingClientRect().right))"
)
"""The right edge of step and memory, columns 2 and 6."""
GROUND = "getComputedStyle(document.body).backgroundColor"
BAR = "getComputedStyle(document.querySelector('#breakdown svg path[style*=\"--c1)\"]')).fill"
SHOWN = (
    "Array.from(document.querySelectorAll('figure svg')).filter(one => one.getBoundingClientRect().width > 0).length"
)
NAMES = "Array.from(document.querySelectorAll('[id]'), one => one.id)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page of a search and of a sweep."""
    folder = tmp_path_factory.mktemp("pages")
    for name, asked in (("search", SEARCH), ("sweep", SWEEP)):
        assert main([*asked, "--report", str(folder / name)]) == 0
    return folder


def looks(tab: chromium.Browser) -> dict[str, Any]:
    return {"ground": tab.value(GROUND), "bar": tab.value(BAR)}


@pytest.mark.nightly
@pytest.mark.skipif(chromium.BINARY is None, reason="no chromium on this machine (Debian: apt install chromium)")
def test_a_browser_shows_the_page_wide_and_narrow_in_the_light_and_in_the_dark(pages: Path, tmp_path: Path) -> None:
    with chromium.browser(tmp_path) as tab:
        seen = {}
        for name in ("search", "sweep"):
            for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
                tab.open(pages / name / "index.html", width=width, dark=dark)
                assert tab.value(UNSEEN) == 0, f"{name} at {width} pixels scrolls sideways"
                assert tab.value(SHOWN) == tab.value("document.querySelectorAll('figure').length") >= 3
                names = tab.value(NAMES)
                assert len(names) == len(set(names))
                seen[width, dark] = looks(tab)
            assert seen[1280, False] == seen[390, False]
            assert seen[1280, True] == seen[390, True]
            assert all(seen[1280, True][key] != seen[1280, False][key] for key in ("ground", "bar"))
        for width in (1400, 400):
            tab.open(pages / "search" / "index.html", width=width, dark=False)
            assert 0 < tab.value(NUMBERS_END) <= width
        assert tab.value("document.querySelectorAll('pre').length == document.querySelectorAll('pre button').length")
        assert tab.complaints == []
        assert {address.split(":")[0] for address in tab.asked} <= {"file", "data"}


@pytest.mark.nightly
@pytest.mark.skipif(chromium.BINARY is None, reason="no chromium on this machine (Debian: apt install chromium)")
def test_a_click_on_a_columns_name_sorts_by_it(pages: Path, tmp_path: Path) -> None:
    with chromium.browser(tmp_path) as tab:
        tab.open(pages / "search" / "index.html", width=1280, dark=False)
        assert tab.value("document.querySelectorAll('#what-if tbody tr').length") == 4
        assert "constraint: pp = 2" in tab.value("document.querySelector('#why-not-1').textContent")
        assert tab.value("document.querySelector('#compare thead').rows[0].cells.length") == 3
        assert tab.value("document.querySelectorAll('#apart-1 table').length") == 3
        plans = tab.value(COLUMN.format(at=0))
        button = "#ranking thead th:nth-child(6) button"
        for order, turned in (("ascending", False), ("descending", True)):
            tab.click(button)
            gib = [float(text) for text in tab.value(COLUMN.format(at=5))]
            assert gib == sorted(gib, reverse=turned)
            assert len(set(gib)) > 1
            assert tab.value("document.querySelector('#ranking thead th:nth-child(6)').ariaSort") == order
        tab.click("#ranking thead th:nth-child(2) button")
        assert tab.value(COLUMN.format(at=0)) == plans
        assert tab.complaints == []


def test_a_result_that_would_lie_on_the_page_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*SEARCH, "--report", str(tmp_path), "--json", str(tmp_path / "index.html")]
    assert main(asked) == 2
    assert "another file than that of --json" in capsys.readouterr().err
    (tmp_path / "index.html").mkdir()
    assert main([*SEARCH, "--report", str(tmp_path)]) == 2
    assert "--report: output path" in capsys.readouterr().err


def test_a_page_from_python_is_that_of_a_search_or_of_one_plan(tmp_path: Path) -> None:
    asked = session(**FEW)
    page = write_report(tmp_path / "search", asked, top_k=2, why_not=["tp=2,pp=2"], compare=["tp=2", "pp=2"])
    assert page == tmp_path / "search" / "index.html"
    text = page.read_text(encoding="utf-8")
    assert f'<p class="lead">The best plan: {plan_words(asked.best.plan)}</p>' in text
    assert f'<p class="lead">{asked.best.label()}</p>' in text
    assert "sequences of" in text.split("<dl")[0]
    assert "No strategy is named: this is the best of mtp, fsp." in text
    for anchor in ("ranking", "why-not-1", "compare", "dropped"):
        assert f'<section id="{anchor}"' in text
    assert "Question and command" not in text
    alone = write_report(tmp_path / "plan", asked, plan="strategy=mtp,tp=2").read_text(encoding="utf-8")
    assert "constraint: strategy = fsp" in alone
    assert '<section id="dropped"' not in alone
    with pytest.raises(ConfigError, match="why_not: tq"):
        write_report(tmp_path / "none", asked, why_not=["tq=2"])
    assert not (tmp_path / "none").exists()
