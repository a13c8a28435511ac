"""The plan an InternLM-style config is written with: the share of layers that it recomputes, its pipeline."""

from pathlib import Path

import pytest

from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import read_config
from tests.spec.readers.training_config import TRAINING_CONFIG, changed, load

SHARED = """
model = dict(
    num_layers=32, hidden_size=256, num_attention_heads=4, vocab_size=512, mlp_ratio=2.0, checkpoint={share}
)
parallel = dict(pipeline=dict(size={stages}))
"""


def load_shared(tmp_path: Path, share: str, stages: int) -> ConfigFile:
    path = tmp_path / "train.py"
    path.write_text(SHARED.format(share=share, stages=stages), encoding="utf-8")
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
    plan = load_shared(tmp_path, share, stages).plan
    assert plan is not None
    assert (plan.recompute, plan.recompute_layers) == read


def test_a_share_that_differs_between_stages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not 1 or 2 of them"):  # int(0.4 x 4), int(0.4 x 5)
        load_shared(tmp_path, "0.4", 7)


@pytest.mark.parametrize(("written", "hidden"), [("interleaved_overlap=True", True), ("", False)])
def test_chunks_of_a_stage_are_interleaved(tmp_path: Path, written: str, *, hidden: bool) -> None:
    """model.num_chunks, and parallel.pipeline.interleaved_overlap, which InternEvo takes for False."""
    text = changed("num_chunks=1", "num_chunks=4, checkpoint=0.5").replace("checkpoint=False,", "")
    config = load(tmp_path, text.replace("size=1, interleaved_overlap=True", f"size=2, {written}"))
    assert config.plan is not None
    assert (config.plan.pp, config.plan.vpp) == (2, 4)
    assert config.plan.recompute_layers == 2  # of 32 / (2 x 4) = 4 in each chunk
    assert config.framework_job["pipeline.overlap_p2p"] is hidden


@pytest.mark.parametrize(("mode", "schedule"), [("ZBH1", "zb-h1"), ("zbh1", "zb-h1"), ("1f1b", "1f1b")])
def test_pipeline_modes_are_schedules(tmp_path: Path, mode: str, schedule: str) -> None:
    config = load(tmp_path, changed("size=1, interleaved_overlap=True", f'size=2, mode="{mode}"'))
    assert config.plan is not None
    assert (config.plan.pp, config.plan.schedule) == (2, schedule)


def test_layers_divide_over_chunks(tmp_path: Path) -> None:
    text = changed("num_chunks=1", "num_chunks=3").replace("pipeline=dict(size=1", "pipeline=dict(size=2")
    with pytest.raises(ConfigError, match="a divisor of num_layers = 32"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("key", "choice"),
    [("mlp_layer_fusion", "layers.joined_gate"), ("enable_qkv_fusion", "layers.joined_qkv")],
)
def test_which_matrices_are_one_is_read(tmp_path: Path, key: str, choice: str) -> None:
    """InternEvo's own default is gate and up apart (internlm/model/modules/mlp.py)."""
    for joined in (True, False):
        read = load(tmp_path, changed("num_chunks=1", f"num_chunks=1, {key}={joined}"))
        assert read.framework_job[choice] is joined
    assert choice not in load(tmp_path, TRAINING_CONFIG).framework_job
    assert not framework_preset("internevo").layers.joined_gate
