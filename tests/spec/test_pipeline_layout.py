"""Layouts of pipelines written out, and Megatron-LM's short ways against what its get_num_layers_to_build returns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.errors import ConfigError
from spec.pipeline_layout import LayerCounts, full_layout, parse_pipeline_layout


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
    ["", "tt|tL", "Ett|tt", "EttL|t", "tE|L", "Et||tL", "EtxL", "E(t|L", "Etm|tmL", "Etm|tL", "Et*99999|L", "Et*|L"],
)
def test_what_is_no_layout_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_pipeline_layout(text)
    assert "\n" not in str(error.value)


def layers(text: str, dealt: LayerCounts) -> tuple[int, ...]:
    return parse_pipeline_layout(full_layout(text, dealt)).layers


@pytest.mark.published
@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        # arXiv 2407.21783 sec. 3.3.2: 126 layers on 16 stages, first and last chunk one less
        ("embedding+loss", (126, 16, 1), (7, *[8] * 14, 7)),
        ("embedding+loss", (126, 16, 4), (1, *[2] * 62, 1)),
        ("embedding+loss", (126, 16, 8), (0, *[1] * 126, 0)),
        # what the function itself returned, Megatron-LM d98e8a64, transformer_block.py
        ("loss", (61, 31, 2), (*[1] * 61, 0)),
        ("embedding", (23, 4, 3), (1, *[2] * 11)),
        ("first=4+last=4", (20, 4, 2), (2, 3, 3, 2, 2, 3, 3, 2)),
        ("first=7", (61, 10, 1), (7, *[6] * 9)),
        ("last=1", (61, 16, 1), (*[4] * 15, 1)),
        ("last=4+first=8", (12, 2, 4), (2, 1, 2, 1, 2, 1, 2, 1)),
    ],
)
def test_layers_are_megatron_s(text: str, shape: tuple[int, int, int], expected: tuple[int, ...]) -> None:
    count, pp, vpp = shape
    assert layers(text, LayerCounts(layers=count, pp=pp, vpp=vpp)) == expected


@given(first=st.integers(1, 9), middle=st.integers(1, 5), pp=st.integers(2, 12), vpp=st.integers(1, 4))
def test_every_layer_is_dealt_once(first: int, middle: int, pp: int, vpp: int) -> None:
    count = (first + middle * (pp - 1)) * vpp
    assert sum(layers(f"first={first * vpp}", LayerCounts(layers=count, pp=pp, vpp=vpp))) == count


def test_prediction_blocks_follow_the_last_layer_and_other_texts_pass() -> None:
    shape = LayerCounts(layers=4, pp=2, predictions=1)
    assert full_layout("first=3", shape) == "Et*3|tmL"
    assert full_layout("Etttt|mL", shape) == "Etttt|mL"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("loss", (61, 4, 1)),  # 62 on 4
        ("loss+loss", (30, 16, 2)),  # one end twice
        ("first=2", (61, 4, 1)),  # 59 on 3
        ("first=3+last=5", (16, 4, 2)),  # 3 is not two chunks
        ("first=6", (14, 4, 1)),  # 8 on 3
        ("first=60+last=4", (61, 4, 1)),  # more than there are
        ("first=61", (61, 1, 1)),  # one stage
        ("first=0", (8, 2, 1)),
    ],
)
def test_what_megatron_refuses_is_refused(text: str, shape: tuple[int, int, int]) -> None:
    count, pp, vpp = shape
    with pytest.raises(ConfigError, match="layout"):
        full_layout(text, LayerCounts(layers=count, pp=pp, vpp=vpp))
