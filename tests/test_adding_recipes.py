"""Each recipe of docs/adding.md is carried out in a copy of the tree, and prices with what it added."""

from pathlib import Path

import pytest

from tests.architecture import ROOT, copy_project
from tests.recipes import Block, Recipe, carry_out, changed, recipes_of, run

RECIPES = recipes_of((ROOT / "docs" / "adding.md").read_text(encoding="utf-8"))
KINDS = (
    "parallel strategy",
    "token mixer",
    "kernel",
    "collective algorithm",
    "GPU",
    "architecture",
    "preset",
    "schedule",
    "rule",
    "importer",
    "exporter",
    "model family",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the project without tests, docs and pictures; profiles are linked."""
    folder = tmp_path / "tree"
    copy_project(folder, without=("tests", "docs", "prof_data", ".ci"))
    (folder / "prof_data").mkdir()
    (folder / "prof_data" / "data.pt").symlink_to(ROOT / "prof_data" / "data.pt")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_a_recipe_for_each_kind(kind: str) -> None:
    assert [recipe.name for recipe in RECIPES if kind in recipe.name]


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name.replace(" ", "-"))
def test_recipe_can_be_carried_out(recipe: Recipe, tree: Path) -> None:
    carry_out(recipe, tree)
    commands = list(recipe.commands)
    assert commands, "a recipe ends with a command that shows what it added"
    for command, shown in commands:
        printed = run(command, tree)
        for line in shown:
            assert line in printed, f"{command}\n{printed}"


def test_a_change_without_its_place_is_reported() -> None:
    with pytest.raises(AssertionError, match="0 places"):
        changed("a\nb\n", " c\n+d\n", "x.py")
    assert changed("a\nb\nc\n", " a\n-b\n+d\n@@\n c\n+e\n", "x.py") == "a\nd\nc\ne\n"


def test_a_command_with_another_output_is_told_apart(tmp_path: Path) -> None:
    recipe = Recipe("x", (Block("console", "", '$ python -c \\\n  "print(1)"\n1\n$ python -c "print(2)"\n'),))
    (first, shown), (second, nothing) = recipe.commands
    assert run(first, tmp_path).strip() == "1" == shown[0]
    assert nothing == []
    assert run(second, tmp_path).strip() == "2"
