"""The rules that a plan must satisfy, as one table: a reason, the column after which it can be asked, and one line of
arithmetic.

Every rejected plan is counted under the first rule it breaks. ``keep`` is true where a plan may stay: an array of a
truth value a plan, or one for all of them.
"""

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
    """``keep`` is true where a plan may stay; ``after`` names the last column it needs."""

    reason: str
    after: str
    keep: Callable[[PlanColumns], Any]

    def keeps(self, draft: PlanColumns) -> BoolArray:
        """Returns for every plan whether it may stay."""
        rows = len(next(iter(draft.columns.values())))
        return np.broadcast_to(bools(self.keep(draft)), (rows,))


# Tensor and context parallelism.


def kv_heads_divide(d: PlanColumns) -> BoolArray:
    """Key and value heads are cut over tp, or shared by as many ranks each where framework or strategy repeats them."""
    tp = d["tp"]
    repeats = d.preset.tensor_parallel.kv_replication or d.traits.repeats_kv_heads
    kept = [(kv % tp == 0) | (tp % kv == 0) & (tp > kv) & repeats for kv in d.model.repeatable_heads]
    return bools(np.all(kept, axis=0))


def feed_forward_divides(d: PlanColumns) -> BoolArray:
    """The width of every feed-forward network is cut over the ranks that share weights."""
    shards = d.sharding.weight_shards(d.layout)
    widths = [run.block.mlp.ffn_hidden for run in d.model.blocks if run.block.mlp is not None]
    return bools(np.all([width % shards == 0 for width in widths], axis=0))


def mixers_cut_sequences(d: PlanColumns) -> bool:
    """The core of every layer can cut sequences in the job's way (ring or all-to-all)."""
    return all(MIXERS[type(mixer)].cuts_sequences(mixer, d.job.context_parallel) for mixer in d.model.mixers)


# Schedules, stages and their chunks.

UNEVEN_CHUNKS = "virtual chunks need a framework that has them, whole layers each, and rounds of pp micro-batches"
CHUNKS_OF_ORDER = (
    "schedules but 1f1b want several stages, looped-bfs and zb-interleaved of several chunks and others of one"
)
TWO_CHUNKS = (
    "zb-v and DualPipe want an even number of virtual stages, two each, and DualPipe twice as many micro-batches"
)
WITHOUT_ORDER = frozenset({CHUNKS_OF_ORDER, TWO_CHUNKS})
"""Rules without which a schedule has no order of work, and so no time."""
EQUAL_INSTEAD = "these stages have equal chunks, which are tried instead"

# Assumption: more chunks of a stage are never worth their messages; they can be typed as a plan.
MOST_CHUNKS = 8
UNEQUAL = (2, 4, 8)
# Assumption: of unequal chunks the longest is no more than so much longer than the mean, or they are not worth trying.
LONGEST_OVER_MEAN = 1.25


def backward_runs_alone(job: JobSpec, schedule: Schedule, copies: WeightCopies) -> bool:
    """Returns whether nothing is reduced or gathered beside a backward whose weight gradients come later, or none does
    (zero-bubble's megatron/core/zbpp_utils.py refuses overlap-grad-reduce; InternEvo's WeightGradStore, in
    core/scheduler/pipeline_scheduler_zb.py, waits for what it reduces; PyTorch's stages reduce once, behind all)."""
    if schedule.traits.pairs or not schedule.splits_backward or job.preset.pipeline.keeps_gathered:
        return True
    sync = job.preset.data_parallel
    return not (sync.overlap_grad_reduce or (copies.has_weight_groups and sync.overlap_weights))


def splits_no_compiled(job: JobSpec, schedule: Schedule) -> bool:
    """Returns whether no compiled backward would have to be split (torch/distributed/pipelining/schedules.py,
    _check_torch_compile_compatibility), or none is."""
    return schedule.traits.pairs or not schedule.splits_backward or job.preset.host.code != "compiled"


def autograd_splits(d: PlanColumns) -> BoolArray:
    """Compiled backwards are not split, nor are there checkpoints or shards where autograd splits them: each product's
    weight gradient is a graph task of its own, in which a checkpoint runs again
    (torch/distributed/pipelining/_backward.py, stage_backward_weight; torch/utils/checkpoint.py, is_recomputed by
    task), and FSDP2 is left without some gradients (PyTorch 2.13, tried on two stages of two shards)."""
    by_autograd = d.schedule.splits_backward and d.preset.pipeline.keeps_gathered
    runs = not by_autograd or ((d["zero_stage"] < 2) & (d.recompute is Recompute.NONE))
    return bools(runs & np.bool_(splits_no_compiled(d.job, d.schedule)))


def chunks_fit_order(d: PlanColumns) -> BoolArray:
    """Schedules but 1F1B are for several stages, each of as many chunks as its orders are written for (arXiv 2401.10241
    sec. 2, zero bubbles of one chunk; solver.plans.schedules); of schedules that turn TWO_CHUNKS says it."""
    least, most = d.schedule.traits.chunks
    several = (d["pp"] > 1) | (d.schedule is Schedule.ONE_F_ONE_B)
    return bools((not d.schedule.placement.looped) | several & (d["vpp"] >= least) & (d["vpp"] <= most))


def two_chunks_fit(d: PlanColumns) -> BoolArray:
    """Returns what deepseek-ai/DualPipe asserts (dualpipe.py and dualpipev.py, ``step``): an even number of virtual
    stages, two on each, and twice as many micro-batches or more, which halve where they enter at both ends.
    Of ZB-V the two alone."""
    placement = d.schedule.placement
    stages = d["pp"] * d["vpp"]
    two = (d["pp"] > 1) & (placement.chunks(1) * d["vpp"] == 2) & (stages % 2 == 0)
    enough = (d.num_micro >= d.schedule.traits.micros_per_stage * d["pp"]) & (d.num_micro % placement.directions == 0)
    return bools(placement.looped | two & (stages <= d.model.num_layers + 2) & enough)


def divide_equally(d: PlanColumns, chunks: IntArray) -> BoolArray:
    """Megatron-LM's conditions for equal chunks (arguments.py): layers divide over them, with the loss, or embedding
    and loss, counted as a layer each where the preset can (--account-for-embedding-in-pipeline-split,
    --account-for-loss-in-pipeline-split)."""
    ends = (0, 1, 2) if d.preset.pipeline.uneven_chunks else (0,)
    return bools(np.any([(d.model.num_layers + counted) % chunks == 0 for counted in ends], axis=0))


def chunks_interleave(d: PlanColumns) -> BoolArray:
    """Interleaving wants rounds of pp micro-batches, and equal chunks or, written out as a layout, a layer or an
    end of the model on each of them."""
    pipeline, number = d.preset.pipeline, d["pp"] * d["vpp"]
    if not d.schedule.placement.looped:
        return bools(True)
    by_layout = (pipeline.uneven_chunks == "layout") & (number <= d.model.num_layers + 2)
    rounds = d.num_micro % d["pp"] == 0
    possible = (d["pp"] > 1) & (divide_equally(d, number) | by_layout) & rounds
    return bools((d["vpp"] == 1) | possible & pipeline.interleaves)


def chunks_are_tried(d: PlanColumns) -> BoolArray:
    """Assumption: of stages that have equal chunks, those beat unequal ones, and where there are none powers of two
    are enough."""
    pp, vpp = d["pp"], d["vpp"]
    if not d.schedule.placement.looped:
        return bools(True)
    equal = np.any([divide_equally(d, pp * number) for number in range(2, MOST_CHUNKS + 1)], axis=0)
    near = nearly_equal(d.model.num_layers, pp * vpp) & np.isin(vpp, UNEQUAL)
    return bools((vpp == 1) | divide_equally(d, pp * vpp) | (~equal & near))


def nearly_equal(layers: int, chunks: IntArray) -> BoolArray:
    """Returns whether so many layers make chunks that are worth trying though they do not divide."""
    return bools(-(-layers // chunks) * chunks <= LONGEST_OVER_MEAN * layers)


def wide_layers_fit_stage(d: PlanColumns) -> BoolArray:
    """Layers of high precision are no more than one stage's (Megatron-LM d98e8a6 ``transformer_config.py``,
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


def exchange_has_company(d: PlanColumns) -> BoolArray:
    """Returns where the exchange runs beside another micro-batch: virtual chunks if there are stages, no layer run
    again whole, nor its experts (Megatron-LM d98e8a6 ``transformer_config.py``, __post_init__,
    overlap_moe_expert_parallel_comm)."""
    again = d.recompute in WHOLE_LAYERS or "moe" in d.recompute_modules
    runs = ((d["pp"] == 1) | (d["vpp"] > 1)) & (not again)
    return bools(runs | (d["ep"] == 1) | (not d.job.overlap_expert_a2a))


def tokens_fit_queues(d: PlanColumns) -> BoolArray:
    """HybridEP over several domains: no more tokens a rank than its queues take."""
    if d.job.moe_dispatcher != "hybridep":
        return bools(True)
    group = group_of(Axis.EP, d.layout, d.cluster.domains[0].ranks)
    tokens = d["micro_batch"] * d.job.seq_len // (d["cp"] * d.sharding.norm_shards(d.layout))
    return bools((group.inter == 1) | (tokens <= MOST_TOKENS_BETWEEN_DOMAINS))


# ZeRO and the optimizer.


def weight_shards_divide(d: PlanColumns) -> BoolArray:
    """Shards divide the ranks that hold the same weights, where wp cuts these."""
    copies = d.traits.copies
    if not copies.has_weight_groups:
        return bools(True)
    return bools(d.copies(copies.linear_owner) % d["zero_size"] == 0)


def shards_over_all(d: PlanColumns) -> BoolArray:
    """Muon's matrices are dealt over all ranks that hold them (Megatron-LM layer_wise_optimizer.py,
    dp_cp_params_list), and parts of them are the distributed optimizer's alone (distributed_data_parallel.py:
    "Partial DistOpt cannot be used without DistOpt")."""
    partly = d.preset.data_parallel.hybrid_zero and d.job.optimizer != "muon"
    return bools((d["zero_size"] == d.copies(Owner.DENSE)) | (d["zero_size"] == 1) | partly)


def parameters_shard(d: PlanColumns) -> BoolArray:
    """Gradients and parameters are cut where wp does not already, and in pipeline stages only by frameworks
    that can."""
    staged = (d["pp"] == 1) | d.preset.pipeline.shards_weights
    return bools((d["zero_stage"] < 2) | staged & (not d.traits.copies.has_weight_groups))


def matrices_stay_whole(d: PlanColumns) -> BoolArray:
    """Muon wants whole matrices: only optimizer state is cut, by matrices, and it stays on the device
    (layer_wise_optimizer.py); a strategy that cuts weights over wp has none."""
    uncut = d.traits.copies.linear_owner is not Owner.WEIGHT
    runs = (d["zero_stage"] <= 1) & (d.columns["optimizer_offload"] == 0.0) & uncut
    return bools(runs | (d.job.optimizer != "muon"))


# The host's memory, recomputation and CUDA graphs.

WHOLE_LAYERS = (Recompute.FULL, Recompute.BLOCK)
EXPERT_MODULES = frozenset({"expert_fc1", "moe_act", "fused_group_mlp"})
# Where a graph ends inside what they save (transformer_layer.py, _set_offload_modules).
GRAPH_ENDS = {"attn_norm": {"attn"}, "mlp_norm": {"attn", "moe_router"}}


def optimizer_offloads(d: PlanColumns) -> BoolArray:
    """DeepSpeed: sharded, a part of it at stage 3 only (zero/offload_config.py, ratio); Megatron-LM: with its
    distributed optimizer (arguments.py, --use-precision-aware-optimizer)."""
    share, kind = d.columns["optimizer_offload"], d.preset.offload.optimizer
    parted = (d["zero_stage"] >= 3) | (share == 1.0) | (kind == "step")
    return bools((d["zero_stage"] >= 1) & (kind != "") & parted | (share == 0.0))


def layers_offload(d: PlanColumns) -> BoolArray:
    """Megatron-Core, transformer_config.py, where cpu_offloading: no pipeline, no recomputation, one layer stays."""
    layers = d["offloaded_layers"]
    recomputes = d.recompute is not Recompute.NONE or bool(d.recompute_modules)
    runs = d.preset.offload.activations and not recomputes
    return bools((d["pp"] == 1) & runs & (layers < d.model.num_layers) | (layers == 0))


def modules_offload(d: PlanColumns) -> BoolArray:
    """Megatron-Core, transformer_config.py, where fine_grained_activation_offloading: beside no layer on the host or
    run again whole, the projection with the core alone, all of fused experts or parts of them, none inside experts
    that run again, no norm where a graph ends and none beside graphs of experts. Layers' inputs leave where layers run
    again whole, and nothing else does then."""
    modules, scopes = set(d.offload_modules), d.job.cuda_graphs
    if not modules:
        return bools(True)
    kept_whole = "attn_proj" in modules and "core_attn" not in modules
    twice = "fused_group_mlp" in modules and len(modules & EXPERT_MODULES) > 1
    again = "moe" in d.recompute_modules and bool(modules & EXPERT_MODULES)
    cut = "moe" in scopes or any(name in modules and ends & scopes for name, ends in GRAPH_ENDS.items())
    whole = d.recompute in WHOLE_LAYERS
    odd = whole != (modules == {LAYER_INPUT}) or (LAYER_INPUT in modules and not whole)
    runs = modules <= set(d.preset.offload.modules) and not (kept_whole or twice or again or cut or odd)
    return bools((d["offloaded_layers"] == 0) & runs)


def framework_recomputes(d: PlanColumns) -> bool:
    """The framework has the kind of recomputation."""
    recomputation = d.preset.recomputation
    runs = {
        Recompute.SELECTIVE: bool(recomputation.selective),
        Recompute.FULL: recomputation.layers,
        Recompute.BLOCK: recomputation.layers and recomputation.partial,
    }
    return runs.get(d.recompute, True)


def modules_recompute(d: PlanColumns) -> bool:
    """Parts by name run again beside no whole layer (Megatron-Core, transformer_config.py: granularity
    "selective" or "full"), norms and activations not where scales come from earlier steps ("Delayed scaling
    does not support moe_act and layernorm recompute"), shared experts not where the exchange runs beside them
    (moe_shared_expert_overlap)."""
    modules = set(d.recompute_modules)
    refused = {"moe_act", "layernorm"} if d.job.precision.scaling == "delayed" else set()
    if d.job.overlap_shared_experts:
        refused.add("shared_experts")
    allowed = set(d.preset.recomputation.modules) - refused
    return not modules or (modules <= allowed and d.recompute not in WHOLE_LAYERS)


def graphs_capture(d: PlanColumns) -> BoolArray:
    """Beside CUDA graphs of parts of layers no layer is on the host, none runs again whole, and no part around what a
    graph captures."""
    scopes = d.job.cuda_graphs
    of_parts = bool(scopes) and "full_iteration" not in scopes
    again = d.recompute in WHOLE_LAYERS or ("moe" in d.recompute_modules and "moe_router" in scopes)
    return bools((d["offloaded_layers"] == 0) & (not again) | (not of_parts))


UNCUT = "the same plan as mtp when nothing is cut"

RULES: tuple[Rule, ...] = (
    # What the framework has.
    Rule("the framework has no such recomputation", "pp", framework_recomputes),
    Rule(
        "the framework does not run these parts of layers again, or not beside whole layers",
        "pp",
        modules_recompute,
    ),
    Rule(
        "CUDA graphs of parts of layers: no layer on the host or run again whole, no experts run again around their router's",
        "pp",
        graphs_capture,
    ),
    Rule(
        "the framework has no pipeline stages",
        "pp",
        lambda d: (d["pp"] == 1) | ("pp" in d.preset.tensor_parallel.axes),
    ),
    Rule(
        "the framework does not cut layers over tp",
        "tp",
        # Strategies that exchange tokens for heads leave matrices whole.
        lambda d: (d["tp"] == 1) | ("tp" in d.preset.tensor_parallel.axes) | d.traits.exchanges_heads,
    ),
    Rule(
        "the framework keeps all experts on every rank",
        "ep",
        lambda d: (d["ep"] == 1) | ("ep" in d.preset.tensor_parallel.axes),
    ),
    Rule(
        "the framework does not cut sequences over cp",
        "cp",
        lambda d: (d["cp"] == 1) | ("cp" in d.preset.tensor_parallel.axes),
    ),
    Rule(
        "a layer of the model cannot cut sequences over cp so",
        "cp",
        lambda d: (d["cp"] == 1) | mixers_cut_sequences(d),
    ),
    Rule(
        "the framework has no such schedule",
        "pp",
        lambda d: d.schedule.value in d.preset.pipeline.schedules,
    ),
    # Pipeline stages.
    Rule(
        "zero-bubble schedules reduce and gather nothing beside a backward",
        "pp",
        lambda d: backward_runs_alone(d.job, d.schedule, d.traits.copies),
    ),
    Rule(
        "PyTorch splits no backward that is compiled, has checkpoints or gathers its weights",
        "zero_stage",
        autograd_splits,
    ),
    Rule("more pipeline stages than layers", "pp", lambda d: d["pp"] <= d.model.num_layers),
    Rule("the strategy does not run in pipeline stages", "pp", lambda d: (d["pp"] == 1) | d.traits.pipelined),
    # Tensor and sequence parallelism.
    Rule(
        "tp x cp x pp does not divide the world",
        "tp",
        lambda d: d.job.world_size % (d["tp"] * d["cp"] * d["pp"]) == 0,
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
        lambda d: d.job.seq_len % (d.sharding.norm_shards(d.layout) * d["cp"]) == 0,
    ),
    Rule(
        "experts with tp need sequence parallelism",
        "tp",
        lambda d: (d.sharding.norm_shards(d.layout) == d["tp"]) | (d.experts == 0),
    ),
    Rule(
        "weight groups do not divide the stage's ranks",
        "wp",
        lambda d: (d.job.world_size // d["pp"]) % d["wp"] == 0,
    ),
    Rule(UNCUT, "wp", lambda d: (d["tp"] > 1) | (d["wp"] > 1) | d.traits.uncut),
    # Experts.
    Rule(
        "experts do not divide by ep",
        "ep",
        lambda d: d.experts % d["ep"] == 0 if d.experts else d["ep"] == 1,
    ),
    Rule("ep does not divide the stage's ranks", "ep", lambda d: d.stage_ranks % d["ep"] == 0),
    Rule(
        "ep x etp does not divide the stage's ranks, or nothing to cut",
        "ep",
        lambda d: (
            (d.stage_ranks % (d["ep"] * d["etp"]) == 0) & ((d["etp"] == 1) | (d.experts > 0 and d.traits.cuts_experts))
        ),
    ),
    Rule(
        "DeepEP has no settings for so many ranks of experts",
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
    Rule(
        "ZeRO stage and shard count disagree",
        "zero_size",
        lambda d: (d["zero_stage"] > 0) == (d["zero_size"] > 1),
    ),
    Rule(
        "the framework has no such ZeRO stage",
        "zero_stage",
        lambda d: np.isin(d["zero_stage"], d.preset.data_parallel.zero_stages),
    ),
    Rule(
        "the strategy has no experts over ep at this ZeRO stage",
        "zero_stage",
        lambda d: (d["ep"] == 1) | (d["zero_stage"] <= d.traits.deepest_stage_with_ep),
    ),
    Rule(
        "the framework shards no gradients or parameters in pipeline stages, or under isp",
        "zero_stage",
        parameters_shard,
    ),
    # The host's memory, and Muon.
    Rule("the framework cannot run so much of this optimizer on the host", "zero_stage", optimizer_offloads),
    Rule(
        "Muon takes whole matrices: state sharded at most, on the device, weights not over wp",
        "zero_stage",
        matrices_stay_whole,
    ),
    Rule(
        "the framework cannot keep these parts of layers on the host, or not beside the rest",
        "offloaded_layers",
        modules_offload,
    ),
    Rule("the framework cannot keep these layers' activations on the host", "pp", layers_offload),
    Rule("the framework shards over all data-parallel ranks only", "zero_size", shards_over_all),
    # Micro-batches and chunks.
    Rule(
        "global batch does not divide by dp x micro_batch",
        "micro_batch",
        lambda d: d.job.global_batch_sequences % (d.dp * d["micro_batch"]) == 0,
    ),
    Rule(
        "the framework wants as many micro-batches as stages",
        "micro_batch",
        lambda d: (d.num_micro >= d["pp"]) | (not d.preset.pipeline.fills_pipeline),
    ),
    Rule(UNEVEN_CHUNKS, "vpp", chunks_interleave),
    Rule(TWO_CHUNKS, "vpp", two_chunks_fit),
    Rule(
        "beside another micro-batch the experts' exchange wants virtual chunks, and no experts or layers run again",
        "vpp",
        exchange_has_company,
    ),
    Rule(
        f"HybridEP sends at most {MOST_TOKENS_BETWEEN_DOMAINS:,} tokens a rank between domains",
        "micro_batch",
        tokens_fit_queues,
    ),
    Rule("more layers of 16 bits than a stage has", "pp", wide_layers_fit_stage),
    Rule(EQUAL_INSTEAD, "vpp", chunks_are_tried),
)
