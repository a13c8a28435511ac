"""Mamba-2's weights against published totals, and what a config may say of it."""

import pytest

from spec.errors import ConfigError
from spec.mixers.mamba2 import Mamba2Spec
from spec.model import BlockRun, BlockSpec, ModelSpec
from spec.parameters import num_parameters
from spec.readers.read_config import read_config
from spec.section import Section
from tests.solver.questions import ROOT


@pytest.mark.published
def test_the_shipped_model_has_the_parameters_of_its_weights() -> None:
    """https://huggingface.co/state-spaces/mamba2-2.7b, tensors of pytorch_model.bin with the tied head once."""
    assert num_parameters(read_config(ROOT / "configs" / "2.7B_mamba2.toml").model).total == 2_702_599_680


@pytest.mark.published
def test_the_smallest_published_model() -> None:
    """state-spaces/mamba2-130m: 24 layers, hidden 768, all sizes of the authors' module."""
    mixer = Mamba2Spec.read(Section(where="test", name="mamba2", values={}), 768)
    run = BlockRun(block=BlockSpec(mixer=mixer), count=24)
    model = ModelSpec(name="130m", hidden=768, vocab=50288, blocks=(run,), source="", tied_embeddings=True)
    assert mixer == Mamba2Spec(num_heads=24, head_dim=64, state_size=128)
    assert num_parameters(model).total == 128_989_632


def test_groups_share_b_and_c() -> None:
    """Eight groups instead of one: 2 x 7 x 128 more rows of the projection, each also convolved, with its bias."""

    def parameters(groups: int) -> int:
        mixer = Mamba2Spec(num_heads=24, head_dim=64, state_size=128, num_groups=groups)
        return sum(module.elements for module in mixer.modules(768, "mamba2"))

    assert parameters(8) - parameters(1) == 2 * 7 * 128 * (768 + 4 + 1)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("num_groups", {"num_heads": 24, "num_groups": 5}),
        ("num_heads", {"head_dim": 1000}),
        ("state_size", {"state_size": 0}),
        ("expand", {"expand": 2}),
    ],
)
def test_what_cannot_be_is_refused(key: str, values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        Mamba2Spec.read(Section(where="test", name="mamba2", values=values), 768)
    assert caught.value.key == f"mamba2.{key}"
