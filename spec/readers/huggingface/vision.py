"""Vision towers of a Hugging Face ``config.json``: those of Qwen2.5-VL and Qwen3-VL.

Source: transformers 5.24 ``models/<type>/configuration_<type>.py`` for defaults, ``modeling_<type>.py`` for the rest: patches of
several pictures in time, square windows of pixels in all but some layers of Qwen2.5-VL, mergers of square neighbours.
"""

from dataclasses import replace

from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockSpec, MlpSpec, NormKind, VisionSpec
from spec.readers.huggingface.parts import ACTIVATIONS, read_layer_numbers, runs_of
from spec.section import MAX_COUNT, MAX_LAYERS, Section

QWEN2_5 = {"hidden_size": 3584, "depth": 32, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14}
QWEN3 = {"hidden_size": 1152, "depth": 27, "num_heads": 16, "intermediate_size": 4304, "patch_size": 16}
TOWERS = {"qwen2_5_vl": QWEN2_5, "qwen3_vl": QWEN3, "qwen3_vl_moe": QWEN3}
"""Sizes that a class takes where a file leaves them out."""


def read_vision(top: Section, outer: str) -> VisionSpec | None:
    """Returns the tower of a model of this type; None where it has none, or one of a kind that is not read."""
    if outer not in TOWERS:
        return None
    section = top.section("vision_config")
    hidden, layers, heads, ffn, patch = (
        section.integer(key, default, maximum=MAX_LAYERS if key == "depth" else MAX_COUNT)
        for key, default in TOWERS[outer].items()
    )
    if hidden % heads:
        section.fail("num_heads", f"a divisor of hidden_size = {hidden}")
    older = TOWERS[outer] is QWEN2_5
    act = section.text("hidden_act", "silu" if older else "gelu_pytorch_tanh")
    width = hidden // heads
    attention = AttentionSpec(
        kind=AttentionKind.MHA,
        num_heads=heads,
        num_kv_heads=heads,
        qk_dim=width,
        v_dim=width,
        qkv_bias=True,
        out_bias=True,
    )
    block = BlockSpec(
        mixer=attention,
        mlp=MlpSpec(ffn_hidden=ffn, gated=older, bias=True, activation=ACTIVATIONS.get(act, act)),
        norm=NormKind.RMS if older else NormKind.LAYER,
    )
    tower = VisionSpec(
        hidden=hidden,
        blocks=runs_of([block] * layers),
        norm=block.norm,
        patch_channels=section.integer("in_channels", 3) * section.integer("temporal_patch_size", 2) * patch * patch,
        merged=section.integer("spatial_merge_size", 2) ** 2,
    )
    if older:
        side = section.integer("window_size", 112, minimum=patch) // patch
        windowed = replace(block, mixer=replace(attention, chunk=side * side))
        whole = read_layer_numbers(section, "fullatt_block_indexes") or [7, 15, 23, 31]
        return replace(tower, blocks=runs_of([block if index in whole else windowed for index in range(layers)]))
    further = read_layer_numbers(section, "deepstack_visual_indexes") or [8, 16, 24]
    positions = section.integer("num_position_embeddings", 2304)
    return replace(tower, patch_bias=True, positions=positions, deepstack=len(further))
