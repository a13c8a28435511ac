"""Names as people type them."""

from functools import partial
from pathlib import Path

import pytest

from pss.command import main
from spec.cluster.reader import cluster_names, read_cluster
from spec.errors import ConfigError
from spec.files import CONFIGS, shipped_config, shipped_folder
from spec.frameworks import framework_preset
from spec.names import known_name, nearest
from spec.program.command import batch_tokens, step_tokens
from spec.readers.read_config import read_config
from spec.settings.plan import plan_option_settings
from spec.settings.setting import parse_settings

MODELS = [one.stem for one in (shipped_folder() / CONFIGS).glob("*.*")]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("llama3-70b", "70B_llama3"),
        ("Llama-3-70B", "70B_llama3"),
        ("mixtral-8x7b", "8x7B_mixtral"),
        ("deepseek-v3", "671B_deepseek_v3"),
        ("llama3", None),  # three sizes
        ("llama3.1-70b", None),
        ("", None),
    ],
)
def test_a_name_is_taken_where_it_can_mean_one_model_alone(typed: str, meant: str | None) -> None:
    assert known_name(typed, MODELS) == meant
    if meant:
        assert shipped_config(Path(typed)).stem == meant


def test_an_unknown_model_is_refused_with_those_that_share_its_words() -> None:
    assert set(nearest("llama3", MODELS)[:3]) == {"8B_llama3", "70B_llama3", "405B_llama3"}
    with pytest.raises(ConfigError, match=r"a shipped model such as .*8B_llama3"):
        read_config(Path("llama3"))


@pytest.mark.parametrize(
    ("typed", "meant"), [("h100", "h100-sxm"), ("A100", "a100-sxm-80g"), ("4090", "rtx-4090"), ("mi300", "mi300x")]
)
def test_a_card_names_its_usual_cluster(typed: str, meant: str) -> None:
    assert read_cluster(typed, root=shipped_folder()).name == meant


def test_a_card_of_several_clusters_is_refused_with_them() -> None:
    with pytest.raises(ConfigError, match="one of dgx1-v100, dgx2-v100"):
        read_cluster("v100", root=shipped_folder())
    assert {"dgx1-v100", "dgx2-v100"} <= set(cluster_names(shipped_folder()))


@pytest.mark.parametrize("typed", ["megatron-lm", "Megatron-LM", "megatron_core", "MEGATRON"])
def test_a_framework_by_its_other_names_is_its_preset(typed: str) -> None:
    assert framework_preset(typed) == framework_preset("megatron")


def test_keys_of_frameworks_are_keys_of_a_plan() -> None:
    values = parse_settings("mbs=2,tensor-model-parallel-size=4", plan_option_settings(), "--plan")
    assert values == {"micro_batch": 2, "tp": 4}
    with pytest.raises(ConfigError, match="each key once"):
        parse_settings("mbs=2,micro_batch=1", plan_option_settings(), "--plan")


def test_tokens_are_read_in_millions_and_powers_of_two() -> None:
    read = partial(batch_tokens, minimum=1, maximum=1 << 40)
    assert [read(text) for text in ("4194304", "4Mi", "4M", "512Ki", "8k")] == [
        1 << 22,
        1 << 22,
        4_000_000,
        1 << 19,
        8000,
    ]
    for wrong in ("4MB", "M", "1.5M", "0k"):
        with pytest.raises(ValueError, match="whole number"):
            read(wrong)


def test_a_batch_may_be_a_number_of_sequences() -> None:
    assert [repr(step_tokens(text)) for text in ("512seqs", "1Ki seq", "2 sequences", "512")] == [
        "512seqs",
        "1024seqs",
        "2seqs",
        "512",
    ]
    for wrong in ("seqs", "0seqs", "1.5seqs", "4 seqsx"):
        with pytest.raises(ValueError, match="whole number"):
            step_tokens(wrong)


def test_a_verb_misspelt_is_offered_and_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serach"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("such as search")
    listed = {}
    for what in ("models", "clusters", "frameworks", "keys"):
        assert main(["list", what]) == 0
        listed[what] = capsys.readouterr().out.split()
    assert listed["models"] == sorted(one for one in MODELS)
    assert {"h100-sxm", "h200"} <= set(listed["clusters"])
    assert "megatron" in listed["frameworks"]
    assert {"tp", "micro_batch", "dropout"} <= set(listed["keys"])
    assert main(["list", "gpus"]) == 2
