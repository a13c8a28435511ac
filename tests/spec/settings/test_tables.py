"""The tables of docs/configs.md are those of the settings; --update-golden writes them."""

import re
from pathlib import Path

import pytest

from spec.errors import ConfigError
from spec.settings.constraints import constraint_settings
from spec.settings.job import job_settings
from spec.settings.plan import plan_option_settings, plan_settings
from spec.settings.setting import Settings, parse_settings, unpriced_keys

PAGE = Path(__file__).parents[3] / "docs" / "configs.md"
TABLES = {"plan": plan_settings(), "constraint": constraint_settings(), "job": job_settings()}


def rows(settings: Settings, *, columns: bool) -> str:
    """Key, values, with ``columns`` whether it is one, and meaning."""
    lines = []
    for one in settings.values():
        cells = [f"`{one.key}`", one.kind.allowed.replace("|", chr(92) + "|")]
        cells += ["yes" if one.column else ""] * columns
        lines.append(f"| {' | '.join([*cells, one.meaning])} |\n")
    return "".join(lines)


@pytest.mark.parametrize("of", TABLES)
def test_docs_show_the_whole_table(of: str, request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.search(rf"\| key of a {of} \|.*\n\|[-|]+\|\n((?:\|.*\n)*)", text)
    expected = rows(TABLES[of], columns=of == "plan")
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text.replace(shown[1], expected), encoding="utf-8")
        return
    assert shown[1] == expected


@pytest.mark.parametrize("settings", TABLES.values(), ids=TABLES)
def test_every_setting_says_what_it_means(settings: Settings) -> None:
    assert [key for key, one in settings.items() if not one.meaning.endswith(".")] == []


def test_only_a_file_says_framework_and_number_of_micro_batches() -> None:
    assert set(plan_settings()) - set(plan_option_settings()) == {"num_micro", "preset"}


def test_settings_that_are_not_priced_say_why_and_stand_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for key, reason in unpriced_keys().items():
        assert f"| `{key}` | {reason} |" in page
        assert key not in {name.rpartition(".")[2] for name in job_settings()}
    with pytest.raises(ConfigError, match="nccl_ub is not priced: registered buffers"):
        parse_settings("nccl_ub=true", job_settings(), "--job")
