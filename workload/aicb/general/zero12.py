"""DeepSpeed ZeRO-1 and ZeRO-2 as a general workload, with one optimizer parameter group.

Source: DeepSpeed 0.17.5, runtime/zero/stage_1_and_2.py. Stage 2 reduces from hooks of the backward of every
micro-batch (``process_gradients``), stage 1 without overlap_comm (its default) after the last micro-batch in
the order of the parameters (``reduce_gradients``). A bucket goes when the next gradient would not fit
(``reduce_independent_p_g_buckets_and_remove_grads``); ``average_tensor`` cuts it where the owner of the
gradient changes and ``allreduce_and_scatter`` all-reduces pieces until they pass the bucket size, or, without
``use_multi_rank_bucket_allreduce``, ``allreduce_no_retain`` reduces each owner's pieces to it. ``step``:
``check_overflow`` in fp16 alone (bf16.check_grad_overflow is off), ``get_grad_norm_direct`` (one fp32),
``all_gather_dp_groups``: one gather where torch has all_gather_into_tensor, shards of the all-gather bucket
otherwise. ``contiguous_gradients`` copies gradients into one buffer and moves nothing else.
"""

from collections.abc import Iterator
from itertools import pairwise

from spec.weights import Module, Tensor
from workload.aicb.general.csv_workload import EPOCH_END, GeneralItem
from workload.aicb.general.zero_options import ZeroOptions

# ``nccl_start_alignment_factor``: the flat buffer holds a multiple of so many elements a rank.
ALIGNMENT = 2


def zero12_items(modules: tuple[Module, ...], options: ZeroOptions) -> Iterator[GeneralItem]:
    """All rows of one rank."""
    tensors = [tensor for module in modules for tensor in module.tensors]
    flat = _Flat(tensors, options)
    if options.ranks > 1:
        for tensor in tensors:  # engine.py ``_broadcast_model``
            yield options.comm("broadcast", tensor.elements, f"init.{tensor.name}")
    yield GeneralItem(comm_type=EPOCH_END)
    for _ in range(options.epochs):
        for _ in range(options.num_micro):
            for module in modules:
                yield from options.products(module, "forward")
            yield from _backward(modules, flat, options)
        if options.ranks > 1 and options.stage < 2:
            yield from _buckets(tensors, flat, options)
        if options.ranks > 1:
            yield from _step(flat, options)
        yield GeneralItem(comm_type=EPOCH_END)


class _Flat:
    """The flat buffer of all parameters, cut evenly over the ranks: who owns which part of a tensor."""

    def __init__(self, tensors: list[Tensor], options: ZeroOptions) -> None:
        order = tensors
        if options.round_robin_gradients:  # ``_round_robin_reorder``
            order = [tensor for first in range(options.ranks) for tensor in tensors[first :: options.ranks]]
        self.start: dict[str, int] = {}
        end = 0
        for tensor in order:
            self.start[tensor.name] = end
            end += tensor.elements
        unit = ALIGNMENT * options.ranks
        self.elements = -(-end // unit) * unit
        self.owned = self.elements // options.ranks

    def parts(self, tensor: Tensor) -> Iterator[tuple[int, int]]:
        """(owner, elements) of the pieces of a tensor, first to last."""
        low = self.start[tensor.name]
        high = low + tensor.elements
        cuts = [low, *range((low // self.owned + 1) * self.owned, high, self.owned), high]
        for begin, end in pairwise(cuts):
            yield begin // self.owned, end - begin


def _backward(modules: tuple[Module, ...], flat: _Flat, options: ZeroOptions) -> Iterator[GeneralItem]:
    """Modules last to first; stage 2 sends full buckets as they fill up, the rest when it is done."""
    held: list[Tensor] = []
    reduces = options.ranks > 1 and options.stage == 2
    for module in reversed(modules):
        yield from options.products(module, "backward")
        if reduces:
            held += reversed(module.tensors)
            held, full = _filled(held, options)
            for bucket in full:
                yield from _reduction(bucket, flat, options)
    if reduces:
        yield from _buckets(held, flat, options)


def _buckets(tensors: list[Tensor], flat: _Flat, options: ZeroOptions) -> Iterator[GeneralItem]:
    """Gradients of ``tensors`` in this order, the last bucket too."""
    rest, full = _filled(tensors, options)
    for bucket in (*full, rest):
        if bucket:
            yield from _reduction(bucket, flat, options)


def _filled(tensors: list[Tensor], options: ZeroOptions) -> tuple[list[Tensor], list[list[Tensor]]]:
    """What is still in the bucket, and the buckets that went because the next did not fit."""
    bucket: list[Tensor] = []
    full: list[list[Tensor]] = []
    held = 0
    for tensor in tensors:
        if bucket and held + tensor.elements > options.reduce_bucket_size:
            full.append(bucket)
            bucket, held = [], 0
        bucket.append(tensor)
        held += tensor.elements
    return bucket, full


def _reduction(bucket: list[Tensor], flat: _Flat, options: ZeroOptions) -> Iterator[GeneralItem]:
    """One bucket, as the pieces of its owners."""
    pieces: list[tuple[int, int]] = []
    for tensor in bucket:
        for owner, elements in flat.parts(tensor):
            if pieces and pieces[-1][0] == owner:
                pieces[-1] = (owner, pieces[-1][1] + elements)
            else:
                pieces.append((owner, elements))
    if options.use_multi_rank_bucket_allreduce:
        for elements in _gathered([size for _, size in pieces], options.reduce_bucket_size):
            yield options.comm("all_reduce", elements, "backward.allreduce_bucket")
        return
    for owner in dict.fromkeys(owner for owner, _ in pieces):
        mine = [size for each, size in pieces if each == owner]
        for elements in _gathered(mine, options.reduce_bucket_size):
            yield options.comm("reduce", elements, "backward.average_tensor", dst=owner)


def _gathered(sizes: list[int], limit: int) -> Iterator[int]:
    """Sums of neighbours, each let go once it passes the limit."""
    total = 0
    for size in sizes:
        total += size
        if total > limit:
            yield total
            total = 0
    if total:
        yield total


def _step(flat: _Flat, options: ZeroOptions) -> Iterator[GeneralItem]:
    """Overflow flag (one byte, stage 2 alone asks the other ranks), gradient norm, parameters back."""
    if options.fp16 and options.stage == 2:
        yield options.scalar(1, "step.has_overflow")
    yield options.scalar(4, "step.get_grad_norm_direct")
    num_shards, shard = 1, flat.owned
    if options.allgather_bucket_size is not None:
        num_shards = max(flat.elements // options.allgather_bucket_size, 1)
        shard = flat.owned // num_shards
        shard -= shard % ALIGNMENT
    for index in range(num_shards):
        part = flat.owned - shard * index if index == num_shards - 1 else shard
        if part:
            yield options.comm("all_gather", part * options.ranks, "step.all_gather_dp_groups")
