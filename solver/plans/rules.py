"""What a plan must satisfy, as a table: one reason, one line of arithmetic.

Every rejected plan is counted under the first rule it breaks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ops.mixers.registry import MIXERS
from ops.op import Owner
from solver.plans.draft import Draft
from solver.plans.exchange_rules import (
    MOST_TOKENS_BETWEEN_DOMAINS,
    beside_another_micro_batch,
    deepep_ranks,
    tokens_between_domains,
)
from solver.plans.expert_rules import experts_cut, experts_folded, experts_placed, moe_tokens
from solver.plans.graph_rules import beside_graphs
from solver.plans.memory_rules import (
    activations_on_host,
    modules_again,
    optimizer_on_host,
    parts_on_host,
    recomputes,
)
from solver.plans.pipeline_rules import (
    chunks,
    equal_instead,
    ordered,
    split_backward_alone,
    split_by_autograd,
    turning,
    wide_layers_at_ends,
)
from solver.plans.shard_rules import (
    experts_beside_shards,
    hybrid,
    matrices_whole,
    parameters_shardable,
    stage_accepted,
    stage_has_shards,
    weight_shards,
)
from spec.arrays import BoolArray, bools


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
    cuts = draft.job.preset.tensor_parallel.cuts_layers or draft.sharding.traits.exchanges_heads
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


UNEVEN_LAYERS = "the framework wants layers to divide over the stages"
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
        keep=lambda d: bools((d["pp"] == 1) | d.job.preset.pipeline.stages),
    ),
    Rule(reason="the framework does not cut layers over tp", after="tp", keep=_layers_cut),
    Rule(
        reason="the framework keeps all experts on every rank",
        after="ep",
        keep=lambda d: bools((d["ep"] == 1) | d.job.preset.tensor_parallel.spreads_experts),
    ),
    Rule(
        reason="the framework does not cut sequences over cp",
        after="cp",
        keep=lambda d: bools((d["cp"] == 1) | d.job.preset.tensor_parallel.cuts_sequences),
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
        reason=UNEVEN_LAYERS,
        after="pp",
        keep=lambda d: (d.model.num_layers % d["pp"] == 0) | d.job.preset.pipeline.uneven_layers,
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
    Rule(reason="a ZeRO stage needs shards, and shards a stage", after="zero_size", keep=stage_has_shards),
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
