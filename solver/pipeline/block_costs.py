"""Stages cut by what blocks cost to compute (nanotron, models/base.py, ``build_model``)."""

from dataclasses import replace

from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.mixer import mixer_parameters
from spec.model import BlockSpec, ModelSpec
from spec.parameters import idle_expert_parameters, mlp_parameters, moe_parameters
from spec.pipeline.layout import PipelineLayout


def block_cost(block: BlockSpec, hidden: int) -> int:
    """Elements of the matrices that a token passes through, key and value heads counted as if they were as many as
    the queries' (nanotron, models/llama.py, ``get_block_compute_costs``: ``4 n d h + 3 f h``)."""
    mixer = block.mixer
    if isinstance(mixer, AttentionSpec) and mixer.kind is AttentionKind.GQA:
        mixer = replace(mixer, num_kv_heads=mixer.num_heads)
    cost = 0 if mixer is None else mixer_parameters(mixer, hidden)
    if block.moe is not None:
        return cost + moe_parameters(block.moe, hidden) - idle_expert_parameters(block.moe, hidden)
    return cost + (0 if block.mlp is None else mlp_parameters(block.mlp, hidden))


def stages_by_cost(model: ModelSpec, pp: int) -> PipelineLayout:
    """A stage takes blocks until their sum passes its share of the whole model's cost, that of the head counted.

    A head that passes the share of the last stage but one leaves the stages behind it no layers. The source puts the
    loss there; here it stays with the head.
    """
    costs = [block_cost(run.block, model.hidden) for run in model.main_blocks for _ in range(run.count)]
    whole = sum(costs) + model.vocab * model.hidden
    layers, stage, passed = [0] * pp, 0, 0
    for cost in costs:
        layers[stage] += 1
        passed += cost
        stage += passed * pp > whole * (stage + 1)
    return PipelineLayout(layers=tuple(layers), predicting_stage=stage, head_stage=stage)
