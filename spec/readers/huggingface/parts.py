"""Parts of a Hugging Face ``config.json`` that every reader uses: layers, what predicts further tokens, and what has no price but
belongs to a launch (rotary base and scaling, epsilon of norms, activation).

Source: transformers 5 ``configuration_utils.py`` and ``modeling_rope_utils.py`` (``rope_parameters``; before it
``rope_theta`` and ``rope_scaling``, whose kind was ``type``), ``activations.py`` (ACT2FN).
"""

from dataclasses import replace
from itertools import groupby

from spec.mixers.attention import RopeScaling, RopeSpec
from spec.model import BlockRun, BlockSpec
from spec.section import MAX_LAYERS, Section

GLOBAL = "full_attention"
"""Layers whose rotation stands for the model's where layers with windows have another."""
# names of transformers' ACT2FN that compute what spec.model calls otherwise
ACTIVATIONS = {
    "swish": "silu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "squared_relu",
}


def activation(top: Section) -> str:
    """Returns the feed-forward activation by our name; one that we have no name for by its own."""
    written = top.text("hidden_act", "silu")
    return ACTIVATIONS.get(written, written)


def norm_epsilon(top: Section) -> float:
    """Returns the epsilon of the norms."""
    return top.number("rms_norm_eps", 1e-6, maximum=1.0)


def rope(top: Section) -> RopeSpec:
    """Returns base, rotated share and scaling; ``rope_parameters`` holds all three, for kinds of layers apart where
    they differ, or keys of their own do."""
    inside = top.section("rope_parameters")
    if inside.has(GLOBAL):
        inside = inside.section(GLOBAL)
    base = inside.number("rope_theta", top.number("rope_theta", 10_000.0))
    share = inside.number("partial_rotary_factor", top.number("partial_rotary_factor", 1.0, maximum=1.0), maximum=1.0)
    if share > 1.0:
        top.fail("partial_rotary_factor", "a share of a head's channels, above 0 to 1")
    return RopeSpec(base=base, share=share, scaling=_scaling(inside if inside.values else top.section("rope_scaling")))


def _scaling(section: Section) -> RopeScaling | None:
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return None
    low, high = ("low_freq_factor", "high_freq_factor") if kind == "llama3" else ("beta_slow", "beta_fast")
    return RopeScaling(
        kind=kind,
        factor=section.number("factor", 1.0),
        original_positions=section.integer("original_max_position_embeddings", 0),
        slow=_maybe(section, low),
        fast=_maybe(section, high),
        mscale=_maybe(section, "mscale"),
        mscale_all_dim=_maybe(section, "mscale_all_dim"),
    )


def _maybe(section: Section, key: str) -> float | None:
    return section.number(key, positive=False) if section.has(key) else None


def read_layers(top: Section) -> int:
    """Returns the number of decoder layers."""
    return top.integer("num_hidden_layers", maximum=MAX_LAYERS)


def read_layer_numbers(top: Section, key: str) -> list[int]:
    """Returns a list of layer numbers, or a text of them with commas between; empty when absent."""
    listed = top.values.get(key) or []
    if isinstance(listed, str):
        listed = [int(word) if word.strip().isdigit() else word for word in listed.split(",")]
    if not isinstance(listed, list) or not all(type(index) is int for index in listed):
        top.fail(key, "a list of layer numbers")
    return listed


def runs_of(blocks: list[BlockSpec]) -> tuple[BlockRun, ...]:
    """Returns consecutive equal blocks joined into runs."""
    return tuple(BlockRun(block=block, count=len(list(same))) for block, same in groupby(blocks))


PREDICTING = "num_nextn_predict_layers"


def predicting(top: Section, blocks: list[BlockSpec], more: BlockSpec) -> tuple[BlockRun, ...]:
    """Returns the runs of ``blocks``, and one of as many blocks ``more`` that predict further tokens as the config has."""
    count = top.integer(PREDICTING, 0, minimum=0)
    return (*runs_of(blocks), *([BlockRun(block=replace(more, mtp=True), count=count)] if count else ()))
