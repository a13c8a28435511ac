"""What schedules and virtual chunks demand of a plan."""

import numpy as np

from solver.plans.draft import Draft
from spec.arrays import BoolArray, IntArray, bools

# Assumption: more chunks of a stage are never worth their hops; they can be typed as a plan.
MOST_CHUNKS = 8
UNEQUAL = (2, 4, 8)


def zero_bubble(draft: Draft) -> BoolArray:
    """Zero-bubble schedules are defined for several stages of one chunk (arXiv 2401.10241 sec. 2)."""
    whole = not draft.schedule.splits_backward
    return bools(((draft["pp"] > 1) & (draft["vpp"] == 1)) | whole)


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
    laid = (pipeline.uneven_chunks == "layout") & (number <= draft.model.num_layers + 2)
    possible = (draft["pp"] > 1) & (_even(draft, number) | laid) & (num_micro % draft["pp"] == 0)
    return bools((draft["vpp"] == 1) | (possible & pipeline.interleaves))


def equal_instead(draft: Draft) -> BoolArray:
    """Assumption: of stages that have equal chunks, those beat unequal ones, and where there are none powers of two
    are enough."""
    pp, vpp = draft["pp"], draft["vpp"]
    equal = np.any([_even(draft, pp * number) for number in range(2, MOST_CHUNKS + 1)], axis=0)
    return bools((vpp == 1) | _even(draft, pp * vpp) | (~equal & np.isin(vpp, UNEQUAL)))
