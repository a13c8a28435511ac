"""Every switch of a job can be set, under one key, and beats what it starts from; named precisions narrow the linears'
products and nothing else."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

import pytest

from ops.cpu_overhead import CALLS, GRAPHED
from ops.low_precision import RECIPES
from ops.memory_bound import KERNELS
from profdb.cost_model import FP8_RECIPES
from profdb.modelled.flash_generations import BEST, OVER_FLASH2
from spec.cluster.reader import read_architecture
from spec.dtypes import dtype_bytes
from spec.errors import ConfigError
from spec.frameworks import framework_names, framework_preset
from spec.job import JobSpec, precision_of
from spec.settings.job import LOW_PRECISION, JobRequest, job_of, job_settings, recipe_precision
from spec.settings.plan import plan_settings
from spec.settings.setting import setting_text
from tests.solver.questions import ROOT

# Sizes have options of their own; a preset's name is a fact about it, in which orders tensors are cast one about the GPU.
NO_SETTINGS = {"world_size", "seq_len", "global_batch_tokens", "preset.name", "precision.transposed_copies"}


def leaves(of: type, group: str = "") -> Iterator[str]:
    """Every field that is no group, with the groups it is in."""
    hints = get_type_hints(of)
    for one in fields(of):
        hint = hints[one.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from leaves(hint, f"{group}{one.name}.")
        else:
            yield f"{group}{one.name}"


def asked(**values: Any) -> JobSpec:
    framework = values.pop("framework", "megatron")
    settings = {key.replace("__", "."): value for key, value in values.items()}
    return job_of(
        JobRequest(world_size=8, seq_len=1024, global_batch_tokens=8192, framework=framework, settings=settings)
    )


def read(job: JobSpec, key: str) -> object:
    """The value that the formulas read."""
    holder: Any = job
    groups = {one.name for one in fields(type(job.preset))}
    if key.split(".", maxsplit=1)[0] in groups:
        holder = job.preset
    for name in key.split("."):
        holder = getattr(holder, name)
    return holder


def test_every_field_is_a_setting() -> None:
    named = {leaf for leaf in leaves(JobSpec) if leaf not in NO_SETTINGS}
    assert {leaf.removeprefix("preset.") for leaf in named} | {"precision.recipe"} == job_settings().keys()


def test_no_key_is_in_two_tables() -> None:
    assert not job_settings().keys() & plan_settings().keys()


def other_value(key: str, framework: str = "megatron") -> object:
    """A value that is not the framework's own."""
    setting = job_settings()[key]
    now = "bf16" if key == "precision.recipe" else read(asked(framework=framework), key)
    words = getattr(setting.kind, "words", None) or getattr(getattr(setting.kind, "of", None), "words", None)
    if isinstance(now, bool):
        return not now
    if isinstance(now, frozenset):
        return frozenset(words[:1])
    if isinstance(now, tuple):
        if words:
            return now[:1] if now else words[:1]
        return now[:1] if len(now) > 1 else (*now, now[0] + "x")
    if words:
        return next(word for word in words if word != now)
    return 2 if now is None else now + 1


def test_every_setting_reaches_the_field_it_names() -> None:
    for key in job_settings().keys() - {"precision.recipe"}:
        value = other_value(key)
        assert read(asked(), key) != value, key
        assert read(asked(**{key: value}), key) == value, key


@pytest.mark.parametrize("framework", framework_names(legacy=True))
def test_nothing_said_is_the_preset(framework: str) -> None:
    assert asked(framework=framework).preset == framework_preset(framework)


def test_words_are_those_that_the_formulas_know() -> None:
    words = {key: set(getattr(one.kind, "words", ())) for key, one in job_settings().items()}
    assert words["host.code"] == set(CALLS)
    assert words["precision.scaling"] - {""} == set(RECIPES)
    assert words["attention_kernel"] == {BEST, *OVER_FLASH2}
    assert words["data_parallel.accumulation"] - {""} <= set(KERNELS)
    assert set(job_settings()["cuda_graphs"].kind.of.words) == set(GRAPHED)  # type: ignore[attr-defined]


def test_a_format_beats_the_recipe_and_the_recipe_the_preset() -> None:
    assert asked().precision.gradient == "fp32"
    assert asked(data_parallel__fp32_gradients=False).precision.gradient == "bf16"
    assert asked(precision__recipe="fp16", data_parallel__fp32_gradients=False).precision.gradient == "fp16"
    narrow = asked(precision__recipe="fp8-current", precision__scaling="delayed").precision
    assert (narrow.linear, narrow.scaling) == ("fp8", "delayed")


def test_the_architecture_says_in_which_orders_tensors_are_cast() -> None:
    written = JobRequest(world_size=8, seq_len=1024, global_batch_tokens=8192)
    for name, copies in (("hopper", True), ("blackwell", False)):
        assert job_of(written, read_architecture(name, root=ROOT)).precision.transposed_copies is copies


@pytest.mark.parametrize(
    ("key", "value"),
    [("dropoff", True), ("dropout", 1), ("precision.linear", "fp7"), ("precision.recipe", "fp8"), ("loss", {})],
)
def test_what_no_job_has_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        asked(**{key: value})
    assert refused.value.key == key


def test_a_framework_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="framework"):
        asked(framework="ours")


PRODUCTS = {"linear", "scale_recipe", "scaling", "casts_every_forward"}
HELD = {"parameter_gather", "low_precision_parameters"}


@pytest.mark.parametrize("name", LOW_PRECISION)
def test_only_products_scales_and_casts_change(name: str) -> None:
    for framework in framework_names(legacy=True):
        preset = framework_preset(framework)
        wide, narrow = precision_of(preset), recipe_precision(name, preset)
        assert replace(narrow, **{one: getattr(wide, one) for one in PRODUCTS | HELD}) == wide, framework
        assert dtype_bytes(narrow.linear) < dtype_bytes(narrow.parameter) == dtype_bytes(narrow.activation) == 2.0


@pytest.mark.parametrize(
    ("framework", "name", "expected"),
    [
        # NeMo v2.3.0 and Megatron-Bridge v0.2.0, mixed_precision.py: fp8_param_gather of each recipe
        ("nemo2", "fp8-current", ("fp8", True)),
        ("nemo2", "mxfp8", ("bf16", False)),
        ("megatron-bridge", "fp8-current", ("fp8", True)),
        ("megatron-bridge", "mxfp8", ("bf16", True)),
        ("megatron-bridge", "fp8-blockwise", ("bf16", False)),
        ("megatron-bridge", "nvfp4", ("bf16", False)),
        # XLA casts before it gathers, and holds fp32 shards
        ("maxtext", "fp8-current", ("fp8", False)),
        ("maxtext", "mxfp8", ("bf16", False)),
        # an option that is off: Megatron-LM --fp8-param-gather, torchao enable_fsdp_float8_all_gather
        ("megatron", "fp8-current", ("bf16", False)),
        ("fsdp-compiled", "fp8-tensor", ("bf16", False)),
    ],
)
def test_weights_are_held_and_gathered_as_own_recipes_say(
    framework: str, name: str, expected: tuple[str, bool]
) -> None:
    found = recipe_precision(name, framework_preset(framework))
    assert (found.parameter_gather, found.low_precision_parameters) == expected


def test_the_sixteen_bit_ones_are_the_frameworks_own() -> None:
    for name in ("bf16", "fp16"):
        assert recipe_precision(name, framework_preset("megatron")) == precision_of(framework_preset("megatron"), name)


def test_scales_and_casts_are_known_to_look_ups_and_layers() -> None:
    for name in LOW_PRECISION:
        precision = recipe_precision(name, framework_preset("megatron"))
        assert precision.scale_recipe in FP8_RECIPES
        assert precision.scaling in RECIPES


def test_mxfp8_casts_as_the_frameworks_library_does() -> None:
    found = {
        name: recipe_precision("mxfp8", framework_preset(name)) for name in ("torchtitan", "fsdp-compiled", "maxtext")
    }
    assert [found[name].scaling for name in found] == ["dynamic", "dynamic", "block"]
    assert [found[name].casts_every_forward for name in found] == [True, True, False]


def test_a_set_of_numbers_is_written_as_it_is_read() -> None:
    stages = job_settings()["data_parallel.zero_stages"].read("3+2", "--job")
    assert setting_text(stages) == "3+2"
