"""Layouts of pipelines, written out."""

import pytest

from spec.errors import ConfigError
from spec.pipeline_layout import parse_pipeline_layout


@pytest.mark.parametrize(
    ("text", "layers", "predicting"),
    [
        ("Ettt|(tt|)*29,m|L", (3, *[2] * 29, 0, 0), 30),
        ("Et*3|(tt|)*29,m|L", (3, *[2] * 29, 0, 0), 30),
        ("Et*4|(t*4|)*14tmL", (*[4] * 15, 1), 15),
        ("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", (*[2] * 35, 3, *[2] * 3, 1), 39),
        ("E|ttL", (0, 2), 1),
        ("EttL", (2,), 0),
    ],
)
def test_megatrons_own_examples(text: str, layers: tuple[int, ...], predicting: int) -> None:
    """Megatron-LM's docstring and layouts of its recipes."""
    layout = parse_pipeline_layout(text)
    assert layout.layers == layers
    assert layout.predicting_stage == predicting


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tt|tL",
        "Ett|tt",
        "EttL|t",
        "tE|L",
        "Et||tL",
        "EtxL",
        "E(t|L",
        "Etm|tmL",
        "Etm|tL",
        "Et*99999|L",
        "Et*|L",
    ],
)
def test_what_is_no_layout_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_pipeline_layout(text)
    assert "\n" not in str(error.value)
