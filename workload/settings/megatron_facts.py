"""What Megatron-LM is told of a model beyond its shapes: rotary base and scaling, epsilon, the router's scores.

Source: Megatron-LM core 0.14, megatron/training/arguments.py; core/transformer/transformer_config.py
(MLATransformerConfig: yarn by default, over 4,096 positions, with beta 1 and 32);
core/models/common/embeddings/rotary_pos_embedding.py (Llama 3's scaling: 1, 4 and 8,192 positions);
core/transformer/moe/moe_utils.py (topk_routing_with_score_function).
"""

from spec.mixers.attention import AttentionKind, attention_of
from spec.mixers.rope import RopeScaling, RopeSpec
from spec.model import ModelSpec, MoeSpec
from workload.settings.megatron_model import NAME, Flags

LLAMA3 = {"original_positions": 8192, "slow": 1.0, "fast": 4.0}
YARN = {"original_positions": 4096, "slow": 1.0, "fast": 32.0}


def fact_flags(model: ModelSpec) -> Flags:
    """Flags of what the config of ``model`` says."""
    flags: Flags = {}
    if model.norm_epsilon is not None:
        flags["--norm-epsilon"] = repr(model.norm_epsilon)
    if model.rope is not None:
        flags |= _rope(model.rope, latent=_is_latent(model))
    for moe in {run.block.moe for run in model.blocks if run.block.moe}:
        flags |= _router(moe)
    return flags


def unsaid_facts(model: ModelSpec) -> tuple[str, ...]:
    """Clauses for what a flag does not hold."""
    notes = []
    if model.rope is not None:
        if model.rope.base != int(model.rope.base):
            notes.append(f"rotary base {model.rope.base:g}: --rotary-base takes whole numbers")
        notes += _unsaid_scaling(model.rope.scaling, latent=_is_latent(model))
    for moe in {run.block.moe for run in model.blocks if run.block.moe}:
        if moe.score == "sigmoid" and not moe.normalized and moe.topk > 1:
            notes.append("router weights that are not divided by their sum")
        if moe.score == "softmax" and moe.normalized and moe.topk == 1:
            notes.append("a router weight of 1 for the one expert: it keeps its probability")
    for part in {part for run in model.blocks for part in (run.block.mlp,) if part and not part.gated}:
        computed = "gelu_tanh" if part.bias else "gelu"
        if part.activation in ("gelu", "gelu_tanh") and part.activation != computed:
            form = "its tanh form, fused with the bias" if part.bias else "the exact one"
            notes.append(f"{part.activation}: {NAME} computes {form}")
    return tuple(f"left out: {note}" for note in notes)


def _rope(rope: RopeSpec, *, latent: bool) -> Flags:
    flags: Flags = {}
    if rope.base == int(rope.base):
        flags["--rotary-base"] = int(rope.base)
    if rope.share < 1.0:
        flags["--rotary-percent"] = repr(rope.share)
    scaling = rope.scaling
    if scaling is None:
        # without it latent attention runs yarn; its fused rotation knows nothing else
        return flags | {"--rope-type": "rope", "--no-rope-fusion": None} if latent else flags
    if latent and scaling.kind == "yarn":
        flags |= {"--rope-type": "yarn", "--rotary-scaling-factor": repr(scaling.factor)}
        if scaling.mscale is not None:
            flags["--mscale"] = repr(scaling.mscale)
        if scaling.mscale_all_dim is not None:
            flags["--mscale-all-dim"] = repr(scaling.mscale_all_dim)
    elif not latent and scaling.kind == "llama3":
        flags |= {"--use-rope-scaling": None, "--rope-scaling-factor": repr(scaling.factor)}
    elif not latent and scaling.kind == "linear" and scaling.factor == int(scaling.factor):
        flags["--rotary-seq-len-interpolation-factor"] = int(scaling.factor)
    return flags


def _unsaid_scaling(scaling: RopeScaling | None, *, latent: bool) -> list[str]:
    if scaling is None:
        return []
    kind = scaling.kind
    fixed = {(True, "yarn"): YARN, (False, "llama3"): LLAMA3}.get((latent, kind))
    if fixed is not None:
        odd = {name: getattr(scaling, name) for name in fixed if getattr(scaling, name) not in (None, 0)}
        odd = {name: value for name, value in odd.items() if value != fixed[name]}
        return [
            f"{kind}'s {name.replace('_', ' ')} {value:g}, here {fixed[name]:g}"
            for name, value in odd.items()
        ]
    if kind == "linear" and not latent and scaling.factor == int(scaling.factor):
        return []
    return [f"rotary scaling {kind} by {scaling.factor:g}"]


def _router(moe: MoeSpec) -> Flags:
    flags: Flags = {}
    if moe.score == "sigmoid":
        flags["--moe-router-score-function"] = "sigmoid"
    elif not moe.normalized or moe.topk == 1:
        flags["--moe-router-pre-softmax"] = None
    if moe.router_bias:
        flags["--moe-router-enable-expert-bias"] = None
    if moe.route_groups > 1:
        flags |= {
            "--moe-router-num-groups": moe.route_groups,
            "--moe-router-group-topk": moe.route_chosen_groups,
        }
    if moe.route_scale != 1.0:
        flags["--moe-router-topk-scaling-factor"] = repr(moe.route_scale)
    return flags


def _is_latent(model: ModelSpec) -> bool:
    return attention_of(model.blocks[0].block.mixer, f"settings of {NAME}").kind is AttentionKind.MLA
