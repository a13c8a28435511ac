"""Parts that model types with routed experts share: the experts, their groups, which layers have them."""

from spec.mixers.attention import AttentionSpec
from spec.model import BlockSpec, MlpSpec, MoeSpec
from spec.readers.huggingface.facts import activation
from spec.section import Section

ALWAYS_NORMALIZED = ("mixtral", "deepseek_v3", "phimoe", "gpt_oss", "minimax_m2", "ernie4_5_moe")


def read_experts(
    top: Section, count_key: str, width_key: str, *, topk_key: str = "num_experts_per_tok"
) -> MoeSpec:
    """The routed experts; top-k is at most their number. ``norm_topk_prob`` is False where a type has it and its
    config does not say; Mixtral and others have none, and always divide."""
    count, topk = top.integer(count_key), top.integer(topk_key)
    if topk > count:
        top.fail(topk_key, f"at most {count_key} = {count}")
    return MoeSpec(
        num_experts=count,
        topk=topk,
        expert_ffn_hidden=top.integer(width_key),
        activation=activation(top),
        normalized=top.flag("norm_topk_prob", top.text("model_type") in ALWAYS_NORMALIZED),
    )


def route_groups(top: Section, count_key: str) -> tuple[int, int]:
    """Groups of experts, and of how many of them a token's experts are (``n_group``, ``topk_group``)."""
    count, topk = top.integer(count_key), top.integer("num_experts_per_tok")
    groups = top.integer_or("n_group", 1)
    chosen = top.integer_or("topk_group", groups)
    if chosen > groups or count % groups or count // groups * chosen < topk:
        top.fail("n_group", f"a divisor of {count} experts, with topk in topk_group of them")
    return groups, chosen


def routed_layers(top: Section, layers: int) -> list[bool]:
    """Layer i is routed unless listed in ``mlp_only_layers`` or off the ``decoder_sparse_step``."""
    step = top.integer_or("decoder_sparse_step", 1)
    dense_layers = read_layer_numbers(top, "mlp_only_layers")
    return [index not in dense_layers and (index + 1) % step == 0 for index in range(layers)]


def read_layer_numbers(top: Section, key: str) -> list[int]:
    """A list of layer numbers; empty when absent."""
    listed = top.values.get(key) or []
    if not isinstance(listed, list) or not all(type(index) is int for index in listed):
        top.fail(key, "a list of layer numbers")
    return listed


def sparse_blocks(
    attention: AttentionSpec, mlp: MlpSpec | None, moe: MoeSpec, routed: list[bool]
) -> list[BlockSpec]:
    """A block a layer: of experts where ``routed``, else of ``mlp``."""
    return [
        BlockSpec(mixer=attention, mlp=None if is_routed else mlp, moe=moe if is_routed else None)
        for is_routed in routed
    ]
