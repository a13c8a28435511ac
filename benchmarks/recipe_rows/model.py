"""From a recipe's dimensions to a ModelSpec."""

from dataclasses import replace

from benchmarks.recipe_rows.recipe import Recipe
from spec.errors import ConfigError
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec
from spec.parameters import num_parameters

# Share by which parameters may differ from the published total: biases, norms and router corrections of a family.
TOLERANCE = 0.01


def model_of(recipe: Recipe) -> ModelSpec:
    """A dense or expert transformer. Raises ConfigError where it needs more, or its parameters are not the published
    ones."""
    where = f"{recipe.path}:{recipe.line}"
    if recipe.text("needs"):
        allowed = "a dense model or one of experts, of full attention"
        raise ConfigError(where=where, key="needs", value=recipe.text("needs"), allowed=allowed)
    model = ModelSpec(
        name=recipe.text("model"),
        hidden=recipe.whole("hidden"),
        vocab=recipe.whole("vocab"),
        blocks=_blocks(recipe),
        source=recipe.text("source"),
    )
    published, counted = recipe.whole("params_total", 0), num_parameters(model).total
    if published and abs(counted / published - 1.0) > TOLERANCE:
        raise ConfigError(where=where, key="params_total", value=published, allowed=f"about {counted:,}")
    return model


def _blocks(recipe: Recipe) -> tuple[BlockRun, ...]:
    """Dense layers, then those of experts, then blocks that predict more tokens."""
    attention, layers = _attention(recipe), recipe.whole("layers")
    dense = BlockSpec(
        mixer=attention, mlp=MlpSpec(ffn_hidden=recipe.whole("ffn"), gated=True, activation="silu")
    )
    if not recipe.whole("experts", 0):
        return (BlockRun(block=dense, count=layers),)
    first = recipe.whole("dense_layers", 0)
    routed = BlockSpec(mixer=attention, mlp=None, moe=_experts(recipe))
    runs = [BlockRun(block=dense, count=first)] * bool(first) + [BlockRun(block=routed, count=layers - first)]
    predicted = recipe.whole("mtp", 0)
    return (*runs, *[BlockRun(block=replace(routed, mtp=True), count=predicted)] * bool(predicted))


def _attention(recipe: Recipe) -> AttentionSpec:
    heads = recipe.whole("heads")
    if recipe.whole("kv_lora_rank", 0):
        nope, rope = recipe.whole("qk_nope_dim"), recipe.whole("qk_rope_dim")
        return AttentionSpec(
            kind=AttentionKind.MLA,
            num_heads=heads,
            num_kv_heads=heads,
            qk_dim=nope + rope,
            v_dim=recipe.whole("v_dim"),
            rope_dim=rope,
            q_lora_rank=recipe.whole("q_lora_rank", 0),
            kv_lora_rank=recipe.whole("kv_lora_rank"),
        )
    width, kv_heads = recipe.whole("head_dim"), recipe.whole("kv_heads")
    return AttentionSpec(
        kind=AttentionKind.GQA if kv_heads < heads else AttentionKind.MHA,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=width,
        v_dim=width,
        # Qwen3's config.json and modeling_qwen3.py
        qk_norm=recipe.text("model").startswith("qwen3"),
    )


def _experts(recipe: Recipe) -> MoeSpec:
    # DeepSeek-V3's config.json: n_group 8, topk_group 4
    groups = (8, 4) if recipe.text("model").startswith("deepseek_v3") else (1, 1)
    return MoeSpec(
        num_experts=recipe.whole("experts"),
        topk=recipe.whole("topk"),
        expert_ffn_hidden=recipe.whole("expert_ffn"),
        shared_ffn_hidden=recipe.whole("shared_expert_ffn", 0),
        route_groups=groups[0],
        route_chosen_groups=groups[1],
    )
