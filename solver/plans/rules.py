"""The rules that a plan must satisfy, as one table (``RULES``): a reason, the column after which the rule can be
checked, and one line of arithmetic, or a function above the table with its source.

A search checks a rule as soon as its column exists (solver.plans.space), and counts every rejected plan under the first
rule that it breaks. A plan that a user specifies is checked against all of them, and may be priced although it breaks
some."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ops.context import WeightCopies
from ops.data_parallel.offload import LAYER_INPUT
from ops.layout import group_of
from ops.mixers.registry import MIXERS
from ops.op import Axis, Owner
from ops.recompute import Recompute
from solver.plans.plan_columns import PlanColumns
from solver.plans.schedules import Schedule
from spec.arrays import BoolArray, IntArray, bools
from spec.job import JobSpec


class Rule(NamedTuple):
    """``keep`` returns where a plan may stay, one value a plan or one for all; ``after`` is the last column that it
    reads. ``applies`` returns whether plans of a job can break the rule at all."""

    reason: str
    after: str
    keep: Callable[[PlanColumns], Any]
    applies: Callable[[JobSpec], bool] = lambda job: True

    def keeps(self, plans: PlanColumns) -> BoolArray:
        """Returns whether each plan may stay."""
        rows = len(next(iter(plans.columns.values())))
        return np.broadcast_to(bools(not self.applies(plans.job) or self.keep(plans)), (rows,))


# Tensor and context parallelism.


def kv_heads_divide(d: PlanColumns) -> BoolArray:
    """Returns where key and value heads divide over tp, or tp divides over them and framework or strategy replicates
    them."""
    tp = d["tp"]
    repeats = d.preset.tensor_parallel.kv_replication or d.traits.repeats_kv_heads
    possible = [(kv % tp == 0) | (tp % kv == 0) & (tp > kv) & repeats for kv in d.model.repeatable_heads]
    return bools(np.all(possible, axis=0))


def feed_forward_divides(d: PlanColumns) -> BoolArray:
    """Returns where the width of every feed-forward network divides over the ranks that shard its weights."""
    shards = d.layout.tp_if(d.sharding.traits.cuts_matrices)
    widths = [run.block.mlp.ffn_hidden for run in d.model.blocks if run.block.mlp is not None]
    return bools(np.all([width % shards == 0 for width in widths], axis=0))


def mixers_cut_sequences(d: PlanColumns) -> BoolArray:
    """Returns where sequences are whole, or every token mixer can shard them in the job's way (ring or all-to-all)."""
    whole = bools(d["cp"] == 1)
    if whole.all():
        return whole
    return whole | all(MIXERS[type(mixer)].cuts_sequences(mixer, d.job.context_parallel) for mixer in d.model.mixers)


def mixers_exchange_heads(d: PlanColumns) -> BoolArray:
    """Returns where no token mixer refuses to exchange tokens for heads, as strategies over tp may."""
    if not d.traits.exchanges_heads:
        return bools(True)
    return bools((d["tp"] == 1) | all("all_to_all" not in MIXERS[type(one)].refuses(one) for one in d.model.mixers))


# Schedules, stages and their chunks.

UNEVEN_CHUNKS = "interleaving needs a framework that supports it, layers that divide over the chunks, and a multiple of pp micro-batches"
CHUNKS_OF_ORDER = (
    "schedules but 1f1b need several stages; looped-bfs and zb-interleaved need several chunks a stage, others one"
)
TWO_CHUNKS = (
    "zb-v and DualPipe need an even number of virtual stages, two a stage, and DualPipe twice as many micro-batches"
)
WITHOUT_ORDER = frozenset({CHUNKS_OF_ORDER, TWO_CHUNKS})
"""Reasons of plans that cannot be priced either: their schedule has no order of tasks for them."""
EQUAL_INSTEAD = "unequal chunks are not searched where equal ones exist"

# Assumption: more chunks of a stage are never worth their messages; a plan may still specify them.
MOST_CHUNKS = 8
UNEQUAL = (2, 4, 8)
# Assumption: unequal chunks are not worth trying where the longest is longer than the mean by more than this factor.
LONGEST_OVER_MEAN = 1.25


def backward_runs_alone(job: JobSpec, schedule: Schedule, copies: WeightCopies) -> bool:
    """Returns whether no reduction or gather overlaps a backward whose weight gradients are deferred (zero-bubble's
    megatron/core/zbpp_utils.py refuses overlap-grad-reduce; InternEvo's WeightGradStore, in
    core/scheduler/pipeline_scheduler_zb.py, waits for what it reduces; PyTorch's stages reduce once, behind all)."""
    if schedule.traits.pairs or not schedule.traits.splits_backward or job.preset.pipeline.keeps_gathered:
        return True
    sync = job.preset.data_parallel
    return not (sync.overlap_grad_reduce or (copies.has_weight_groups and sync.overlap_weights))


def backward_can_split(job: JobSpec, schedule: Schedule) -> bool:
    """Returns whether the schedule splits no backward, or the framework does not compile it
    (torch/distributed/pipelining/schedules.py, _check_torch_compile_compatibility)."""
    return schedule.traits.pairs or not schedule.traits.splits_backward or job.preset.host.code != "compiled"


def autograd_splits(d: PlanColumns) -> BoolArray:
    """Returns where PyTorch can split backwards: not compiled, and without checkpoints and shards where autograd splits
    them. Each product's weight gradient is a graph task of its own, in which a checkpoint runs again
    (torch/distributed/pipelining/_backward.py, stage_backward_weight; torch/utils/checkpoint.py, is_recomputed by
    task), and FSDP2 misses some gradients (PyTorch 2.13, tried on two stages of two shards)."""
    by_autograd = d.schedule.traits.splits_backward and d.preset.pipeline.keeps_gathered
    runs = not by_autograd or ((d["zero_stage"] < 2) & (d.recompute is Recompute.NONE))
    return bools(runs & np.bool_(backward_can_split(d.job, d.schedule)))


def chunks_fit_order(d: PlanColumns) -> BoolArray:
    """Returns where a schedule has as many chunks as its orders are made for (arXiv 2401.10241 sec. 2, zero bubbles of
    one chunk; solver.plans.schedules), and several stages, which only 1F1B does not need. Schedules that are not looped
    have a rule of their own (two_chunks_fit)."""
    least, most = d.schedule.traits.chunks
    has_stages = (d["pp"] > 1) | (d.schedule is Schedule.ONE_F_ONE_B)
    return bools((not d.schedule.placement.looped) | has_stages & (d["vpp"] >= least) & (d["vpp"] <= most))


def two_chunks_fit(d: PlanColumns) -> BoolArray:
    """Returns where ZB-V and DualPipe can run. deepseek-ai/DualPipe asserts (dualpipe.py and dualpipev.py, ``step``) an
    even number of virtual stages, two on each, and twice as many micro-batches or more, an even number of them where
    half enter at each end; ZB-V needs the two chunks alone."""
    placement = d.schedule.placement
    stages = d["pp"] * d["vpp"]
    two = (d["pp"] > 1) & (placement.directions * d["vpp"] == 2) & (stages % 2 == 0)
    enough = (d.num_micro >= d.schedule.traits.micros_per_stage * d["pp"]) & (d.num_micro % placement.directions == 0)
    # Each virtual stage holds a layer, or the embedding or the head.
    return bools(placement.looped | two & (stages <= d.model.num_layers + 2) & enough)


def divide_equally(d: PlanColumns, chunks: IntArray) -> BoolArray:
    """Returns where Megatron-LM can make equal chunks (arguments.py): layers divide over them, with the loss, or
    embedding and loss, counted as a layer each where the preset can (--account-for-embedding-in-pipeline-split,
    --account-for-loss-in-pipeline-split)."""
    ends = (0, 1, 2) if d.preset.pipeline.uneven_chunks else (0,)
    return bools(np.any([(d.model.num_layers + extra) % chunks == 0 for extra in ends], axis=0))


def chunks_interleave(d: PlanColumns) -> BoolArray:
    """Returns where stages can interleave: a multiple of pp micro-batches, and equal chunks or, with an explicit
    layout, a layer or an end of the model on each of them."""
    pipeline, number = d.preset.pipeline, d["pp"] * d["vpp"]
    if not d.schedule.placement.looped:
        return bools(True)
    by_layout = (pipeline.uneven_chunks == "layout") & (number <= d.model.num_layers + 2)
    rounds = d.num_micro % d["pp"] == 0
    possible = (d["pp"] > 1) & (divide_equally(d, number) | by_layout) & rounds
    return bools((d["vpp"] == 1) | possible & pipeline.interleaves)


def chunks_worth_searching(d: PlanColumns) -> BoolArray:
    """Returns the numbers of chunks that a search tries. Assumption: where a depth has equal chunks they beat unequal
    ones, and where it has none powers of two are enough."""
    pp, vpp = d["pp"], d["vpp"]
    if not d.schedule.placement.looped:
        return bools(True)
    equal = np.any([divide_equally(d, pp * number) for number in range(2, MOST_CHUNKS + 1)], axis=0)
    near = nearly_equal(d.model.num_layers, pp * vpp) & np.isin(vpp, UNEQUAL)
    return bools((vpp == 1) | divide_equally(d, pp * vpp) | (~equal & near))


def nearly_equal(layers: int, chunks: IntArray) -> BoolArray:
    """Returns where layers that do not divide over ``chunks`` still make chunks that are worth trying."""
    return bools(-(-layers // chunks) * chunks <= LONGEST_OVER_MEAN * layers)


def high_precision_layers_fit_stage(d: PlanColumns) -> BoolArray:
    """Returns where one stage holds all high-precision layers of an end (Megatron-LM d98e8a6 ``transformer_config.py``,
    num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16: at most num_layers // pipeline_model_parallel_size)."""
    precision = d.job.precision
    most = max(precision.high_precision_first_layers, precision.high_precision_last_layers)
    return bools(most <= d.model.num_layers // d["pp"])


# Experts and their exchange.

# HybridEP's queue pairs take less than 65,536 requests, a dispatch 3 a token and one (DeepEP, branch hybrid-ep,
# csrc/hybrid_ep/config.cuh, hybrid_ep_token_capacity_is_valid).
MOST_TOKENS_BETWEEN_DOMAINS = (65536 - 1 - 1) // 3
# DeepEP's groups: deep_ep/buffers/legacy.py (dd758ca), get_dispatch_config and get_combine_config,
# "Unsupported number of EP ranks", which Megatron-LM's fused_a2a.py, get_buffer, asks; the group is that of ep x etp
# (Megatron-LM d98e8a6 ``token_dispatcher.py``, _DeepepManager).
DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)


def exchange_overlaps(d: PlanColumns) -> BoolArray:
    """Returns where the experts' exchange can overlap another micro-batch: virtual chunks if there are stages, no layer
    recomputed whole, nor its experts (Megatron-LM d98e8a6 ``transformer_config.py``, __post_init__,
    overlap_moe_expert_parallel_comm)."""
    recomputes = d.recompute in WHOLE_LAYERS or "moe" in d.recompute_modules
    possible = ((d["pp"] == 1) | (d["vpp"] > 1)) & (not recomputes)
    return bools(possible | (d["ep"] == 1))


def tokens_fit_queues(d: PlanColumns) -> BoolArray:
    """Returns where HybridEP's queues between domains can take a rank's tokens."""
    group = group_of(Axis.EP, d.layout, d.cluster.domains[0].ranks)
    tokens = d["micro_batch"] * d.job.seq_len // (d["cp"] * d.layout.tp_if(d.sharding.traits.cuts_tokens))
    return bools((group.inter == 1) | (tokens <= MOST_TOKENS_BETWEEN_DOMAINS))


# ZeRO and the optimizer.


def weight_shards_divide(d: PlanColumns) -> BoolArray:
    """Returns where zero_size divides the ranks that hold the same weights, where wp shards these."""
    copies = d.traits.copies
    if not copies.has_weight_groups:
        return bools(True)
    return bools(d.copies(copies.linear_owner) % d["zero_size"] == 0)


def shards_over_all(d: PlanColumns) -> BoolArray:
    """Returns where ZeRO shards over all ranks or none, or the framework has hybrid sharding. Muon has none: its
    matrices are partitioned over all ranks that hold them (Megatron-LM layer_wise_optimizer.py, dp_cp_params_list), and
    partial sharding is the distributed optimizer's alone (distributed_data_parallel.py: "Partial DistOpt cannot be used
    without DistOpt")."""
    hybrid = d.preset.data_parallel.hybrid_zero and d.job.optimizer != "muon"
    return bools((d["zero_size"] == d.copies(Owner.DENSE)) | (d["zero_size"] == 1) | hybrid)


def shards_parts(d: PlanColumns) -> BoolArray:
    """Returns where no ranks hold the same shard of tp or cp (accelerate, ``parallelism_config.py``, __post_init__: no
    replicas beside tp or cp but of a group that shards)."""
    size = d["zero_size"]
    sharded = (d["zero_stage"] > 0) & ((size > d["cp"]) | (size == d.copies(Owner.DENSE)))
    return bools((d["tp"] * d["cp"] == 1) | sharded)


def parameters_shard(d: PlanColumns) -> BoolArray:
    """Returns where gradients and parameters can be sharded: not where wp shards them already, and in pipeline stages
    only by frameworks that can."""
    stages_can = (d["pp"] == 1) | d.preset.pipeline.shards_weights
    return bools((d["zero_stage"] < 2) | stages_can & (not d.traits.copies.has_weight_groups))


def matrices_stay_whole(d: PlanColumns) -> BoolArray:
    """Returns where Muon has whole matrices: only optimizer state is sharded, matrix by matrix, and on the device
    (layer_wise_optimizer.py); a strategy that shards weights over wp has none."""
    whole = d.traits.copies.linear_owner is not Owner.WEIGHT
    return bools((d["zero_stage"] <= 1) & (d.columns["optimizer_offload"] == 0.0) & whole)


# The host's memory, recomputation and CUDA graphs.

WHOLE_LAYERS = (Recompute.FULL, Recompute.BLOCK)
EXPERT_MODULES = frozenset({"expert_fc1", "moe_act", "fused_group_mlp"})
# Modules that cannot be offloaded where one of these graphs ends inside what they save (transformer_layer.py,
# _set_offload_modules).
GRAPH_ENDS = {"attn_norm": {"attn"}, "mlp_norm": {"attn", "moe_router"}}


def optimizer_offloads(d: PlanColumns) -> BoolArray:
    """Returns where the optimizer can be offloaded. DeepSpeed: where it is sharded, a part of it at stage 3 only
    (zero/offload_config.py, ratio); Megatron-LM: with its distributed optimizer (arguments.py,
    --use-precision-aware-optimizer)."""
    share, kind = d.columns["optimizer_offload"], d.preset.offload.optimizer
    share_fits = (d["zero_stage"] >= 3) | (share == 1.0) | (kind == "step")
    return bools((d["zero_stage"] >= 1) & (kind != "") & share_fits | (share == 0.0))


def layers_offload(d: PlanColumns) -> BoolArray:
    """Returns where layers' activations can be offloaded (Megatron-Core, transformer_config.py, cpu_offloading): no
    pipeline, no recomputation, and one layer stays."""
    layers = d["offloaded_layers"]
    recomputes = d.recompute is not Recompute.NONE or bool(d.recompute_modules)
    possible = d.preset.offload.activations and not recomputes
    return bools((d["pp"] == 1) & possible & (layers < d.model.num_layers) | (layers == 0))


def modules_offload(d: PlanColumns) -> BoolArray:
    """Returns where modules' activations can be offloaded (Megatron-Core, transformer_config.py,
    fine_grained_activation_offloading), and no whole layers are besides."""
    modules, scopes = set(d.offload_modules), d.job.cuda_graphs
    if not modules:
        return bools(True)
    # The output projection goes only with the attention core.
    without_core = "attn_proj" in modules and "core_attn" not in modules
    # Fused experts are offloaded whole or in parts, not both.
    twice = "fused_group_mlp" in modules and len(modules & EXPERT_MODULES) > 1
    recomputed_experts = "moe" in d.recompute_modules and bool(modules & EXPERT_MODULES)
    in_graph = "moe" in scopes or any(name in modules and ends & scopes for name, ends in GRAPH_ENDS.items())
    # Layers that are recomputed whole offload their inputs and nothing else; other layers do not offload their inputs.
    whole = d.recompute in WHOLE_LAYERS
    inputs_only = whole != (modules == {LAYER_INPUT}) or (LAYER_INPUT in modules and not whole)
    excluded = without_core or twice or recomputed_experts or in_graph or inputs_only
    return bools((d["offloaded_layers"] == 0) & (modules <= set(d.preset.offload.modules) and not excluded))


def framework_recomputes(d: PlanColumns) -> bool:
    """Returns whether the framework has the recompute mode."""
    recomputation = d.preset.recomputation
    has = {
        Recompute.SELECTIVE: bool(recomputation.selective),
        Recompute.FULL: recomputation.layers,
        Recompute.BLOCK: recomputation.layers and recomputation.partial,
    }
    return has.get(d.recompute, True)


def modules_recompute(d: PlanColumns) -> bool:
    """Returns whether modules can be recomputed by name: no whole layers besides (Megatron-Core, transformer_config.py:
    granularity "selective" or "full"), no norms and activations under delayed scaling ("Delayed scaling does not
    support moe_act and layernorm recompute"), no shared experts that overlap the exchange
    (moe_shared_expert_overlap)."""
    modules = set(d.recompute_modules)
    excluded = {"moe_act", "layernorm"} if d.job.precision.scaling == "delayed" else set()
    if d.job.overlap_shared_experts:
        excluded.add("shared_experts")
    allowed = set(d.preset.recomputation.modules) - excluded
    return not modules or (modules <= allowed and d.recompute not in WHOLE_LAYERS)


def graphs_capture(d: PlanColumns) -> BoolArray:
    """Returns where CUDA graphs of parts of layers can be captured: no layer is offloaded or recomputed whole, and no
    recomputed module contains what a graph captures."""
    scopes = d.job.cuda_graphs
    recomputes = d.recompute in WHOLE_LAYERS or ("moe" in d.recompute_modules and "moe_router" in scopes)
    return bools((d["offloaded_layers"] == 0) & (not recomputes))


UNCUT = "the same plan as mtp, as nothing is sharded"

RULES: tuple[Rule, ...] = (
    # What the framework supports.
    Rule("the framework does not support this recomputation", "pp", framework_recomputes),
    Rule("the framework cannot recompute these modules, or not together with whole layers", "pp", modules_recompute),
    Rule(
        "CUDA graphs of parts of layers exclude offloaded and fully recomputed layers, and recomputed experts around a graphed router",
        "pp",
        graphs_capture,
        lambda job: bool(job.cuda_graphs) and "full_iteration" not in job.cuda_graphs,
    ),
    Rule(
        "the framework has no pipeline stages", "pp", lambda d: (d["pp"] == 1) | ("pp" in d.preset.tensor_parallel.axes)
    ),
    Rule(
        "the framework has no tensor parallelism",
        "tp",
        # Strategies that exchange tokens for heads leave matrices whole.
        lambda d: (d["tp"] == 1) | ("tp" in d.preset.tensor_parallel.axes) | d.traits.exchanges_heads,
    ),
    Rule(
        "the framework has no expert parallelism",
        "ep",
        lambda d: (d["ep"] == 1) | ("ep" in d.preset.tensor_parallel.axes),
    ),
    Rule(
        "the framework has no context parallelism, or not of this kind",
        "cp",
        lambda d: (
            (d["cp"] == 1)
            | ("cp" in d.preset.tensor_parallel.axes)
            & (d.job.context_parallel in d.preset.tensor_parallel.context_parallel)
        ),
    ),
    Rule("a layer of the model does not support this kind of context parallelism", "cp", mixers_cut_sequences),
    Rule(
        "sparse attention needs whole sequences, and the strategy exchanges tokens for heads",
        "tp",
        mixers_exchange_heads,
    ),
    Rule(
        "the framework does not support this schedule", "pp", lambda d: d.schedule.value in d.preset.pipeline.schedules
    ),
    # Pipeline stages.
    Rule(
        "zero-bubble schedules need reductions and weight gathers that do not overlap a backward",
        "pp",
        lambda d: backward_runs_alone(d.job, d.schedule, d.traits.copies),
    ),
    Rule(
        "PyTorch cannot split a backward that is compiled, has checkpoints or gathers weights",
        "zero_stage",
        autograd_splits,
    ),
    Rule("more pipeline stages than layers", "pp", lambda d: d["pp"] <= d.model.num_layers),
    Rule("the strategy does not run in pipeline stages", "pp", lambda d: (d["pp"] == 1) | d.traits.pipelined),
    # Tensor and sequence parallelism.
    Rule(
        "tp x cp x pp does not divide the world", "tp", lambda d: d.job.world_size % (d["tp"] * d["cp"] * d["pp"]) == 0
    ),
    Rule(
        "heads do not divide by tp",
        "tp",
        lambda d: np.all([heads % d["tp"] == 0 for heads in d.model.cut_heads], axis=0),
    ),
    Rule("kv heads do not divide by tp", "tp", kv_heads_divide),
    Rule("feed-forward width does not divide by tp", "tp", feed_forward_divides),
    Rule(
        "sequence does not divide by tp x cp",
        "tp",
        lambda d: d.job.seq_len % (d.layout.tp_if(d.sharding.traits.cuts_tokens) * d["cp"]) == 0,
    ),
    Rule(
        "experts with tp need sequence parallelism",
        "tp",
        lambda d: (d.layout.tp_if(d.sharding.traits.cuts_tokens) == d["tp"]) | (d.experts == 0),
    ),
    Rule("weight groups do not divide the stage's ranks", "wp", lambda d: (d.job.world_size // d["pp"]) % d["wp"] == 0),
    Rule(UNCUT, "wp", lambda d: (d["tp"] > 1) | (d["wp"] > 1) | d.traits.uncut),
    # Experts.
    Rule("experts do not divide by ep", "ep", lambda d: d.experts % d["ep"] == 0 if d.experts else d["ep"] == 1),
    Rule("ep does not divide the stage's ranks", "ep", lambda d: d.stage_ranks % d["ep"] == 0),
    Rule(
        "ep x etp does not divide the stage's ranks, or there are no experts to shard",
        "ep",
        lambda d: (
            (d.stage_ranks % (d["ep"] * d["etp"]) == 0) & ((d["etp"] == 1) | (d.experts > 0 and d.traits.cuts_experts))
        ),
    ),
    Rule(
        "DeepEP does not support so many expert-parallel ranks",
        "ep",
        lambda d: np.isin(d["ep"] * d["etp"], DEEPEP_RANKS) | (d["ep"] == 1) | (d.job.moe_dispatcher != "deepep"),
    ),
    Rule(CHUNKS_OF_ORDER, "vpp", chunks_fit_order),
    # ZeRO.
    Rule(
        "zero_size does not divide the data-parallel ranks",
        "zero_size",
        lambda d: d.copies(Owner.DENSE) % d["zero_size"] == 0,
    ),
    Rule("zero_size does not divide the weight data-parallel ranks", "zero_size", weight_shards_divide),
    Rule("ZeRO stage and shard count disagree", "zero_size", lambda d: (d["zero_stage"] > 0) == (d["zero_size"] > 1)),
    Rule(
        "the framework does not support this ZeRO stage",
        "zero_stage",
        lambda d: np.isin(d["zero_stage"], d.preset.data_parallel.zero_stages),
    ),
    Rule(
        "the strategy does not support ep at this ZeRO stage",
        "zero_stage",
        lambda d: (d["ep"] == 1) | (d["zero_stage"] <= d.traits.deepest_stage_with_ep),
    ),
    Rule(
        "ZeRO 2 and 3 are not supported in pipeline stages by this framework, nor under isp",
        "zero_stage",
        parameters_shard,
    ),
    # Offload to the host, and Muon.
    Rule("the framework cannot offload this share of the optimizer", "zero_stage", optimizer_offloads),
    Rule(
        "Muon needs whole matrices: ZeRO 1 at most, no optimizer offload, no weights sharded over wp",
        "zero_stage",
        matrices_stay_whole,
        lambda job: job.optimizer == "muon",
    ),
    Rule(
        "the framework cannot offload these modules, or not together with the rest of the plan",
        "offloaded_layers",
        modules_offload,
    ),
    Rule("the framework cannot offload the activations of these layers", "pp", layers_offload),
    Rule("the framework shards over all data-parallel ranks or none", "zero_size", shards_over_all),
    Rule(
        "the framework shards what tp and cp leave on a rank over other ranks as well",
        "zero_size",
        shards_parts,
        lambda job: not job.preset.data_parallel.replicates_shards,
    ),
    Rule(
        "cp does not divide the ranks of a ZeRO group",
        "zero_size",
        lambda d: d["zero_size"] % d["cp"] == 0,
        lambda job: job.preset.data_parallel.shards_over_cp,
    ),
    Rule(
        "ep does not divide the ranks of tp and of a ZeRO group",
        "zero_size",
        lambda d: d["zero_size"] * d["tp"] % d["ep"] == 0,
        lambda job: job.preset.data_parallel.shards_around_ep,
    ),
    # Micro-batches and chunks.
    Rule(
        "global batch does not divide by dp x micro_batch",
        "micro_batch",
        lambda d: d.job.global_batch_sequences % (d.dp * d["micro_batch"]) == 0,
    ),
    Rule(
        "the framework needs as many micro-batches as stages",
        "micro_batch",
        lambda d: (d.num_micro >= d["pp"]) | (not d.preset.pipeline.fills_pipeline),
    ),
    Rule(UNEVEN_CHUNKS, "vpp", chunks_interleave),
    Rule(TWO_CHUNKS, "vpp", two_chunks_fit),
    Rule(
        "overlap_expert_a2a needs virtual chunks where there are stages, and no recomputed experts or layers",
        "vpp",
        exchange_overlaps,
        lambda job: job.overlap_expert_a2a,
    ),
    Rule(
        f"HybridEP sends at most {MOST_TOKENS_BETWEEN_DOMAINS:,} tokens a rank between domains",
        "micro_batch",
        tokens_fit_queues,
        lambda job: job.moe_dispatcher == "hybridep",
    ),
    Rule(
        "more high-precision layers at one end than a stage has layers",
        "pp",
        high_precision_layers_fit_stage,
        lambda job: job.precision.high_precision_first_layers + job.precision.high_precision_last_layers > 0,
    ),
    Rule(EQUAL_INSTEAD, "vpp", chunks_worth_searching),
)
