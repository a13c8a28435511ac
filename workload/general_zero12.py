"""DeepSpeed ZeRO-1 and ZeRO-2 as a general workload.

Source: DeepSpeed, runtime/zero/stage_1_and_2.py: gradients fill a bucket in the order the backward makes
them and are reduced when the next would not fit (``reduce_independent_p_g_buckets_and_remove_grads``), with
its defaults by an all-reduce of the bucket (``allreduce_and_scatter``); stage 1 reduces once a step, stage 2
after every micro-batch (``engine.allreduce_gradients``); ``all_gather_dp_groups`` returns the parameters in
shards of the all-gather bucket.
"""

from collections.abc import Iterator

from workload.general import EPOCH_END, GeneralItem
from workload.model_parameters import Module, Tensor
from workload.zero_options import ZeroOptions


def zero12_items(modules: tuple[Module, ...], options: ZeroOptions) -> Iterator[GeneralItem]:
    """All rows of one rank."""
    tensors = [tensor for module in modules for tensor in module.tensors]
    if options.ranks > 1:
        for tensor in tensors:
            yield options.comm("broadcast", tensor.elements, f"init.{tensor.name}")
    yield GeneralItem(comm_type=EPOCH_END)
    for _ in range(options.epochs):
        for micro in range(options.num_micro):
            for module in modules:
                yield from options.products(module, "forward")
            last = micro == options.num_micro - 1
            reduces = options.ranks > 1 and (options.stage == 2 or last)
            yield from _backward(modules, options, reduces=reduces)
        if options.ranks > 1:
            yield from _step(sum(tensor.elements for tensor in tensors), options)
        yield GeneralItem(comm_type=EPOCH_END)


def _backward(modules: tuple[Module, ...], options: ZeroOptions, *, reduces: bool) -> Iterator[GeneralItem]:
    """Modules last to first; full buckets as they fill up, the rest when the backward is done."""
    total = sum(module.elements for module in modules)
    owned = -(-total // options.ranks)
    bucket: list[Tensor] = []
    held = 0
    # A gradient's place in the flat buffer of all parameters, in forward order, decides who owns it.
    end = total
    for module in reversed(modules):
        yield from options.products(module, "backward")
        for tensor in reversed(module.tensors):
            if bucket and held + tensor.elements > options.reduce_bucket_size:
                if reduces:
                    yield from _reduction((end, end + held), owned, options)
                bucket, held = [], 0
            bucket.append(tensor)
            held += tensor.elements
            end -= tensor.elements
    if reduces and bucket:
        yield from _reduction((end, end + held), owned, options)


def _reduction(span: tuple[int, int], owned: int, options: ZeroOptions) -> Iterator[GeneralItem]:
    """One bucket: all-reduced, or with contiguous gradients of stage 2 reduced to each owner."""
    low, high = span
    if not (options.stage == 2 and options.contiguous_gradients):
        yield options.comm("all_reduce", high - low, "backward.allreduce_bucket")
        return
    while low < high:
        owner = low // owned
        part = min(high, (owner + 1) * owned) - low
        yield options.comm("reduce", part, "backward.average_tensor", dst=owner)
        low += part


def _step(elements: int, options: ZeroOptions) -> Iterator[GeneralItem]:
    """Overflow flag (one byte), gradient norm (one fp32), parameters back."""
    yield options.scalar(1, "step.has_overflow")
    yield options.scalar(4, "step.get_grad_norm_direct")
    partition = options.padded(elements) // options.ranks
    num_shards = max(partition * options.ranks // options.allgather_bucket_size, 1)
    shard = partition // num_shards
    for index in range(num_shards):
        last = index == num_shards - 1
        part = partition - shard * index if last else shard
        yield options.comm("all_gather", part * options.ranks, "step.all_gather_dp_groups")
