"""Both sides of the table of mixers know the same kinds, each under one name."""

from ops.mixers.registry import MIXERS as OPERATIONS
from spec.mixers.registry import MIXERS as KINDS


def test_every_kind_says_what_it_is_and_what_it_runs() -> None:
    assert set(KINDS.values()) == set(OPERATIONS)
    assert all(kind.name == name for name, kind in KINDS.items())
