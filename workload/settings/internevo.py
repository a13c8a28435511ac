"""A plan as the sections of an InternEvo config that it decides: model, parallel, data, hybrid_zero_optimizer.

Keys: InternEvo 0.5, configs/ and internlm/initialize/launch.py (``args_sanity_check``); models as
internlm/model/builder.py registers them. Data paths, optimizer and checkpoints are the user's.
"""

from fractions import Fraction
from pprint import pformat

from ops.recompute.layers import Recompute
from solver.plans.plan_table import Plan
from solver.question import Question
from solver.schedules.registry import Schedule
from spec.errors import ExportError
from spec.mixers.attention import AttentionKind, AttentionSpec, attention_of
from spec.model import BlockSpec, ModelSpec, PositionKind
from spec.readers.internlm_model import rounded_ffn
from workload.settings.launch_error import launch_of, refuse_unless, refuse_unsaid, same_framework

NAME = "InternEvo"
# The keys of a plan that its sections say.
SAYS = frozenset(
    {"tp", "pp", "wp", "ep", "etp", "vpp", "zero_stage", "zero_size", "micro_batch", "num_micro"}
    | {"schedule", "recompute", "recompute_layers"}
)
Section = dict[str, object]


def internevo_settings(question: Question, plan: Plan) -> str:
    """The config's text. Raises ExportError for what InternEvo cannot run."""
    same_framework("internevo", plan)
    sections = {
        "data": {"seq_len": question.job.seq_len, "micro_num": plan.num_micro, "micro_bsz": plan.micro_batch},
        "parallel": _parallel(question, plan),
        "hybrid_zero_optimizer": {
            "overlap_sync_grad": question.job.preset.data_parallel.overlap_grad_reduce,
            "overlap_sync_param": question.job.preset.data_parallel.overlap_param_gather,
            "reduce_bucket_size": question.job.preset.data_parallel.bucket_elements,
        },
    }
    model_type, model = _model(question, plan)
    lines = [f"# {plan.label()}", f"model_type = {model_type!r}", ""]
    for name, section in {"model": model, **sections}.items():
        lines += [f"{name} = {pformat(section, sort_dicts=False, width=100)}", ""]
    return "\n".join(lines)


def _parallel(question: Question, plan: Plan) -> Section:
    refuse_unsaid(plan, SAYS, NAME)
    refuse_unless(plan.zero_stage < 2, NAME, f"ZeRO stage {plan.zero_stage}")
    schedules = (Schedule.ONE_F_ONE_B, Schedule.ZB_H1)
    refuse_unless(plan.schedule in schedules, NAME, f"schedule {plan.schedule.value}")
    pipeline: Section = {"size": plan.pp, "interleaved_overlap": True}
    if plan.schedule is Schedule.ZB_H1:
        pipeline["zero_bubble"] = True
    parallel: Section = {
        "zero1": {"size": plan.zero_size, "fsdp": False},
        "tensor": launch_of("internevo", plan, NAME).settings,
        "pipeline": pipeline,
        "weight": {
            "size": plan.wp,
            "overlap": question.job.preset.data_parallel.overlap_weights,
            "memory_pool": False,
        },
    }
    if plan.ep > 1 or any(run.block.moe for run in question.model.blocks):
        refuse_unless(plan.etp in (1, plan.tp), NAME, f"experts over tp {plan.etp} beside tp {plan.tp}")
        parallel["expert"] = {"size": plan.ep, "no_tp": plan.etp == 1}
    return parallel


def _model(question: Question, plan: Plan) -> tuple[str, Section]:
    model = question.model
    refuse_unless(len(model.blocks) == 1, NAME, f"the mixed layers of {model.name}")
    refuse_unless(model.position is PositionKind.ROTARY, NAME, "other than rotary positions")
    refuse_unless(not (model.head_bias or model.embedding_norm), NAME, "a head bias or a norm of embeddings")
    whole = plan.recompute in (Recompute.NONE, Recompute.FULL)
    refuse_unless(whole, NAME, f"recomputing {plan.recompute.value} parts of its layers")
    partly = plan.recompute is Recompute.BLOCK
    refuse_unless(
        not partly or model.num_layers % plan.pp == 0, NAME, "a share of recomputed layers on unequal stages"
    )
    compute = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}.get(question.job.precision.compute)
    if compute is None:
        raise ExportError(f"{NAME} has no setting for {question.job.precision.compute} products")
    block = model.blocks[0].block
    attention = attention_of(block.mixer, f"settings of {NAME}")
    model_type, biases = _family(block, attention)
    section: Section = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "vocab_size": model.vocab,
        **_attention(model, attention),
        **biases,
        **_feed_forward(model, block),
        "norm_type": model.norm.value,
        "dtype": compute,
        "use_flash_attn": question.job.flash_attention,
        # A bool, or the share of a stage's layers.
        "checkpoint": plan.num_recompute_layers * plan.pp / model.num_layers
        if partly
        else plan.recompute is Recompute.FULL,
        "num_chunks": plan.vpp,
    }
    if model.rope is not None:
        section["rope_base"] = model.rope.base
    if model.norm_epsilon is not None:
        section["layer_norm_epsilon"] = model.norm_epsilon
    if model.max_positions:
        section["max_position_embeddings"] = model.max_positions
    if model.tied_embeddings:
        section["tie_embeddings_and_output_weights"] = True
    return model_type, section


def _attention(model: ModelSpec, attention: AttentionSpec) -> Section:
    plain = attention.kind is not AttentionKind.MLA and attention.qk_dim == attention.v_dim
    refuse_unless(plain and not attention.sinks, NAME, f"the attention of {model.name}")
    section: Section = {
        "num_attention_heads": attention.num_heads,
        "num_kv_attention_heads": attention.num_kv_heads,
    }
    if attention.qk_dim * attention.num_heads != model.hidden:
        section["head_dim"] = attention.qk_dim
    if attention.window is not None:
        section |= {"use_sliding_window": True, "sliding_window": attention.window}
    return section


def _family(block: BlockSpec, attention: AttentionSpec) -> tuple[str, Section]:
    """The model type whose layers are these, and its switches for biases."""
    refuse_unless(not block.parallel_residual, NAME, "parallel residuals")
    biases = (attention.qkv_bias, attention.out_bias, bool(block.mlp and block.mlp.bias))
    if block.moe is not None:
        refuse_unless(not block.moe.bias, NAME, "biases of experts")
        name = "QWEN2MOE" if block.moe.shared_gate else "MIXTRALMOE"
        name = "QWEN3MOE" if attention.qk_norm else name
        return name, {"qkv_bias": biases[0], "o_bias": biases[1]}
    refuse_unless(not attention.qk_norm, NAME, "norms of queries and keys in dense layers")
    if biases[0] == biases[1] == biases[2]:
        return "INTERNLM2_PUBLIC", {"no_bias": not biases[0]}
    refuse_unless(not biases[2], NAME, "biases in the feed-forward layer alone")
    return "QWEN2", {"qkv_bias": biases[0], "o_bias": biases[1]}


def _feed_forward(model: ModelSpec, block: BlockSpec) -> Section:
    moe = block.moe
    if block.mlp is not None:
        return {**_width(model.hidden, block.mlp.ffn_hidden), "use_swiglu": block.mlp.gated}
    if moe is None:
        raise ExportError(f"{NAME} has no setting for layers without a feed-forward network")
    refuse_unless(not moe.router_bias, NAME, "score corrections of the router")
    shared, odd = divmod(moe.shared_ffn_hidden, moe.expert_ffn_hidden)
    refuse_unless(odd == 0, NAME, "shared experts of another width")
    section: Section = {
        **_width(model.hidden, moe.expert_ffn_hidden),
        "use_swiglu": moe.gated,
        "num_experts": moe.num_experts,
        "top_k": moe.topk,
        "num_shared_experts": shared,
        "moe_type": "Dropless" if moe.capacity_factor is None else "GShard",
    }
    if moe.capacity_factor is not None:
        section["moe_layer_kwargs"] = {"capacity_factor": moe.capacity_factor}
    return section


def _width(hidden: int, ffn: int) -> Section:
    """mlp_ratio and multiple_of that come out at ``ffn``: the width is int(hidden x ratio), rounded up."""
    unit = 256 if ffn % 256 == 0 else 1
    # With a unit of 1 nothing is rounded up, so a ratio that falls just short must not.
    for ratio in (ffn / hidden, float(Fraction(2 * ffn + 1, 2 * hidden))):
        if rounded_ffn(hidden, ratio, multiple_of=unit) == ffn:
            return {"mlp_ratio": ratio, "multiple_of": unit}
    raise ExportError(f"{NAME} has no setting for a feed-forward width of {ffn}")
