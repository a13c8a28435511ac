"""A plan as Megatron-LM's command line, with the facts of a model beyond its shapes: rotary base and scaling, epsilon,
the router's scores.

Source: Megatron-LM core 0.14, megatron/training/arguments.py; core/transformer/transformer_config.py
(MLATransformerConfig: yarn by default, over 4,096 positions, with beta 1 and 32);
core/models/common/embeddings/rotary_pos_embedding.py (Llama 3's scaling: 1, 4 and 8,192 positions);
core/transformer/moe/moe_utils.py (topk_routing_with_score_function).
"""

import numpy as np

from solver.pipeline.stages import layers_per_stage
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.frameworks import TensorParallel
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec, RopeScaling, RopeSpec
from spec.model import ModelSpec, MoeSpec
from spec.pipeline_layout import layout_text
from workload.settings.launch_file import (
    LaunchText,
    launch_of,
    launch_text,
    refuse_other_keys,
    same_framework,
    setting_omissions,
)
from workload.settings.megatron_flags import (
    NAME,
    Flags,
    hybrid_pattern,
    job_flags,
    job_keys,
    job_omissions,
    model_flags,
    recompute_flags,
    require,
)

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


def fact_omissions(model: ModelSpec) -> tuple[str, ...]:
    """Clauses for what a flag does not hold."""
    notes = []
    if model.rope is not None:
        if model.rope.base != int(model.rope.base):
            notes.append(f"rotary base {model.rope.base:g}: --rotary-base takes whole numbers")
        notes += _scaling_omissions(model.rope.scaling, latent=_is_latent(model))
    if extra_query_norms(model):
        notes.append("a norm of the queries' input beside the layer's, which core 0.19 adds without --q-lora-rank")
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


def _scaling_omissions(scaling: RopeScaling | None, *, latent: bool) -> list[str]:
    if scaling is None:
        return []
    kind = scaling.kind
    fixed = {(True, "yarn"): YARN, (False, "llama3"): LLAMA3}.get((latent, kind))
    if fixed is not None:
        odd = {name: getattr(scaling, name) for name in fixed if getattr(scaling, name) not in (None, 0)}
        odd = {name: value for name, value in odd.items() if value != fixed[name]}
        return [f"{kind}'s {name.replace('_', ' ')} {value:g}, here {fixed[name]:g}" for name, value in odd.items()]
    if kind == "linear" and not latent and scaling.factor == int(scaling.factor):
        return []
    return [f"rotary scaling {kind} by {scaling.factor:g}"]


def _router(moe: MoeSpec) -> Flags:
    flags: Flags = {}
    if moe.score == "sigmoid":
        flags["--moe-router-score-function"] = "sigmoid"
    elif not moe.normalized or moe.topk == 1:
        flags["--moe-router-pre-softmax"] = None
    # Where all linears have biases the router's is one of them (moe/router.py: add_bias_linear).
    if moe.router_bias and not moe.bias:
        flags["--moe-router-enable-expert-bias"] = None
    if moe.route_groups > 1:
        flags |= {"--moe-router-num-groups": moe.route_groups, "--moe-router-group-topk": moe.route_chosen_groups}
    if moe.route_scale != 1.0:
        flags["--moe-router-topk-scaling-factor"] = repr(moe.route_scale)
    return flags


def extra_query_norms(model: ModelSpec) -> int:
    """Returns the weights of norms that latent attention without a rank of queries has twice (core 0.19,
    multi_latent_attention.py, _resolve_qk_norm_config)."""
    mixers = ((run.block.mixer, run.count) for run in model.blocks)
    return model.hidden * sum(
        count
        for mixer, count in mixers
        if isinstance(mixer, AttentionSpec) and mixer.kv_lora_rank and not mixer.q_lora_rank
    )


def _is_latent(model: ModelSpec) -> bool:
    return any(getattr(run.block.mixer, "kind", None) is AttentionKind.MLA for run in model.blocks)


# A plan as Megatron-LM's command line: ``torchrun ... pretrain_gpt.py $(grep -v '^#' FILE)``.
#
# Flags and refusals: Megatron-LM core 0.14, megatron/training/arguments.py (``validate_args``) and
# core/transformer/transformer_config.py; the split of layers over stages as
# core/transformer/pipeline_parallel_layer_layout.py reads it. Data, tokenizer, learning rate and checkpoints
# are the user's.

# The keys of a plan that its flags say.
PLAN_KEYS = frozenset(
    {"tp", "pp", "cp", "vpp", "ep", "etp", "zero_stage", "zero_size", "micro_batch", "num_micro", "layout"}
    | {"recompute", "recompute_layers", "recompute_modules", "optimizer_offload", "offloaded_layers"}
    | {"offload_modules"}
)
# What takes a part of --tp-comm-overlap away (arguments.py), by the choice of spec.frameworks.TensorParallel.
SWITCHED_OFF = {
    "overlap_ag": "--disable-tp-comm-overlap-ag",
    "overlap_rs": "--disable-tp-comm-overlap-rs",
    "bulk_dgrad": "--disable-tp-comm-bulk-dgrad",
    "bulk_wgrad": "--disable-tp-comm-bulk-wgrad",
}
CP_COMM_TYPES = {"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"}
USAGE = "$(grep -v '^#' FILE) and your data, tokenizer, learning rate, checkpoints"
CORE = "0.14"
# flags that core 0.14 does not have yet
SINCE = {
    "--window-size": "0.15",
    "--cpu-offloading-num-layers": "0.16",
    "--fine-grained-activation-offloading": "0.16",
    "--moe-shared-expert-gate": "0.16",
    "--moe-latent-size": "0.19",
    "--window-attn-skip-freq": "0.19",
    "--softmax-type": "0.19",
    "--quick-geglu": "0.19",
    "--attention-output-gate": "0.19",
    "--optimizer": "0.19",
    "--hybrid-layer-pattern": "0.19",
    "--experimental-attention-variant": "0.19",
    "--fp4-format": "0.15",
    "--fp8-output-proj": "0.18",
    "--moe-flex-dispatcher-backend": "0.16",
    "--cuda-graph-impl": "0.19",
}


def megatron_settings(problem: Problem, plan: Plan) -> LaunchText:
    """One flag a line. Raises ExportError for what Megatron-LM cannot run."""
    flags = megatron_flags(problem, plan)
    script = "pretrain_hybrid.py" if "--hybrid-layer-pattern" in flags else "pretrain_gpt.py"
    core = max([CORE, *(SINCE[flag] for flag in flags if flag in SINCE)])
    usage = f"{NAME} core {core} or later: torchrun ... {script} {USAGE}"
    return launch_text(plan, usage, omissions(problem, plan), flag_lines(flags))


def flag_lines(flags: Flags) -> list[str]:
    """One flag a line."""
    return [flag if value is None else f"{flag} {value}" for flag, value in flags.items()]


def omissions(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Clauses for what the flags leave out of the model and the job."""
    job = (*job_omissions(problem, plan), *setting_omissions(problem, job_keys(problem.job)))
    chats = "set --tokenizer-type SFTTokenizer and --data-path to chats (datasets/sft_dataset.py, which packs them)"
    return (*[chats] * (problem.job.task == "sft"), *fact_omissions(problem.model), *job)


def check_megatron(model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for a model or a job that no plan makes Megatron-LM run."""
    model_flags(model, job)
    job_flags(model, job)
    fact_flags(model)


def megatron_flags(problem: Problem, plan: Plan) -> Flags:
    """Flags and their values (None: a switch). Raises ExportError for what Megatron-LM cannot run."""
    same_framework("megatron", plan)
    model = {**model_flags(problem.model, problem.job), **fact_flags(problem.model)}
    launch = launch_flags(problem, plan)
    return launch | model | {name: launch[name] for name in ("--hybrid-layer-pattern",) if name in launch}


def launch_flags(problem: Problem, plan: Plan) -> Flags:
    """The flags of the plan and the job, which every framework on Megatron-Core names in words of its own;
    those of the model aside. Raises ExportError for what Megatron-LM cannot run."""
    refuse_other_keys(plan, PLAN_KEYS, NAME)
    require(plan.zero_stage < 2, f"ZeRO stage {plan.zero_stage}")
    flags = {
        **_degrees(problem, plan),
        **_split(problem.model, plan),
        **_hops(problem, plan),
        **_data_parallel(problem, plan),
        "--micro-batch-size": plan.micro_batch,
        "--global-batch-size": plan.micro_batch * plan.num_micro * plan.dp,
        "--seq-length": problem.job.seq_len,
        **job_flags(problem.model, problem.job),
        **recompute_flags(problem.model, plan),
    }
    graphs, modules = problem.job.cuda_graphs, str(flags.get("--recompute-modules", "")).split()
    drops = problem.job.dropout and not graphs.isdisjoint({"attn", "full_iteration"}) and "core_attn" in modules
    require(not drops, "CUDA graphs of attention that is recomputed with its dropout")
    offloads = bool(plan.offload_modules) and "full_iteration" in graphs
    require(not offloads, "offloaded modules inside a CUDA graph of the whole iteration")
    aware = "--optimizer" in flags and "--use-precision-aware-optimizer" in flags
    require(not aware, "Muon's states offloaded or in low precision")
    return flags


def launch_flags_of_hub_models(problem: Problem, plan: Plan) -> Flags:
    """``launch_flags`` with the two of a model that are choices of its training, where the Hub's config says the
    rest."""
    model, job = problem.model, problem.job
    predicted = sum(run.count for run in model.blocks if run.block.mtp)
    flags: Flags = {"--mtp-num-layers": predicted} if predicted else {}
    for capacity in {job.capacity_factor(run.block.moe) for run in model.blocks if run.block.moe} - {None}:
        flags["--moe-expert-capacity-factor"] = str(capacity)
    return launch_flags(problem, plan) | flags


def _degrees(problem: Problem, plan: Plan) -> Flags:
    job = problem.job
    flags: Flags = {
        **launch_of("megatron", plan, NAME),
        "--pipeline-model-parallel-size": plan.pp,
        "--context-parallel-size": plan.cp,
    }
    if plan.cp > 1:
        require(job.seq_len % (2 * plan.cp) == 0, f"{job.seq_len} tokens over 2 x cp {plan.cp} pieces")
        flags["--cp-comm-type"] = CP_COMM_TYPES[job.context_parallel]
    sequence_parallel = "--sequence-parallel" in flags
    if any(run.block.moe for run in problem.model.blocks):
        require(plan.tp == 1 or sequence_parallel, "experts beside tp without sequence parallelism")
        require(job.precision.compute == "bf16", f"experts in {job.precision.compute}")
        flags |= {"--expert-model-parallel-size": plan.ep, "--expert-tensor-parallel-size": plan.etp}
        routes = not job.sends_tokens_once or plan.ep * plan.tp > 1
        require(routes, f"{job.moe_dispatcher} among experts of one rank")
        overlaps = not job.overlap_expert_a2a or (plan.ep > 1 and (plan.pp == 1 or plan.vpp > 1))
        require(overlaps, "overlapped experts without ep, or on stages of one chunk")
    if job.preset.tensor_parallel.overlap and sequence_parallel:  # there is none to overlap without
        flags |= _tp_overlap(job.preset.tensor_parallel)
    return flags


def _tp_overlap(choices: TensorParallel) -> Flags:
    """Ring exchange of reduce-scatters is set in a file of its own (--tp-comm-overlap-cfg)."""
    by_ring = "tp overlap with reduce-scatters by ring exchange"
    require(choices.overlap_rs_method == "pipeline", by_ring)
    flags: Flags = {"--tp-comm-overlap": None}
    flags |= {flag: None for choice, flag in SWITCHED_OFF.items() if not getattr(choices, choice)}
    return flags | ({"--tp-comm-overlap-rs-dgrad": None} if choices.overlap_rs_dgrad else {})


def _split(model: ModelSpec, plan: Plan) -> Flags:
    """Layers over stages and chunks, where they do not divide evenly."""
    pattern = hybrid_pattern(model)
    if pattern:
        require(not plan.stage_layout, "a layout of half blocks")
        cuts = np.cumsum(layers_per_stage(len(pattern), plan.pp * plan.vpp))
        cut = "|".join(pattern[start:end] for start, end in zip([0, *cuts[:-1]], cuts, strict=True))
        return {} if plan.vpp == 1 and len(pattern) % plan.pp == 0 else {"--hybrid-layer-pattern": cut}
    if plan.stage_layout:
        return {"--pipeline-model-parallel-layout": plan.stage_layout}
    layers, stages = model.num_layers, plan.pp * plan.vpp
    flags: Flags = {"--num-virtual-stages-per-pipeline-rank": plan.vpp} if plan.vpp > 1 else {}
    if layers % stages == 0:
        return flags
    predicted = sum(run.count for run in model.blocks if run.block.mtp)
    counts = layers_per_stage(layers, stages, predicts=predicted > 0).tolist()
    each = max(counts)
    for ends in (("loss",), ("embedding", "loss")) if plan.vpp > 1 else ():
        lighter = [each - ("embedding" in ends), *[each] * (stages - 2), each - 1]
        if counts == lighter:
            return flags | {f"--account-for-{end}-in-pipeline-split": None for end in ends}
    return {"--pipeline-model-parallel-layout": layout_text(counts, predicted)}


def _hops(problem: Problem, plan: Plan) -> Flags:
    """Interleaved stages compute beside their messages by default; stages that wait must be three or more."""
    if plan.vpp == 1 or problem.job.preset.pipeline.overlap_p2p:
        return {}
    require(plan.pp > 2, f"chunks that wait for their messages on {plan.pp} stages")
    return {"--no-overlap-p2p-communication": None}


def _data_parallel(problem: Problem, plan: Plan) -> Flags:
    """Reductions, their buckets, and what the distributed optimizer gathers."""
    choices = problem.job.preset.data_parallel
    copies = plan.dp * plan.cp
    flags: Flags = {}
    if copies > 1 and choices.overlap_grad_reduce:
        flags["--overlap-grad-reduce"] = None
        bucket = max(choices.bucket_elements, choices.bucket_elements_per_rank * copies)
        require(bucket > 0, "a gradient reduction for every layer")
        # core/distributed/distributed_data_parallel.py
        if bucket != max(40_000_000, 1_000_000 * plan.dp):
            flags["--ddp-bucket-size"] = bucket
    if plan.zero_size > 1:
        flags["--use-distributed-optimizer"] = None
        if plan.zero_size < copies:
            flags["--num-distributed-optimizer-instances"] = copies // plan.zero_size
        if choices.overlap_param_gather:
            require(choices.overlap_grad_reduce, "gathering parameters ahead without overlap-grad-reduce")
            flags["--overlap-param-gather"] = None
    if problem.job.optimizer == "muon":
        require(plan.zero_size in (1, copies), "Muon over a part of the data-parallel ranks")
        flags["--optimizer"] = "muon"
    precision = problem.job.precision
    plain = {precision.master, precision.moments} == {"fp32"}
    require(plain or plan.zero_size > 1, "narrow optimizer states that are not distributed")
    return flags | _offload(problem.model, plan)


def _offload(model: ModelSpec, plan: Plan) -> Flags:
    """--optimizer-cpu-offload wants the precision-aware optimizer, and that the distributed one."""
    flags: Flags = {}
    if plan.optimizer_offload:
        require(plan.zero_size > 1, "an offloaded optimizer that is not distributed")
        flags |= {
            "--optimizer-cpu-offload": None,
            "--optimizer-offload-fraction": f"{plan.optimizer_offload:g}",
            "--use-precision-aware-optimizer": None,
        }
    if plan.offloaded_layers:
        alone = plan.pp == 1 and not recompute_flags(model, plan)
        require(alone, "offloaded activations beside pipeline stages or recomputation")
        flags |= {"--cpu-offloading-num-layers": plan.offloaded_layers}
    if plan.offload_modules:
        flags |= {
            "--fine-grained-activation-offloading": None,
            "--offload-modules": " ".join(sorted(plan.offload_modules)),
        }
    if "fused_group_mlp" in plan.offload_modules:
        flags["--use-transformer-engine-op-fuser"] = None
    return flags
