"""A page written from Python."""

from pathlib import Path

import pytest

from solver.page.reply_page import write_report
from spec.errors import ConfigError
from tests.solver.test_session import FEW, session


def test_a_page_is_that_of_a_search_or_of_one_plan(tmp_path: Path) -> None:
    asked = session(**FEW)
    page = write_report(tmp_path / "search", asked, top_k=2, why_not=["tp=2,pp=2"], compare=["tp=2", "pp=2"])
    assert page == tmp_path / "search" / "index.html"
    text = page.read_text(encoding="utf-8")
    assert f"The fastest plan that fits: {asked.best.label()}" in text
    assert "No strategy is named: this is the best of mtp, fsp." in text
    for anchor in ("ranking", "why-not-1", "compare", "dropped"):
        assert f'<section id="{anchor}"' in text
    assert "how to ask again" not in text
    alone = write_report(tmp_path / "plan", asked, plan="strategy=mtp,tp=2").read_text(encoding="utf-8")
    assert "Not feasible: asked for: strategy = fsp" in alone
    assert '<section id="ranking"' not in alone
    with pytest.raises(ConfigError, match="why_not: tq"):
        write_report(tmp_path / "none", asked, why_not=["tq=2"])
    assert not (tmp_path / "none").exists()
