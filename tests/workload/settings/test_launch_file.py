"""Every key of a plan is said by a framework's settings, or refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from spec.errors import ExportError
from spec.frameworks import framework_preset
from spec.mixers.attention import AttentionSpec, QkNormWeights
from spec.model import ModelSpec, NormKind, NormPlace
from spec.readers.read_config import read_config
from spec.settings.plan import plan_settings
from tests.solver.questions import question, small_model, with_block
from tests.workload.settings.problems import asked
from tests.workload.settings.test_refusals import NAMES, PLANS
from workload.launch_files import EXPORTERS
from workload.settings import deepspeed, internevo, megatron
from workload.settings.frameworks import WRITTEN

# A plan in which the key is said.
CHANGES: dict[str, dict[str, object]] = {
    "tp": {"tp": 2},
    "pp": {"pp": 2},
    "wp": {"wp": 2},
    "ep": {"ep": 2},
    "etp": {"etp": 2},
    "cp": {"cp": 2},
    "vpp": {"vpp": 2},
    "zero_stage": {"zero_stage": 1},
    "zero_size": {"zero_size": 2},
    "micro_batch": {"micro_batch": 2},
    "num_micro": {"num_micro": 2},
    "recompute": {"recompute": Recompute.FULL},
    "recompute_layers": {"recompute": Recompute.BLOCK, "num_recompute_layers": 2},
    "recompute_modules": {"recompute_modules": ("mlp",)},
    "schedule": {"schedule": Schedule.ZB_H1},
    "layout": {"stage_layout": "Et*4|t*4L"},
    "optimizer_offload": {"optimizer_offload": 0.5},
    "offloaded_layers": {"offloaded_layers": 2},
    "offload_modules": {"offload_modules": ("core_attn",)},
}
WRITERS: tuple[tuple[str, Callable[..., object], frozenset[str]], ...] = (
    ("deepspeed", deepspeed.deepspeed_settings, deepspeed.PLAN_KEYS),
    ("internevo", internevo.internevo_settings, internevo.PLAN_KEYS),
    ("megatron", megatron.megatron_settings, megatron.PLAN_KEYS),
)
UNSAID = [
    pytest.param(name, write, key, id=f"{name} {key}")
    for name, write, says in WRITERS
    for key in CHANGES
    if key not in says
]


def test_every_key_of_the_table_is_tried() -> None:
    assert CHANGES.keys() == plan_settings().keys() - {"strategy", "preset"}


@pytest.mark.parametrize(("name", "write", "key"), UNSAID)
def test_a_key_without_a_setting_is_refused_by_name(name: str, write: Callable[..., object], key: str) -> None:
    plan = replace(Plan(strategy="mtp", preset=name), **CHANGES[key])
    asked = question(
        world_size=plan.world_size, sequences=8, preset=framework_preset(name), model=small_model(layers=8)
    )
    with pytest.raises(ExportError, match=f"no setting for .*{key} = "):
        write(asked, plan)


# Which exporter writes plans of which framework.


# Every exporter against every key of a model: it writes the key, refuses it in one line, or leaves the model
# to the framework's own definition of it (the training script's, or a model that the framework has by name).
#
# A model of Llama 3 8B's shapes, with one thing changed, through the exporter's own door.

LLAMA = read_config(Path(__file__).resolve().parents[3] / "configs" / "8B_llama3.py").model
Change = Callable[[ModelSpec], ModelSpec]


# What an exporter needs of the job besides its plan.
JOBS: dict[str, dict[str, object]] = {"swift": {"gradient": "fp32", "reduce": "fp32"}}


def attention(**changes: object) -> Change:
    """Fields of every layer's attention changed."""

    def change(model: ModelSpec) -> ModelSpec:
        mixer = model.blocks[0].block.mixer
        assert isinstance(mixer, AttentionSpec)
        return with_block(model, mixer=replace(mixer, **changes))  # type: ignore[arg-type]

    return change


def of_blocks(**changes: object) -> Change:
    return lambda model: with_block(model, **changes)


def of_model(**changes: object) -> Change:
    return lambda model: replace(model, **changes)  # type: ignore[arg-type]


KEYS: dict[str, Change] = {
    "norm_place after": of_blocks(norm_place=NormPlace.AFTER),
    "norm_place around": of_blocks(norm_place=NormPlace.AROUND),
    "norm_place shared": of_blocks(norm_place=NormPlace.SHARED, parallel_residual=True),
    "parallel_residual": of_blocks(parallel_residual=True),
    "norm without bias": lambda model: replace(
        with_block(model, norm=NormKind.LAYER_WITHOUT_BIAS), norm=NormKind.LAYER_WITHOUT_BIAS
    ),
    "norm without weights": lambda model: replace(
        with_block(model, norm=NormKind.RMS_WITHOUT_WEIGHTS), norm=NormKind.RMS_WITHOUT_WEIGHTS
    ),
    "logit_softcap": of_model(logit_softcap=True),
    "softcap": attention(softcap=True),
    "chunk": attention(chunk=1024),
    "alibi": attention(alibi=True),
    "window": attention(window=1024),
    "qk_norm of each head": attention(qk_norm=True),
    "qk_norm over all heads": attention(qk_norm=True, qk_norm_weights=QkNormWeights.ALL_HEADS),
    "qk_norm without weights": attention(qk_norm=True, qk_norm_weights=QkNormWeights.NONE),
    "qk_norm with biases": attention(qk_norm=True, qk_norm_weights=QkNormWeights.HEAD_WITH_BIAS),
    "sinks": attention(sinks=True),
    "output_gate": attention(output_gate=True),
    "inner_norm": attention(inner_norm=1),
    "head_gate": attention(head_gate=True),
    "index_topk": attention(index_topk=512),
    "qkv_bias": attention(qkv_bias=True),
    "tied_embeddings": of_model(tied_embeddings=True),
    "head_bias": of_model(head_bias=True),
    "embedding_norm": of_model(embedding_norm=True),
}
# What the file says of a key, a line of it; after a minus the line of the plain model that it has not.
LINES: dict[str, dict[str, str]] = {
    "megatron": {
        "window": "--window-size (1023,0)",
        "qk_norm of each head": "--qk-layernorm",
        "output_gate": "--attention-output-gate",
        "sinks": "--softmax-type learnable",
        "qkv_bias": "--add-qkv-bias",
        "tied_embeddings": "- --untie-embeddings-and-output-weights",
    },
    "zero-bubble": {"qk_norm of each head": "--qk-layernorm", "qkv_bias": "--add-qkv-bias"},
    "megatron-bridge": {"sinks": "config.model.attention_backend = AttnBackend.fused"},
    "swift": {"sinks": "--attention_backend fused"},
    "internevo": {"window": "'sliding_window': 1024,", "qkv_bias": "'qkv_bias': True,"},
}
HUB = frozenset(("window", "qk_norm of each head", "output_gate", "qkv_bias", "tied_embeddings"))
# Keys of which the file says nothing, for the model is another's: the training script's, or the Hub's as far
# as Megatron-Core has it.
ANOTHERS: dict[str, frozenset[str]] = {
    "deepspeed": frozenset(KEYS),
    "accelerate": frozenset(KEYS),
    "megatron-bridge": frozenset(KEYS) - {"sinks"},
    "swift": HUB,
}


@pytest.mark.parametrize("name", PLANS)
def test_a_key_is_written_refused_or_anothers(name: str) -> None:
    for key in KEYS:
        check_key(name, key)


def check_key(name: str, key: str) -> None:
    plan = PLANS[name]
    write = EXPORTERS[NAMES.get(name, name)].compose[plan.preset]

    def text_of(model: ModelSpec) -> str:
        return write(asked(plan, model=model, job=JOBS.get(name)), plan).text

    changed, plain = KEYS[key](LLAMA), text_of(LLAMA)
    if key in ANOTHERS.get(name, ()):
        assert text_of(changed) == plain
        return
    line = LINES.get(name, {}).get(key)
    if line is None:
        with pytest.raises(ExportError) as refused:
            text_of(changed)
        assert "has no setting for" in str(refused.value)
        assert "\n" not in str(refused.value)
        return
    here, there = ({each.strip() for each in text.splitlines()} for text in (text_of(changed), plain))
    if line.startswith("- "):
        here, there, line = there, here, line[2:]
    assert line in here - there


def test_every_exporter_of_models_is_asked() -> None:
    """A trace shows what a plan runs, whatever the model."""
    assert {NAMES.get(name, name) for name in PLANS} == set(WRITTEN) - {"trace"}
