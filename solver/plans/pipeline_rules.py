"""What schedules and virtual chunks demand of a plan."""

import numpy as np

from ops.context import WeightCopies
from ops.recompute import Recompute
from solver.pipeline.schedules import Schedule
from solver.plans.draft import Draft
from spec.arrays import BoolArray, IntArray, bools
from spec.job import JobSpec

# Assumption: more chunks of a stage are never worth their hops; they can be typed as a plan.
MOST_CHUNKS = 8
UNEQUAL = (2, 4, 8)
# Assumption: of unequal chunks the longest is no more than so much longer than the mean, or they are not worth trying.
LONGEST_OVER_MEAN = 1.25


def ordered(draft: Draft) -> BoolArray:
    """Schedules but 1F1B are for several stages, each of as many chunks as its orders are written for (arXiv 2401.10241
    sec. 2, zero bubbles of one chunk; solver.pipeline.schedules)."""
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
