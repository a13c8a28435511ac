"""Every shipped config, exported for every framework: accepted by the framework's list, and the model it was."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.handover import HANDOVERS, Case, exports_of, no_words, shipped_configs
from spec.parameters import num_parameters
from spec.readers.read_config import read_config
from tests.workload.settings.accepted.lists import (
    RefusedError,
    check_deepspeed,
    check_internevo,
    known_flags,
    parse_flags,
)
from tests.workload.settings.counted import internevo_parameters, megatron_parameters, megatron_predicting
from workload.settings.deepspeed import PRICED, SCRIPT
from workload.settings.internevo import model_type
from workload.settings.megatron import SINCE

LATENT = ("tiny_deepseek", "16B_deepseek_v2_lite", "236B_deepseek_v2", "671B_deepseek_v3")
# Configs that a framework has no layers for, and the word in the refusal that says which.
REFUSED = {
    "megatron": {"7B_MoE4_sft": "biases", "2.7B_mamba2": "without attention"},
    "zero-bubble": {
        "7B_MoE4_sft": "biases",
        "2.7B_mamba2": "without attention",
        **dict.fromkeys(("13B_gpt", "175B_gpt", "22B_gpt", "7B_gpt"), "tied"),
        "16B_deepseek_v2_lite": "core 0.9",
        **dict.fromkeys(LATENT, "core 0.9"),
    },
    "internevo": {
        "2.7B_mamba2": "attention",
        "8B_qwen3": "norms of queries and keys",
        **dict.fromkeys(("13B_gpt", "175B_gpt", "22B_gpt", "7B_gpt"), "rotary"),
        **dict.fromkeys(LATENT, "mixed"),
    },
    "deepspeed": {},
}
OPEN = ("8B_qwen3", "30B_qwen3_moe")
CONFIGS = [path for path in shipped_configs() if path.suffix != ".json" or path.stem in OPEN]
"""Of the models from the Hub two; benchmarks/handover.py asks the parsers about all."""
# One of each kind of layers, positions and words; of the others sizes differ.
DAILY = frozenset(
    {"7B_gpt", "7B_internlm2", "7B_MoE4_sft", "2.7B_mamba2", "70B_llama3", "72B_qwen2", "8x7B_mixtral"}
    | {"671B_deepseek_v3", *OPEN}
)
every_config = pytest.mark.parametrize(
    "config",
    [pytest.param(path, id=path.stem, marks=[] if path.stem in DAILY else pytest.mark.nightly) for path in CONFIGS],
)


def written(config: Path, exporter: str, framework: str) -> list[Case]:
    """Drawn exports of a config; none where REFUSED says so, and the refusal says why."""
    word = REFUSED[framework].get(config.stem)
    handover = next(one for one in HANDOVERS.values() if (one.exporter, one.framework) == (exporter, framework))
    exports = exports_of(config, exporter, framework, 8)
    if word is not None:
        assert not exports.cases
        assert word in no_words(config, handover) or all(word in reason for reason in exports.refused)
        return []
    assert exports.cases, exports.refused
    return exports.cases


@every_config
def test_megatron_parses_every_export_into_the_same_model(config: Path) -> None:
    count = num_parameters(read_config(config).model)
    for export in written(config, "megatron", "megatron"):
        needs = re.findall(r"^# Megatron-LM core (\S+) or later", export.text, re.MULTILINE)
        for version in ("megatron-core-0.14", "megatron-core-0.19")[needs != ["0.14"] :]:
            flags = parse_flags(version, export.text)
            assert megatron_parameters(flags) == count.total, export.name
            assert megatron_predicting(flags) == count.mtp


@every_config
def test_the_zero_bubble_fork_parses_every_export(config: Path) -> None:
    for export in written(config, "megatron", "zero-bubble"):
        parse_flags("zero-bubble", export.text)


@every_config
def test_internevo_takes_every_export_and_builds_the_same_model(config: Path) -> None:
    model = read_config(config).model
    for export in written(config, "internevo", "internevo"):
        sections: dict[str, Any] = {}
        exec(export.text, sections)  # noqa: S102 - as InternEvo's Config.from_file does
        check_internevo(sections)
        assert sections["model_type"] == model_type(model)
        assert internevo_parameters(sections) == num_parameters(model).total, export.name


@every_config
def test_deepspeed_knows_every_key_and_the_file_says_what_the_script_sets(config: Path) -> None:
    for export in written(config, "deepspeed", "deepspeed"):
        settings = json.loads(export.text)
        settings.pop(PRICED, None)
        check_deepspeed(settings, SCRIPT)
        assert any(read_config(config).model.name in line for line in settings[SCRIPT])


def test_lists_refuse_what_frameworks_refuse() -> None:
    good = "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --max-position-embeddings 4 --micro-batch-size 1\n"
    parse_flags("megatron-core-0.14", good + "--seq-length 4")
    for wrong, word in (
        ("", "missing --seq-length"),
        ("--seq-length 4 --sequence-parallelism", "unrecognized"),
        ("--seq-length 4.5", "int"),
        ("--seq-length 4 --normalization rmsnorm", "invalid choice"),
    ):
        with pytest.raises(RefusedError, match=word):
            parse_flags("megatron-core-0.14", good + wrong)
    model = {"num_layers": 2, "vocab_size": 8, "apply_post_layer_norm": False}
    data = dict.fromkeys(("seq_len", "micro_bsz", "pack_sample_into_one", "rampup_batch_size"), 1)
    config = {
        "model_type": "QWEN2",
        "model": model,
        "data": data,
        "parallel": dict.fromkeys(("zero1", "tensor", "pipeline", "weight"), 1),
        "hybrid_zero_optimizer": {"reduce_bucket_size": 1},
    }
    check_internevo(config)
    with pytest.raises(RefusedError, match="apply_post_layer_norm"):
        check_internevo(config | {"model": {"num_layers": 2, "vocab_size": 8}})
    with pytest.raises(RefusedError, match="head_dim"):
        check_internevo(config | {"model": model | {"head_dim": 128}})
    with pytest.raises(RefusedError, match="stages"):
        check_deepspeed({"zero_optimization": {"stages": 1}}, SCRIPT)


def test_flags_of_later_cores_are_those_that_0_14_lacks() -> None:
    for flag in SINCE:
        assert flag not in known_flags("megatron-core-0.14")
        assert flag in known_flags("megatron-core-0.19")
