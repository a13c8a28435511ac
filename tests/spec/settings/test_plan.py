"""The table of plan fields, against what prices them and what documents them."""

import re
from pathlib import Path

from spec.settings.plan import plan_settings, typed_plan_settings
from spec.settings.setting import Settings

DOCS = Path(__file__).parents[3] / "docs" / "configs.md"


def rows(settings: Settings) -> list[str]:
    """The table as it stands in docs."""
    return [
        f"| `{one.key}` | {one.kind.allowed.replace('|', chr(92) + '|')} | {'yes' if one.column else ''} "
        f"| {one.meaning} |"
        for one in settings.values()
    ]


def test_docs_show_the_whole_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    shown = re.search(r"\| key of a plan \|.*?\n\|[-|]+\|\n(.*?)\n\n", text, flags=re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == rows(plan_settings())


def test_only_a_file_says_framework_and_number_of_micro_batches() -> None:
    assert set(plan_settings()) - set(typed_plan_settings()) == {"num_micro", "preset"}
