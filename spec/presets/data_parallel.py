"""How a framework adds up and reduces gradients, and shards parameters, optimizer and gradients."""

from dataclasses import dataclass
from typing import Annotated, Literal

from spec.program.kinds import Several, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """How gradients are added up and reduced, and parameters, optimizer and gradients sharded."""

    zero_stages: Annotated[tuple[int, ...], Several(Whole(least=0, most=3), least=1)]
    """Sharding stages it can run."""
    hybrid_zero: bool = True
    """zero_size may be smaller than the data-parallel group."""
    fp32_gradients: bool
    """Gradients accumulate and travel in fp32 instead of the format of the products."""
    narrow_reduction: bool = False
    """Gradients that accumulate in fp32 travel in the format of the products."""
    wide_reduction: bool = False
    """Gradients in the format of the products travel in fp32 (FSDP2's MixedPrecisionPolicy, reduce_dtype)."""
    keeps_micro_gradients: bool = False
    """Gradients of one micro-batch, in the format of the products, stay beside those that accumulate."""
    sequence_gradient_dtype: Literal["fp32", ""] = ""
    """Format in which gradients travel that are summed over the parts of a sequence as well (ulysses), "" for that of
    all others."""
    bucket_elements: Annotated[int, Whole(least=0)]
    """Elements of one gradient reduction, 0 for one reduction a layer."""
    bucket_elements_per_rank: Annotated[int, Whole(least=0)] = 0
    """A bucket holds at least so many elements for each data-parallel rank."""
    gradient_sync: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    """How gradients of a sharded optimizer are reduced: "reduce_scatter" or "all_reduce"."""
    parameter_sync: Literal["all_gather", "broadcast"] = "all_gather"
    """How updated shards return: "all_gather" or "broadcast"."""
    gathers_every_forward: bool = False
    """Stage 2 gathers parameters in every forward instead of once a step."""
    overlap_grad_reduce: bool = True
    """Gradients are reduced beside the last backward, at stage 2 beside every one (at stage 3 always)."""
    overlap_param_gather: bool = True
    """Updated parameters return beside the first forward."""
    separate_ends: bool = False
    """Embedding and head that share no weights are units of their own beside the layers, not FSDP's outermost one."""
    reduces_once: bool = False
    """Sharded gradients of a step's micro-batches are added up whole and reduced in the last backward (FSDP under
    no_sync or set_requires_gradient_sync)."""
    overlap_weights: bool = True
    """Sharded weights are gathered ahead."""
    contiguous_gradients: bool = False
    """Gradients lie in one buffer and travel from there instead of through a bucket."""
    flattened_buckets: bool = False
    """Gradients are copied into a bucket to travel and back, and averaged on the way, not by a pass of their own."""
    clips_gradients: bool = True
    """The norm of gradients is taken before the update, and they are scaled to a limit."""
    divides_buckets: bool = False
    """Flattened buckets are divided by the number of ranks in a pass of their own before they travel."""
    sliced_collectives: bool = False
    """Sharded parameters and gradients travel one by one, as lists of slices that the host copies
    (sliced_collectives).
    """
    lists_of_slices: bool = False
    """Updated shards return as one all-gather of lists, a slice of every parameter from every rank: into a flat
    buffer, out of it into one a rank, and from there into the parameters."""
    copies_parameters: bool = False
    """Sharded parameters stay tensors of their own, copied out of a gather and into a reduction (FSDP2; FSDP1
    gathers into the place they are views of)."""
    joins_gradients: bool = False
    """Gradients are joined into a flat one, cast and divided before they are reduced (FSDP1)."""
    shards_master: bool = False
    """What is sharded is the optimizer's own copy of parameters, of which layers gather theirs, and gradients are kept
    in its format (FSDP's MixedPrecision, FSDP2's MixedPrecisionPolicy)."""
    keeps_buckets: bool = False
    """Buckets that leave in the backward are flat copies of all gradients in the parameters' format and stay (torch's
    DistributedDataParallel without gradient_as_bucket_view)."""
    keeps_stand_ins: bool = False
    """Products that add up weight gradients themselves hand an empty one to autograd, of which one of each
    shape stays (Transformer Engine 2.3 and later, ``module/base.py``, get_dummy_wgrad)."""
    fresh_gradients: bool = False
    """Gradients are let go of after the update and made anew in the next backward (torch's zero_grad)."""
    gathered_layers: Annotated[int, Whole(least=1, most=8)] = 2
    """Layers whose gathered weights live at once: those in use and those coming."""
    live_elements: Annotated[int, Whole(least=0)] = 0
    """Elements that are gathered ahead at stage 3 until so many are whole at once, 0 where layers are counted
    instead.
    """
    held_narrow: frozenset[Literal["tensor", "mx"]] = frozenset()
    """Scales of formats whose weights are held narrow alone, and with a scale of the whole tensor gathered so
    (fp8_param_gather).
    """
    casts_shards: bool = False
    """Weights that products with a scale of the whole tensor read are cast before they are gathered (XLA)."""
    update_copies: bool = False
    """The update runs in elementwise operations, which make square roots of the second moments beside them
    (torch's AdamW, not fused).
    """
    accumulation: Literal["accumulate_fp32", "accumulate_16bit", "accumulate_wide", "accumulate", ""] = (
        "accumulate_fp32"
    )
    """The kernel of ops.kernels that adds a micro-batch's weight gradients to the sum; "" where sharded
    gradients are added in small pieces."""
