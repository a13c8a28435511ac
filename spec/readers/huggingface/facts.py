"""What a Hugging Face config says that has no price but belongs to a launch: rotary base and scaling, the
epsilon of its norms, the activation of its feed-forward layers.

Source: transformers 5 ``configuration_utils.py`` and ``modeling_rope_utils.py`` (``rope_parameters``; before it
``rope_theta`` and ``rope_scaling``, whose kind was ``type``), ``activations.py`` (ACT2FN), and the defaults of
``models/<type>/configuration_<type>.py``; DeepSeek and InternLM2: ``configuration_*.py`` beside their weights.
"""

from dataclasses import dataclass, replace

from spec.mixers.rope import RopeScaling, RopeSpec
from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Defaults of one model type, and its own names of the keys."""

    rope_base: float = 10_000.0
    base_key: str = "rope_theta"
    share: float = 1.0
    share_key: str = "partial_rotary_factor"
    epsilon: float = 1e-6
    epsilon_key: str = "rms_norm_eps"
    activation: str = "silu"
    activation_key: str = "hidden_act"


PLAIN = Usual()
LAYER_NORM = Usual(epsilon=1e-5, epsilon_key="layer_norm_eps")
USUAL = {
    "mixtral": Usual(rope_base=1_000_000.0, epsilon=1e-5),
    "gpt2": Usual(
        epsilon=1e-5,
        epsilon_key="layer_norm_epsilon",
        activation="gelu_new",
        activation_key="activation_function",
    ),
    "gpt_neox": Usual(
        base_key="rotary_emb_base",
        share=0.25,
        share_key="rotary_pct",
        epsilon=1e-5,
        epsilon_key="layer_norm_eps",
        activation="gelu",
    ),
    "gpt_bigcode": Usual(
        epsilon=1e-5,
        epsilon_key="layer_norm_epsilon",
        activation="gelu_pytorch_tanh",
        activation_key="activation_function",
    ),
    "bloom": Usual(epsilon=1e-5, epsilon_key="layer_norm_epsilon"),
    "opt": Usual(epsilon=1e-5, activation="relu", activation_key="activation_function"),
    "falcon": Usual(
        epsilon=1e-5, epsilon_key="layer_norm_epsilon", activation="gelu", activation_key="activation"
    ),
    "starcoder2": Usual(epsilon=1e-5, epsilon_key="norm_epsilon", activation="gelu_pytorch_tanh"),
    "nemotron": Usual(share=0.5, epsilon=1e-5, epsilon_key="norm_eps", activation="relu2"),
    "phi": replace(LAYER_NORM, share=0.5, activation="gelu_new"),
    "stablelm": replace(LAYER_NORM, share=0.25),
    "cohere": replace(LAYER_NORM, rope_base=500_000.0),
    "cohere2": LAYER_NORM,
    "gemma": Usual(activation="gelu_pytorch_tanh"),
    "gemma2": Usual(activation="gelu_pytorch_tanh", activation_key="hidden_activation"),
    "gemma3_text": Usual(
        rope_base=1_000_000.0, activation="gelu_pytorch_tanh", activation_key="hidden_activation"
    ),
    "phi3": Usual(epsilon=1e-5),
    "phimoe": Usual(rope_base=1_000_000.0, epsilon=1e-5),
    "gpt_oss": Usual(rope_base=150_000.0, epsilon=1e-5),
    "glm4": Usual(share=0.5, epsilon=1.5625e-7),
    "glm4_moe": Usual(share=0.5, epsilon=1e-5),
    "olmo2": Usual(epsilon=1e-5),
    "olmo3": Usual(rope_base=500_000.0, epsilon=1e-5),
    "olmoe": Usual(epsilon=1e-5),
    "smollm3": Usual(rope_base=2_000_000.0),
    "exaone4": Usual(epsilon=1e-5),
    "hunyuan_v1_dense": Usual(epsilon=1e-5),
    "ernie4_5": Usual(rope_base=500_000.0, epsilon=1e-5),
    "ernie4_5_moe": Usual(rope_base=500_000.0, epsilon=1e-5),
    "llama4_text": Usual(rope_base=500_000.0, epsilon=1e-5),
    "minimax_m2": Usual(rope_base=5_000_000.0),
    "bamba": Usual(share=0.5, epsilon=1e-5),
    "mamba2": Usual(epsilon=1e-5, epsilon_key="layer_norm_epsilon"),
    "qwen3_next": Usual(share=0.25),
    "nemotron_h": Usual(epsilon=1e-5, activation="relu2", activation_key="mlp_hidden_act"),
}
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
    """The feed-forward activation by our name; one that we have no name for by its own."""
    usual = _usual(top)
    written = top.text(usual.activation_key, usual.activation)
    return ACTIVATIONS.get(written, written)


def norm_epsilon(top: Section) -> float:
    """What norms add under the root."""
    usual = _usual(top)
    return top.number_or(usual.epsilon_key, usual.epsilon, maximum=1.0)


def rope(top: Section) -> RopeSpec:
    """Base, rotated share and scaling; ``rope_parameters`` holds all three, for kinds of layers apart where
    they differ, or keys of their own do."""
    usual = _usual(top)
    inside = top.section("rope_parameters")
    if inside.has(GLOBAL):
        inside = inside.section(GLOBAL)
    base = inside.number_or("rope_theta", top.number_or(usual.base_key, usual.rope_base))
    share = inside.number_or(
        "partial_rotary_factor", top.number_or(usual.share_key, usual.share, maximum=1.0), maximum=1.0
    )
    if share > 1.0:
        top.fail(usual.share_key, "a share of a head's channels, above 0 to 1")
    return RopeSpec(
        base=base, share=share, scaling=_scaling(inside if inside.values else top.section("rope_scaling"))
    )


def _scaling(section: Section) -> RopeScaling | None:
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return None
    low, high = ("low_freq_factor", "high_freq_factor") if kind == "llama3" else ("beta_slow", "beta_fast")
    return RopeScaling(
        kind=kind,
        factor=section.number_or("factor", 1.0),
        original_positions=section.integer_or("original_max_position_embeddings", 0),
        slow=_maybe(section, low),
        fast=_maybe(section, high),
        mscale=_maybe(section, "mscale"),
        mscale_all_dim=_maybe(section, "mscale_all_dim"),
    )


def _usual(top: Section) -> Usual:
    return USUAL.get(top.text("model_type"), PLAIN)


def _maybe(section: Section, key: str) -> float | None:
    return float(section.number(key, positive=False)) if section.has(key) else None
