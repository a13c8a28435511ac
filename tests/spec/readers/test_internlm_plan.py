"""The plan an InternLM-style config is written with: the share of layers that it recomputes."""

from pathlib import Path

import pytest

from spec.errors import ConfigError
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import read_config

TRAINING_CONFIG = """
model = dict(
    num_layers=32, hidden_size=256, num_attention_heads=4, vocab_size=512, mlp_ratio=2.0, checkpoint={share}
)
parallel = dict(pipeline=dict(size={stages}))
"""


def load(tmp_path: Path, share: str, stages: int) -> ConfigFile:
    path = tmp_path / "train.py"
    path.write_text(TRAINING_CONFIG.format(share=share, stages=stages), encoding="utf-8")
    return read_config(path)


@pytest.mark.parametrize(
    ("share", "stages", "read"),
    [
        ("0.2", 1, ("full", 6)),  # int(0.2 x 32), InternEvo's own configs of InternLM2
        ("0.2", 4, ("full", 1)),  # int(0.2 x 8) of every stage
        ("0.1", 4, ("none", None)),
        ("0.5", 3, ("full", 5)),  # 10 or 11 layers a stage
        ("1.0", 1, ("full", None)),
        ("True", 1, ("full", None)),
        ("0", 1, ("none", None)),
    ],
)
def test_a_share_of_layers_is_recomputed_stage_by_stage(
    tmp_path: Path, share: str, stages: int, read: tuple[str, int | None]
) -> None:
    plan = load(tmp_path, share, stages).plan
    assert plan is not None
    assert (plan.recompute, plan.recompute_layers) == read


def test_a_share_that_differs_between_stages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not 1 or 2 of them"):  # int(0.4 x 4), int(0.4 x 5)
        load(tmp_path, "0.4", 7)
