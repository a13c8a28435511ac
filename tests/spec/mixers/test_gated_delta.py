"""What a config may say of a gated delta rule layer, and its weights by hand."""

import pytest

from spec.errors import ConfigError
from spec.mixers.gated_delta import GatedDeltaSpec
from spec.mixers.mixer import mixer_parameters
from spec.section import Section


def read(**values: object) -> GatedDeltaSpec:
    return GatedDeltaSpec.read(Section(where="test", name="gated_delta", values=values), 2048)


def test_weights_by_hand() -> None:
    """Two key heads of 96, four value heads of 128, hidden 2048."""
    keys, values = 2 * 96, 4 * 128
    spec = read(num_key_heads=2, num_value_heads=4, key_dim=96, value_dim=128, conv_kernel=3)
    expected = 2048 * (2 * keys + 2 * values + 2 * 4) + 3 * (2 * keys + values) + 2 * 4 + 128 + values * 2048
    assert mixer_parameters(spec, 2048) == expected
    assert (spec.cut_heads, spec.repeatable_heads) == ((2, 4), ())


def test_what_is_not_written() -> None:
    assert read(num_value_heads=4, value_dim=128) == GatedDeltaSpec(
        num_key_heads=4, num_value_heads=4, key_dim=128, value_dim=128, conv_kernel=4
    )


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("num_value_heads", {"value_dim": 128}),
        ("value_dim", {"num_value_heads": 4}),
        ("num_key_heads", {"num_value_heads": 4, "value_dim": 128, "num_key_heads": 3}),
        ("chunk_size", {"num_value_heads": 4, "value_dim": 128, "chunk_size": 64}),
    ],
)
def test_what_cannot_be_is_refused(key: str, values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**values)
    assert caught.value.key == f"gated_delta.{key}"
