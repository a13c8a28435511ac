"""What a plan must satisfy, as a table: one reason, one line of arithmetic.

Every rejected plan is counted under the first rule it breaks.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from ops.adapters import ADAPTED
from ops.block import model_ops
from ops.context import WeightCopies
from ops.data_parallel.offload import LAYER_INPUT
from ops.layout import Layout, group_of
from ops.mixers.registry import MIXERS
from ops.op import Axis, Owner
from ops.recompute import Recompute
from ops.roles import OpKey, Role
from solver.plans.draft import Draft
from solver.plans.schedules import Schedule
from spec.arrays import BoolArray, IntArray, bools
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``keep`` is true where a plan may stay; ``after`` names the last column it needs."""

    reason: str
    after: str
    keep: Callable[[Draft], BoolArray]


def _always(draft: Draft, value: bool) -> BoolArray:
    return np.full(len(next(iter(draft.columns.values()))), value, dtype=np.bool_)


def _sequence(draft: Draft) -> BoolArray:
    pieces = draft.sharding.norm_shards(draft.layout) * draft["cp"]
    return bools(draft.job.seq_len % pieces == 0)


def _layers_cut(draft: Draft) -> BoolArray:
    """Strategies that exchange tokens for heads leave matrices whole."""
    cuts = "tp" in draft.job.preset.tensor_parallel.axes or draft.sharding.traits.exchanges_heads
    return bools((draft["tp"] == 1) | cuts)


def _heads(draft: Draft) -> BoolArray:
    keep = _always(draft, True)
    for heads in draft.model.cut_heads:
        keep &= heads % draft["tp"] == 0
    return keep


def _kv_heads(draft: Draft) -> BoolArray:
    keep = _always(draft, True)
    for kv in draft.model.repeatable_heads:
        shared = (draft["tp"] % kv == 0) & (draft["tp"] > kv)
        repeats = draft.job.preset.tensor_parallel.kv_replication or draft.sharding.traits.repeats_kv_heads
        keep &= (kv % draft["tp"] == 0) | (shared & repeats)
    return keep


def _sequences_cut(draft: Draft) -> BoolArray:
    """Where cp cuts sequences, every layer's core works in the job's way (ring or all-to-all)."""
    way = draft.job.context_parallel
    cut = all(MIXERS[type(mixer)].cuts_sequences(mixer, way) for mixer in draft.model.mixers)
    return bools((draft["cp"] == 1) | cut)


def _ffn(draft: Draft) -> BoolArray:
    keep = _always(draft, True)
    shards = draft.sharding.weight_shards(draft.layout)
    for run in draft.model.blocks:
        if run.block.mlp is not None:
            keep &= run.block.mlp.ffn_hidden % shards == 0
    return keep


def _distinct(draft: Draft) -> BoolArray:
    return bools((draft["tp"] > 1) | (draft["wp"] > 1) | draft.sharding.traits.uncut)


UNEVEN_CHUNKS = (
    "virtual chunks need a framework that has them, whole layers each, and rounds of pp micro-batches"
)
WHOLE_BACKWARDS = "PyTorch splits no backward that is compiled, has checkpoints or gathers its weights"
CHUNKS_OF_ORDER = "schedules but 1f1b want several stages, looped-bfs and zb-interleaved of several chunks and others of one"
TWO_CHUNKS = "zb-v and DualPipe want an even number of virtual stages, two each, and DualPipe twice as many micro-batches"
WITHOUT_ORDER = frozenset({CHUNKS_OF_ORDER, TWO_CHUNKS})
"""Rules without which a schedule has no order of work, and so no time."""

EQUAL_INSTEAD = "these stages have equal chunks, which are tried instead"

UNCUT = "the same plan as mtp when nothing is cut"


# Assumption: more chunks of a stage are never worth their hops; they can be typed as a plan.
MOST_CHUNKS = 8
UNEQUAL = (2, 4, 8)
# Assumption: of unequal chunks the longest is no more than so much longer than the mean, or they are not worth trying.
LONGEST_OVER_MEAN = 1.25


def ordered(draft: Draft) -> BoolArray:
    """Schedules but 1F1B are for several stages, each of as many chunks as its orders are written for (arXiv 2401.10241
    sec. 2, zero bubbles of one chunk; solver.plans.schedules)."""
    least, most = draft.schedule.traits.chunks
    several = (draft["pp"] > 1) | (draft.schedule is Schedule.ONE_F_ONE_B)
    # Of schedules that turn, TWO_CHUNKS says it.
    return bools(
        (not draft.schedule.placement.looped) | (several & (draft["vpp"] >= least) & (draft["vpp"] <= most))
    )


def split_backward_alone(draft: Draft) -> BoolArray:
    """``runs_alone`` of a draft."""
    runs = runs_alone(draft.job, draft.schedule, draft.sharding.traits.copies)
    return bools(np.full(len(draft["pp"]), runs))


def runs_alone(job: JobSpec, schedule: Schedule, copies: WeightCopies) -> bool:
    """Whether nothing is reduced or gathered beside a backward whose weight gradients come later, or none does
    (zero-bubble's megatron/core/zbpp_utils.py refuses overlap-grad-reduce; InternEvo's WeightGradStore, in
    core/scheduler/pipeline_scheduler_zb.py, waits for what it reduces; PyTorch's stages reduce once, behind all)."""
    if schedule.traits.pairs or not schedule.splits_backward or job.preset.pipeline.keeps_gathered:
        return True
    sync = job.preset.data_parallel
    return not (sync.overlap_grad_reduce or (copies.has_weight_groups and sync.overlap_weights))


def split_by_autograd(draft: Draft) -> BoolArray:
    """``splits_compiled`` of a draft, and neither checkpoints nor shards where autograd splits the backward:
    each product's weight gradient is a graph task of its own, in which a checkpoint runs again
    (torch/distributed/pipelining/_backward.py, stage_backward_weight; torch/utils/checkpoint.py,
    is_recomputed by task), and FSDP2 is left without some gradients (PyTorch 2.13, tried on two stages of two
    shards)."""
    if not (draft.schedule.splits_backward and draft.job.preset.pipeline.keeps_gathered):
        return bools(np.full(len(draft["pp"]), splits_compiled(draft.job, draft.schedule)))
    runs = splits_compiled(draft.job, draft.schedule) and draft.recompute is Recompute.NONE
    return bools(runs & (draft["zero_stage"] < 2))


def splits_compiled(job: JobSpec, schedule: Schedule) -> bool:
    """Whether no compiled backward would have to be split (torch/distributed/pipelining/schedules.py,
    _check_torch_compile_compatibility), or none is."""
    return schedule.traits.pairs or not schedule.splits_backward or job.preset.host.code != "compiled"


def wide_layers_at_ends(draft: Draft) -> BoolArray:
    """Layers that narrow nothing are no more than one stage's (Megatron-LM d98e8a6 ``transformer_config.py``,
    num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16: at most num_layers // pipeline_model_parallel_size)."""
    precision = draft.job.precision
    most = max(precision.wide_first_layers, precision.wide_last_layers)
    return bools(most <= draft.model.num_layers // draft["pp"])


def turning(draft: Draft) -> BoolArray:
    """What deepseek-ai/DualPipe asserts (dualpipe.py and dualpipev.py, ``step``): an even number of virtual
    stages, two on each, and twice as many micro-batches or more, which halve where they enter at both ends.
    Of ZB-V the two alone."""
    placement = draft.schedule.placement
    if placement.looped:
        return bools(np.full(len(draft["pp"]), True))
    num_micro = draft.sequences_per_rank // draft["micro_batch"]
    stages = draft["pp"] * draft["vpp"]
    least = draft.schedule.traits.micros_per_stage
    two = (draft["pp"] > 1) & (placement.chunks(1) * draft["vpp"] == 2) & (stages % 2 == 0)
    laid = stages <= draft.model.num_layers + 2
    return bools(two & laid & (num_micro >= least * draft["pp"]) & (num_micro % placement.directions == 0))


def _even(draft: Draft, chunks: IntArray) -> BoolArray:
    """Megatron-LM's conditions for equal chunks (arguments.py): layers divide over them, with the loss, or embedding
    and loss, counted as a layer each where the preset can (--account-for-embedding-in-pipeline-split,
    --account-for-loss-in-pipeline-split)."""
    ends = (0, 1, 2) if draft.job.preset.pipeline.uneven_chunks else (0,)
    return bools(np.any([(draft.model.num_layers + counted) % chunks == 0 for counted in ends], axis=0))


def chunks(draft: Draft) -> BoolArray:
    """Interleaving wants rounds of pp micro-batches, and equal chunks or, written out as a layout, a layer or an
    end of the model on each of them."""
    num_micro = draft.sequences_per_rank // draft["micro_batch"]
    number = draft["pp"] * draft["vpp"]
    pipeline = draft.job.preset.pipeline
    if not draft.schedule.placement.looped:
        return bools(np.full(len(number), True))
    laid = (pipeline.uneven_chunks == "layout") & (number <= draft.model.num_layers + 2)
    possible = (draft["pp"] > 1) & (_even(draft, number) | laid) & (num_micro % draft["pp"] == 0)
    return bools((draft["vpp"] == 1) | (possible & pipeline.interleaves))


def equal_instead(draft: Draft) -> BoolArray:
    """Assumption: of stages that have equal chunks, those beat unequal ones, and where there are none powers of two
    are enough."""
    pp, vpp = draft["pp"], draft["vpp"]
    if not draft.schedule.placement.looped:
        return bools(np.full(len(pp), True))
    equal = np.any([_even(draft, pp * number) for number in range(2, MOST_CHUNKS + 1)], axis=0)
    near = nearly_equal(draft.model.num_layers, pp * vpp) & np.isin(vpp, UNEQUAL)
    return bools((vpp == 1) | _even(draft, pp * vpp) | (~equal & near))


def nearly_equal(layers: int, chunks: IntArray) -> BoolArray:
    """Whether so many layers make chunks that are worth trying though they do not divide."""
    return bools(-(-layers // chunks) * chunks <= LONGEST_OVER_MEAN * layers)


def weight_shards(draft: Draft) -> BoolArray:
    """Shards divide the ranks that hold the same weights, where wp cuts these."""
    copies = draft.sharding.traits.copies
    if not copies.has_weight_groups:
        return np.ones(len(draft["tp"]), dtype=np.bool_)
    return bools(draft.copies(copies.linear_owner) % draft["zero_size"] == 0)


def experts_beside_shards(draft: Draft) -> BoolArray:
    """The strategy has experts over ep at this stage."""
    deepest = draft.sharding.traits.deepest_stage_with_ep
    return bools((draft["ep"] == 1) | (draft["zero_stage"] <= deepest))


def hybrid(draft: Draft) -> BoolArray:
    """Muon's matrices are dealt over all ranks that hold them (Megatron-LM layer_wise_optimizer.py,
    dp_cp_params_list), and parts of them are the distributed optimizer's alone (distributed_data_parallel.py:
    "Partial DistOpt cannot be used without DistOpt")."""
    whole = draft["zero_size"] == draft.copies(Owner.DENSE)
    partly = draft.job.preset.data_parallel.hybrid_zero and draft.job.optimizer != "muon"
    return bools(whole | (draft["zero_size"] == 1) | partly)


def stage_has_shards(draft: Draft) -> BoolArray:
    """A stage cuts something, and what is cut has a stage."""
    return bools((draft["zero_stage"] > 0) == (draft["zero_size"] > 1))


def stage_accepted(draft: Draft) -> BoolArray:
    """The framework has the stage."""
    return bools(np.isin(draft["zero_stage"], draft.job.preset.data_parallel.zero_stages))


def parameters_shardable(draft: Draft) -> BoolArray:
    """Gradients and parameters are cut where wp does not already, and in pipeline stages only by frameworks
    that can.
    """
    cut_already = draft.sharding.traits.copies.has_weight_groups
    staged = (draft["pp"] == 1) | draft.job.preset.pipeline.shards_weights
    return bools((draft["zero_stage"] < 2) | (staged & (not cut_already)))


def matrices_whole(draft: Draft) -> BoolArray:
    """Muon wants whole matrices: only optimizer state is cut, by matrices, and it stays on the device
    (layer_wise_optimizer.py); a strategy that cuts weights over wp has none."""
    if draft.job.optimizer != "muon":
        return np.ones(len(draft["tp"]), dtype=np.bool_)
    uncut = draft.sharding.traits.copies.linear_owner is not Owner.WEIGHT
    return bools((draft["zero_stage"] <= 1) & (draft.columns["optimizer_offload"] == 0.0) & uncut)


def experts_cut(draft: Draft) -> BoolArray:
    """Each rank has as many experts; a model without has none to spread."""
    if not draft.experts:
        return bools(draft["ep"] == 1)
    return bools(draft.experts % draft["ep"] == 0)


def experts_placed(draft: Draft) -> BoolArray:
    """The ranks of a stage are whole groups of experts."""
    return bools((draft["tp"] * draft["cp"] * draft.dp) % draft["ep"] == 0)


def moe_tokens(draft: Draft) -> BoolArray:
    """Tensor ranks hold each their part of the sequence, where there are experts."""
    cut = draft.sharding.norm_shards(draft.layout) == draft["tp"]
    return bools(cut | (draft.experts == 0))


def experts_folded(draft: Draft) -> BoolArray:
    """Groups of experts that are cut over etp, too; only experts can be, and not in every strategy."""
    etp = draft["etp"]
    ranks = draft["tp"] * draft["cp"] * draft.dp
    cut = draft.experts > 0 and draft.sharding.traits.cuts_experts
    return bools((ranks % (draft["ep"] * etp) == 0) & ((etp == 1) | cut))


# HybridEP's queue pairs take less than 65,536 requests, a dispatch 3 a token and one (DeepEP, branch hybrid-ep,
# csrc/hybrid_ep/config.cuh, hybrid_ep_token_capacity_is_valid).
MOST_TOKENS_BETWEEN_DOMAINS = (65536 - 1 - 1) // 3

# DeepEP's groups: deep_ep/buffers/legacy.py (dd758ca), get_dispatch_config and get_combine_config,
# "Unsupported number of EP ranks", which Megatron-LM's fused_a2a.py, get_buffer, asks.
DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)


def beside_another_micro_batch(draft: Draft) -> BoolArray:
    """Where the exchange runs beside another micro-batch: virtual chunks if there are stages, no layer run
    again whole, nor its experts (Megatron-LM d98e8a6 ``transformer_config.py``, __post_init__,
    overlap_moe_expert_parallel_comm)."""
    whole = draft.recompute in (Recompute.FULL, Recompute.BLOCK)
    again = whole or "moe" in draft.recompute_modules
    runs = ((draft["pp"] == 1) | (draft["vpp"] > 1)) & (not again)
    return bools(runs | (draft["ep"] == 1) | (not draft.job.overlap_expert_a2a))


def tokens_between_domains(draft: Draft) -> BoolArray:
    """HybridEP over several domains: no more tokens a rank than its queues take."""
    if draft.job.moe_dispatcher != "hybridep":
        return bools(draft["ep"] > 0)
    domain = draft.cluster.domains[0].ranks
    group = group_of(Axis.EP, draft.layout, domain)
    tokens = (
        draft["micro_batch"] * draft.job.seq_len // (draft["cp"] * draft.sharding.norm_shards(draft.layout))
    )
    return bools((group.inter == 1) | (tokens <= MOST_TOKENS_BETWEEN_DOMAINS))


def deepep_ranks(draft: Draft) -> BoolArray:
    """DeepEP has settings for groups of these sizes alone; the group is that of ep x etp (Megatron-LM d98e8a6
    ``token_dispatcher.py``, _DeepepManager)."""
    held = np.isin(draft["ep"] * draft["etp"], DEEPEP_RANKS)
    return bools(held | (draft["ep"] == 1) | (draft.job.moe_dispatcher != "deepep"))


def check_exchange(job: JobSpec) -> None:
    """Raise ConfigError for weight gradients put off where no exchange runs beside another micro-batch (Megatron-LM
    ``transformer_config.py``, __post_init__)."""
    if job.delay_wgrad and not job.overlap_expert_a2a:
        raise ConfigError(
            where="--job", key="delay_wgrad", value=True, allowed="true only beside overlap_expert_a2a true"
        )


WHOLE_LAYERS = (Recompute.FULL, Recompute.BLOCK)


def beside_graphs(draft: Draft) -> BoolArray:
    """No layer on the host, none run again whole, and no part run again around what a graph holds."""
    scopes = draft.job.cuda_graphs
    parts = bool(scopes) and "full_iteration" not in scopes
    whole = draft.recompute in WHOLE_LAYERS
    around = "moe" in draft.recompute_modules and "moe_router" in scopes
    return bools(((draft["offloaded_layers"] == 0) & (not whole) & (not around)) | (not parts))


def _all(draft: Draft, value: bool) -> BoolArray:
    return np.full(len(next(iter(draft.columns.values()))), value, dtype=np.bool_)


def optimizer_on_host(draft: Draft) -> BoolArray:
    """DeepSpeed: sharded, a part of it at stage 3 only (zero/offload_config.py, ratio); Megatron-LM: with its
    distributed optimizer (arguments.py, --use-precision-aware-optimizer)."""
    share, kind = draft.columns["optimizer_offload"], draft.job.preset.offload.optimizer
    parted = (draft["zero_stage"] >= 3) | (share == 1.0) | (kind == "step")
    return bools((draft["zero_stage"] >= 1) & (kind != "") & parted | (share == 0.0))


def activations_on_host(draft: Draft) -> BoolArray:
    """Megatron-Core, transformer_config.py, where cpu_offloading: no pipeline, no recomputation, one layer stays."""
    layers = draft["offloaded_layers"]
    runs = draft.recompute is Recompute.NONE and not draft.recompute_modules
    runs = runs and draft.job.preset.offload.activations
    return bools((draft["pp"] == 1) & runs & (layers < draft.model.num_layers) | (layers == 0))


OF_EXPERTS = frozenset({"expert_fc1", "moe_act", "fused_group_mlp"})
# Where a graph ends inside what they save (transformer_layer.py, _set_offload_modules).
AT_A_GRAPHS_END = {"attn_norm": {"attn"}, "mlp_norm": {"attn", "moe_router"}}


def parts_on_host(draft: Draft) -> BoolArray:
    """Megatron-Core, transformer_config.py, where fine_grained_activation_offloading: beside no layer on the host or
    run again whole, the projection with the core alone, all of fused experts or parts of them, none inside experts
    that run again, no norm where a graph ends and none beside graphs of experts. Layers' inputs leave where layers run
    again whole, and nothing else does then."""
    named, scopes = set(draft.offload_modules), draft.job.cuda_graphs
    if not named:
        return _all(draft, True)
    kept_whole = "attn_proj" in named and "core_attn" not in named
    twice = "fused_group_mlp" in named and len(named & OF_EXPERTS) > 1
    again = "moe" in draft.recompute_modules and bool(named & OF_EXPERTS)
    cut = "moe" in scopes or any(one in named and ends & scopes for one, ends in AT_A_GRAPHS_END.items())
    whole = draft.recompute in (Recompute.FULL, Recompute.BLOCK)
    odd = whole != (named == {LAYER_INPUT}) or (LAYER_INPUT in named and not whole)
    runs = named <= set(draft.job.preset.offload.modules) and not (kept_whole or twice or again or cut or odd)
    return bools((draft["offloaded_layers"] == 0) & runs)


def recomputes(draft: Draft) -> BoolArray:
    """The framework has the kind of recomputation."""
    preset = draft.job.preset
    runs = {
        Recompute.SELECTIVE: bool(preset.recomputation.selective),
        Recompute.FULL: preset.recomputation.layers,
        Recompute.BLOCK: preset.recomputation.layers and preset.recomputation.partial,
    }
    return _all(draft, runs.get(draft.recompute, True))


def modules_again(draft: Draft) -> BoolArray:
    """Parts by name run again beside no whole layer (Megatron-Core, transformer_config.py: granularity
    "selective" or "full"), norms and activations not where scales come from earlier steps ("Delayed scaling
    does not support moe_act and layernorm recompute"), shared experts not where the exchange runs beside them
    (moe_shared_expert_overlap)."""
    named = set(draft.recompute_modules)
    whole = draft.recompute in (Recompute.FULL, Recompute.BLOCK)
    refused = {"moe_act", "layernorm"} if draft.job.precision.scaling == "delayed" else set()
    if draft.job.overlap_shared_experts:
        refused.add("shared_experts")
    allowed = set(draft.job.preset.recomputation.modules) - refused
    return _all(draft, not named or (named <= allowed and not whole))


OF_ADAPTERS = ("adapted", "adapter_dropout", "adapter_dtype", "adapter_code")


def check_adapters(model: ModelSpec, job: JobSpec) -> None:
    """Raise ConfigError for frozen weights without an adapter, for settings of adapters where there are none,
    and for an adapter that no product of the model gets or that two names give it."""
    if not job.adapter_rank:
        if job.precision.frozen:
            raise _error(
                "precision.frozen", job.precision.frozen, "frozen weights need adapters: adapter_rank above 0"
            )
        for one in fields(JobSpec):
            said = getattr(job, one.name)
            if one.name in OF_ADAPTERS and said != one.default:
                shown = "+".join(sorted(said)) if isinstance(said, frozenset) else str(said)
                raise _error(one.name, shown, "a setting of adapters: beside adapter_rank above 0 alone")
        return
    if not job.adapted or {"qkv", "q_k_v"} <= job.adapted:
        asked = "+".join(sorted(job.adapted)) or "none"
        raise _error("adapted", asked, f"one or more of {', '.join(ADAPTED)}, and of qkv and q_k_v one")
    served = _adapted(model, job)
    for name in sorted(job.adapted):
        if served.isdisjoint(ADAPTED[name]):
            there = [one for one, keys in ADAPTED.items() if not served.isdisjoint(keys)]
            raise _error("adapted", name, f"products that {model.name} has: {', '.join(there) or 'none'}")


def _adapted(model: ModelSpec, job: JobSpec) -> set[OpKey]:
    """The products of the model's layers that get an adapter, of any name."""
    blocks = model_ops(
        model, replace(job, adapted=frozenset(ADAPTED)), Layout.of(1), "mtp", Recompute.NONE
    ).blocks
    return {
        OpKey(op.module, op.serves)
        for block in blocks
        for op in block.forward
        if op.role is Role.ADAPTER_DOWN and op.serves is not None
    }


def _error(key: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(where="--job", key=key, value=value, allowed=allowed)


RULES: tuple[Rule, ...] = (
    Rule(reason="the framework has no such recomputation", after="pp", keep=recomputes),
    Rule(
        reason="the framework does not run these parts of layers again, or not beside whole layers",
        after="pp",
        keep=modules_again,
    ),
    Rule(
        reason="CUDA graphs of parts of layers: no layer on the host or run again whole, no experts run again around their router's",
        after="pp",
        keep=beside_graphs,
    ),
    Rule(
        reason="the framework has no pipeline stages",
        after="pp",
        keep=lambda d: bools((d["pp"] == 1) | ("pp" in d.job.preset.tensor_parallel.axes)),
    ),
    Rule(reason="the framework does not cut layers over tp", after="tp", keep=_layers_cut),
    Rule(
        reason="the framework keeps all experts on every rank",
        after="ep",
        keep=lambda d: bools((d["ep"] == 1) | ("ep" in d.job.preset.tensor_parallel.axes)),
    ),
    Rule(
        reason="the framework does not cut sequences over cp",
        after="cp",
        keep=lambda d: bools((d["cp"] == 1) | ("cp" in d.job.preset.tensor_parallel.axes)),
    ),
    Rule(reason="a layer of the model cannot cut sequences over cp so", after="cp", keep=_sequences_cut),
    Rule(
        reason="the framework has no such schedule",
        after="pp",
        keep=lambda d: _always(d, d.schedule.value in d.job.preset.pipeline.schedules),
    ),
    Rule(
        reason="zero-bubble schedules reduce and gather nothing beside a backward",
        after="pp",
        keep=split_backward_alone,
    ),
    Rule(reason=WHOLE_BACKWARDS, after="zero_stage", keep=split_by_autograd),
    Rule(
        reason="more pipeline stages than layers",
        after="pp",
        keep=lambda d: d["pp"] <= d.model.num_layers,
    ),
    Rule(
        reason="the strategy does not run in pipeline stages",
        after="pp",
        keep=lambda d: bools((d["pp"] == 1) | d.sharding.traits.pipelined),
    ),
    Rule(
        reason="tp x cp x pp does not divide the world",
        after="tp",
        keep=lambda d: d.job.world_size % (d["tp"] * d["cp"] * d["pp"]) == 0,
    ),
    Rule(reason="heads do not divide by tp", after="tp", keep=_heads),
    Rule(reason="kv heads do not divide by tp", after="tp", keep=_kv_heads),
    Rule(reason="feed-forward width does not divide by tp", after="tp", keep=_ffn),
    Rule(
        reason="sequence does not divide by tp x cp",
        after="tp",
        keep=_sequence,
    ),
    Rule(reason="experts with tp need sequence parallelism", after="tp", keep=moe_tokens),
    Rule(
        reason="weight groups do not divide the stage's ranks",
        after="wp",
        keep=lambda d: (d.job.world_size // d["pp"]) % d["wp"] == 0,
    ),
    Rule(reason=UNCUT, after="wp", keep=_distinct),
    Rule(reason="experts do not divide by ep", after="ep", keep=experts_cut),
    Rule(reason="ep does not divide the stage's ranks", after="ep", keep=experts_placed),
    Rule(
        reason="ep x etp does not divide the stage's ranks, or nothing to cut",
        after="ep",
        keep=experts_folded,
    ),
    Rule(
        reason="DeepEP has no settings for so many ranks of experts",
        after="ep",
        keep=deepep_ranks,
    ),
    Rule(reason=CHUNKS_OF_ORDER, after="vpp", keep=ordered),
    Rule(
        reason="zero_size does not divide the data-parallel ranks",
        after="zero_size",
        keep=lambda d: bools(d.copies(Owner.DENSE) % d["zero_size"] == 0),
    ),
    Rule(
        reason="zero_size does not divide the weight data-parallel ranks",
        after="zero_size",
        keep=weight_shards,
    ),
    Rule(reason="ZeRO stage and shard count disagree", after="zero_size", keep=stage_has_shards),
    Rule(reason="the framework has no such ZeRO stage", after="zero_stage", keep=stage_accepted),
    Rule(
        reason="the strategy has no experts over ep at this ZeRO stage",
        after="zero_stage",
        keep=experts_beside_shards,
    ),
    Rule(
        reason="the framework shards no gradients or parameters in pipeline stages, or under isp",
        after="zero_stage",
        keep=parameters_shardable,
    ),
    Rule(
        reason="the framework cannot run so much of this optimizer on the host",
        after="zero_stage",
        keep=optimizer_on_host,
    ),
    Rule(
        reason="Muon takes whole matrices: state sharded at most, on the device, weights not over wp",
        after="zero_stage",
        keep=matrices_whole,
    ),
    Rule(
        reason="the framework cannot keep these parts of layers on the host, or not beside the rest",
        after="offloaded_layers",
        keep=parts_on_host,
    ),
    Rule(
        reason="the framework cannot keep these layers' activations on the host",
        after="pp",
        keep=activations_on_host,
    ),
    Rule(reason="the framework shards over all data-parallel ranks only", after="zero_size", keep=hybrid),
    Rule(
        reason="global batch does not divide by dp x micro_batch",
        after="micro_batch",
        keep=lambda d: d.job.global_batch_sequences % (d.dp * d["micro_batch"]) == 0,
    ),
    Rule(
        reason="the framework wants as many micro-batches as stages",
        after="micro_batch",
        keep=lambda d: bools(
            (d.sequences_per_rank // d["micro_batch"] >= d["pp"]) | (not d.job.preset.pipeline.fills_pipeline)
        ),
    ),
    Rule(
        reason=UNEVEN_CHUNKS,
        after="vpp",
        keep=chunks,
    ),
    Rule(
        reason=TWO_CHUNKS,
        after="vpp",
        keep=turning,
    ),
    Rule(
        reason="beside another micro-batch the experts' exchange wants virtual chunks, and no experts or layers run again",
        after="vpp",
        keep=beside_another_micro_batch,
    ),
    Rule(
        reason=f"HybridEP sends at most {MOST_TOKENS_BETWEEN_DOMAINS:,} tokens a rank between domains",
        after="micro_batch",
        keep=tokens_between_domains,
    ),
    Rule(reason="more layers of 16 bits than a stage has", after="pp", keep=wide_layers_at_ends),
    Rule(reason=EQUAL_INSTEAD, after="vpp", keep=equal_instead),
)
