"""The table of plan fields, against what prices them and what documents them."""

from spec.settings.plan import plan_settings, typed_plan_settings
from tests.spec.settings.tables import rows, rows_in_docs


def test_docs_show_the_whole_table() -> None:
    assert rows_in_docs("key of a plan") == rows(plan_settings(), "column")


def test_only_a_file_says_framework_and_number_of_micro_batches() -> None:
    assert set(plan_settings()) - set(typed_plan_settings()) == {"num_micro", "preset"}
