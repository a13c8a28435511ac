"""The ``model`` section of an InternEvo config: one of its model types, with the keys that its class takes.

Source: InternEvo 0.5.3 (develop, commit 02ea919), internlm/model/modeling_*.py and modules/mlp.py; QWEN3MOE:
commit 4cdc7ba. tests/workload/settings/accepted lists the keys of every class.
"""

from dataclasses import replace
from fractions import Fraction
from pprint import pformat

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from solver.problem.problem import Problem
from spec.errors import ExportError
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec, QkNormWeights, attention_of
from spec.model import BlockSpec, ModelSpec, MoeSpec, NormKind, NormPlace, PositionKind
from spec.readers.internlm import chunk_sizes, rounded_ffn
from workload.settings.launch_file import (
    EXPANDABLE_SEGMENTS,
    LaunchText,
    launch_of,
    launch_text,
    refuse_other_keys,
    requirement,
    same_framework,
    setting_omissions,
)

NAME = "InternEvo"
require = requirement(NAME)
Section = dict[str, object]


def model_type(model: ModelSpec) -> str:
    """The registered name of the layers of ``model``. Raises ExportError where there is none."""
    block, attention = _layers(model)
    if block.moe is not None:
        require(not block.moe.bias, "biases of experts")
        return "QWEN3MOE" if attention.qk_norm else "QWEN2MOE" if block.moe.shared_gate else "MIXTRALMOE"
    require(not attention.qk_norm, "norms of queries and keys in dense layers")
    mlp_bias = bool(block.mlp and block.mlp.bias)
    alike = attention.qkv_bias == attention.out_bias == mlp_bias
    return "INTERNLM2_PUBLIC" if alike and attention.window is None else "QWEN2"


def model_section(model: ModelSpec) -> Section:
    """Returns the section that every plan shares. Raises ExportError for a model that InternEvo does not have."""
    block, attention = _layers(model)
    kind = model_type(model)
    require(model.position is PositionKind.ROTARY, "other than rotary positions")
    require(not (model.head_bias or model.embedding_norm), "a head bias or a norm of embeddings")
    require(not model.tied_embeddings, "an embedding tied to the head")
    section: Section = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "vocab_size": model.vocab,
        **_attention(model, attention, kind),
        **_biases(block, attention, kind),
        **_feed_forward(model, block, kind),
        "norm_type": model.norm.value,
        "apply_post_layer_norm": False,
        "embed_grad_scale": 1,
        "parallel_output": True,
    }
    if model.rope is not None:
        section["rope_base"] = model.rope.base
    if model.norm_epsilon is not None:
        section["layer_norm_epsilon"] = model.norm_epsilon
    if model.max_positions:
        section["max_position_embeddings"] = model.max_positions
    return section


def omissions(model: ModelSpec) -> tuple[str, ...]:
    """Facts of the model that InternEvo has no key for; none of them has a price."""
    notes = []
    if model.rope is not None and model.rope.scaling is not None:
        notes.append(f"rotary scaling {model.rope.scaling.kind} by {model.rope.scaling.factor:g}")
    if model.rope is not None and model.rope.share < 1.0:
        notes.append(f"rotation of {model.rope.share:g} of a head's channels: it rotates all")
    for part in (model.blocks[0].block.mlp, model.blocks[0].block.moe):
        if part is not None and part.activation == "gelu_tanh":
            notes.append("the tanh form of GELU: it computes the exact one")
    moe = model.blocks[0].block.moe
    return (*notes, *(_router_omissions(moe, model_type(model)) if moe else ()))


def _router_omissions(moe: MoeSpec, kind: str) -> tuple[str, ...]:
    notes = []
    if moe.route_groups > 1:
        notes.append(f"routing to {moe.route_chosen_groups} of {moe.route_groups} groups of experts")
    if kind != "QWEN3MOE":
        if moe.score != "softmax":
            notes.append(f"router scores by {moe.score}")
        if not moe.normalized and moe.topk > 1:
            notes.append("router weights that are not divided by their sum")
        if moe.route_scale != 1.0:
            notes.append(f"router weights times {moe.route_scale:g}")
    return tuple(notes)


def _layers(model: ModelSpec) -> tuple[BlockSpec, AttentionSpec]:
    require(len(model.blocks) == 1, f"the mixed layers of {model.name}")
    block = model.blocks[0].block
    require(not block.parallel_residual, "parallel residuals")
    require(block.norm_place is NormPlace.BEFORE, "norms elsewhere than before each half")
    require(model.norm in (NormKind.RMS, NormKind.LAYER), "norms without weights or biases")
    require(not model.logit_softcap, "soft-capped logits")
    require(not model.rare_parts, " or ".join(model.rare_parts))
    return block, attention_of(block.mixer, f"settings of {NAME}")


def _attention(model: ModelSpec, attention: AttentionSpec, kind: str) -> Section:
    plain = attention.kind is not AttentionKind.MLA and attention.qk_dim == attention.v_dim
    require(
        plain and not (attention.sinks or attention.gates or attention.index_topk), f"the attention of {model.name}"
    )
    require(not (attention.softcap or attention.chunk), "soft-capped or chunked attention")
    require(not attention.alibi, "ALiBi")
    plain_norms = not attention.qk_norm or attention.qk_norm_weights is QkNormWeights.HEAD
    require(plain_norms, "norms of queries and keys without one weight vector for all heads")
    section: Section = {"num_attention_heads": attention.num_heads, "num_kv_attention_heads": attention.num_kv_heads}
    if attention.qk_dim * attention.num_heads != model.hidden:
        require(kind == "QWEN3MOE", f"heads of {attention.qk_dim} channels on a hidden size of {model.hidden}")
        section["head_dim"] = attention.qk_dim
    if attention.window is not None:
        section |= {"use_sliding_window": True, "sliding_window": attention.window}
    return section


def _biases(block: BlockSpec, attention: AttentionSpec, kind: str) -> Section:
    mlp_bias = bool(block.mlp and block.mlp.bias)
    if kind == "INTERNLM2_PUBLIC":
        return {"no_bias": not attention.qkv_bias}
    section: Section = {"qkv_bias": attention.qkv_bias, "o_bias": attention.out_bias}
    return section | {"mlp_bias": mlp_bias} if kind == "QWEN2" else section


def _feed_forward(model: ModelSpec, block: BlockSpec, kind: str) -> Section:
    """Every InternEvo layer is gated, by SiLU or, where use_swiglu is False, by GELU; experts by SiLU alone."""
    part = block.moe or block.mlp
    if part is None:
        raise ExportError(f"{NAME} has no setting for layers without a feed-forward network")
    require(part.gated, "feed-forward layers without a gate")
    gates = ("silu",) if block.moe else ("silu", "gelu", "gelu_tanh")
    require(part.activation in gates, f"gates by {part.activation}")
    if block.mlp is not None:
        return {**_width(model.hidden, block.mlp.ffn_hidden), "use_swiglu": block.mlp.activation == "silu"}
    assert block.moe is not None
    return {**_width(model.hidden, block.moe.expert_ffn_hidden), **_experts(block.moe, kind)}


def _experts(moe: MoeSpec, kind: str) -> Section:
    require(not moe.router_bias, "score corrections of the router")
    require(not moe.latent_hidden, "experts in a latent")
    shared, odd = divmod(moe.shared_ffn_hidden, moe.expert_ffn_hidden)
    require(odd == 0, "shared experts of another width")
    drops = moe.capacity_factor is not None
    gated = moe.shared_gate or not shared
    require(kind != "QWEN3MOE" or (gated and not drops), "these shared experts, or dropped tokens")
    details: Section = {"capacity_factor": moe.capacity_factor} if drops else {}
    if kind == "QWEN3MOE":
        details |= {
            "scoring_func": moe.score,
            "normalize_expert_weights": moe.normalized,
            "routed_scaling_factor": moe.route_scale,
        }
    return {
        "use_swiglu": True,
        "num_experts": moe.num_experts,
        "top_k": moe.topk,
        "num_shared_experts": shared,
        "moe_type": "GShard" if drops else "Dropless",
        "moe_layer_kwargs": details,
    }


def _width(hidden: int, ffn: int) -> Section:
    """mlp_ratio and multiple_of that come out at ``ffn``: the width is int(hidden x ratio), rounded up."""
    unit = 256 if ffn % 256 == 0 else 1
    # With a unit of 1 nothing is rounded up, so a ratio that falls just short must not.
    for ratio in (ffn / hidden, float(Fraction(2 * ffn + 1, 2 * hidden))):
        if rounded_ffn(hidden, ratio, multiple_of=unit) == ffn:
            return {"mlp_ratio": ratio, "multiple_of": unit}
    raise ExportError(f"{NAME} has no setting for a feed-forward width of {ffn}")


# A plan as the sections of an InternEvo config that it decides: model, parallel, data, hybrid_zero_optimizer.
#
# Keys and refusals: InternEvo 0.5.3 (develop, commit 02ea919, 2025-01-17), internlm/initialize/launch.py
# (``args_sanity_check``) and internlm/model/builder.py. Data paths, optimizer and checkpoints are the user's.

# The keys of a plan that its sections say.
PLAN_KEYS = frozenset(
    {"tp", "pp", "wp", "ep", "etp", "vpp", "zero_stage", "zero_size", "micro_batch", "num_micro"}
    | {"schedule", "recompute", "recompute_layers"}
)
# The settings of a job that the sections, or their refusals, say.
JOB_KEYS = frozenset(
    str.split(
        "data_parallel.bucket_elements data_parallel.overlap_grad_reduce data_parallel.overlap_param_gather "
        "data_parallel.overlap_weights layers.joined_gate precision.compute precision.linear precision.scale_recipe "
        "precision.scaling flash_attention dropout moe_capacity_factor optimizer adapter_rank adapted expandable_segments"
    )
)
# The first that registers a model type (internlm/model/registry.py); the release 0.5.2 has INTERNLM,
# INTERNLM2_PUBLIC, LLAMA2, INTERNLM_MoE and LLAVA.
SINCE = {
    "INTERNLM2_PUBLIC": "0.5 or later, where it is INTERNLM2 from commit 24180aa (2025-01-22) on",
    "QWEN2": "0.5.3 of commit d9bb33f (2024-09-11) or later",
    "QWEN2MOE": "0.5.3 of commit 6e591ac (2024-09-20) or later",
    "MIXTRALMOE": "0.5.3 of commit 6e591ac (2024-09-20) or later",
    "QWEN3MOE": "of commit 4cdc7ba or later, newer than 0.5.3 of January 2025",
}
ZERO_BUBBLE_SINCE = "0.5.3 of commit 330c03a (2024-10-29) or later"
USERS = "ckpt, grad_scaler, loss, adam, lr_scheduler, beta2_scheduler, monitor and the paths in data"


def internevo_settings(problem: Problem, plan: Plan) -> LaunchText:
    """The config. Raises ExportError for what InternEvo cannot run."""
    same_framework("internevo", plan)
    refuse_other_keys(plan, PLAN_KEYS, NAME)
    check_internevo(problem.model, problem.job)
    kind = model_type(problem.model)
    sections = {
        "model": _model(problem, plan),
        "data": _data(problem, plan),
        "parallel": _parallel(problem, plan),
        "hybrid_zero_optimizer": _optimizer(problem),
    }
    notes = (
        *(f"left out: {note}" for note in omissions(problem.model)),
        *setting_omissions(problem, JOB_KEYS),
        *([f"set {EXPANDABLE_SEGMENTS}"] if problem.job.expandable_segments else []),
    )
    lines = [f"model_type = {kind!r}"]
    for name, section in sections.items():
        lines += ["", f"{name} = {pformat(section, sort_dicts=False, width=100)}"]
    return launch_text(plan, f"Needs InternEvo {_since(kind, plan)}. Add {USERS}.", notes, lines)


def _since(kind: str, plan: Plan) -> str:
    return ZERO_BUBBLE_SINCE if plan.schedule is Schedule.ZB_H1 and kind != "QWEN3MOE" else SINCE[kind]


def check_internevo(model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for a model or a job that no plan makes InternEvo run."""
    model_section(_trained(model, job))
    require(not job.dropout, "a job's dropout")
    require(job.optimizer == "adamw", "another optimizer than Adam")
    products = job.precision
    plain = products.compute in ("bf16", "fp16") and products.linear == products.compute
    require(plain, f"{products.linear} products")
    sync = job.preset.data_parallel
    both = sync.overlap_grad_reduce and sync.overlap_param_gather
    require(not (_routed(model) and both), "experts with overlap_sync_grad and overlap_sync_param")


def checkpoint_share(recomputed: int, sizes: frozenset[int]) -> float:
    """A share of which int(share x layers) is ``recomputed`` on stages of each of these ``sizes``.

    The whole quotient where it does, for it is what one would write; else the middle of the shares that
    do. Raises ExportError where none does.
    """
    low = max(recomputed / size for size in sizes)
    high = min(1.0, *((recomputed + 1) / size for size in sizes))
    for share in (low, (low + high) / 2):
        if all(int(share * size) == recomputed for size in sizes):
            return share
    raise ExportError(
        f"{NAME} has no setting for {recomputed} recomputed layers on stages of {' or '.join(map(str, sorted(sizes)))}"
    )


def _trained(model: ModelSpec, job: JobSpec) -> ModelSpec:
    """The model with the capacity of experts that the job says."""
    runs = []
    for run in model.blocks:
        moe = run.block.moe
        moe = moe and replace(moe, capacity_factor=job.capacity_factor(moe))
        runs.append(replace(run, block=replace(run.block, moe=moe)))
    return replace(model, blocks=tuple(runs))


def _model(problem: Problem, plan: Plan) -> Section:
    job, model = problem.job, problem.model
    require(plan.recompute is not Recompute.SELECTIVE, f"recomputing {plan.recompute.value} parts of its layers")
    require(model.num_layers % plan.vpp == 0, f"{model.num_layers} layers in {plan.vpp} chunks")
    checkpoint: bool | float = plan.recompute is Recompute.FULL
    if plan.recompute is Recompute.BLOCK:
        sizes = chunk_sizes(model.num_layers // plan.vpp, plan.pp)
        checkpoint = checkpoint_share(plan.num_recompute_layers, sizes)
    alone = [run.block.mlp for run in model.blocks if run.block.mlp]
    return {
        **model_section(_trained(problem.model, problem.job)),
        "mlp_layer_fusion": job.preset.layers.joined_gate and any(not mlp.bias for mlp in alone),
        "dtype": {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[job.precision.compute],
        "use_flash_attn": job.flash_attention,
        "checkpoint": checkpoint,
        "num_chunks": plan.vpp,
    }


def _data(problem: Problem, plan: Plan) -> Section:
    """Without flash attention there is no packed data set."""
    return {
        "seq_len": problem.job.seq_len,
        "micro_num": plan.num_micro,
        "micro_bsz": plan.micro_batch,
        "use_packed_dataset": problem.job.flash_attention,
        "pack_sample_into_one": False,
        "rampup_batch_size": "",
    }


def _parallel(problem: Problem, plan: Plan) -> Section:
    require(plan.zero_stage < 2, f"ZeRO stage {plan.zero_stage}")
    overlap = problem.job.preset.data_parallel.overlap_weights
    parallel: Section = {
        "zero1": {"size": _zero_size(problem.model, plan), "fsdp": False},
        "tensor": launch_of("internevo", plan, NAME),
        "pipeline": {
            "size": plan.pp,
            "interleaved_overlap": problem.job.preset.pipeline.overlap_p2p,
            "mode": _schedule(problem, plan),
        },
        "weight": {"size": plan.wp, "overlap": overlap},
    }
    if _routed(problem.model):
        require(plan.etp in (1, plan.tp), f"experts over tp {plan.etp} beside tp {plan.tp}")
        parallel["expert"] = {"size": plan.ep, "no_tp": plan.etp == 1}
        parallel["expert_weight"] = {"size": 1, "overlap": False}
    return parallel


def _zero_size(model: ModelSpec, plan: Plan) -> int:
    """-1 is the whole group that holds the same weights; with experts InternEvo takes nothing else."""
    groups = plan.sharding.traits.copies.has_weight_groups
    whole = plan.world_size // (plan.pp * plan.wp) if groups else plan.dp
    if plan.zero_size == whole:
        return -1
    require(not _routed(model), f"experts beside a zero1 over {plan.zero_size} of {plan.dp} data-parallel ranks")
    return plan.zero_size


def _schedule(problem: Problem, plan: Plan) -> str:
    """Its ZBH1 takes one chunk a stage, and reduces and gathers nothing beside a backward."""
    modes = {Schedule.ONE_F_ONE_B: "1F1B", Schedule.ZB_H1: "ZBH1"}
    require(plan.schedule in modes, f"schedule {plan.schedule.value}")
    if plan.schedule is Schedule.ZB_H1:
        sync = problem.job.preset.data_parallel
        require(not sync.overlap_grad_reduce, "zero bubbles beside overlap_sync_grad")
        require(plan.vpp == 1, f"zero bubbles with {plan.vpp} chunks a stage")
        ahead = plan.sharding.traits.copies.has_weight_groups and sync.overlap_weights
        require(not ahead, "zero bubbles beside gathers of weights ahead")
    return modes[plan.schedule]


def _optimizer(problem: Problem) -> Section:
    sync = problem.job.preset.data_parallel
    return {
        "overlap_sync_grad": sync.overlap_grad_reduce,
        "overlap_sync_param": sync.overlap_param_gather,
        "reduce_bucket_size": sync.bucket_elements,
    }


def _routed(model: ModelSpec) -> bool:
    return any(run.block.moe for run in model.blocks)
