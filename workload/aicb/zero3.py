"""DeepSpeed ZeRO-3 as a general workload: what is gathered when, released, and reduced.

Source: DeepSpeed 0.17.5. runtime/zero/partitioned_param_coordinator.py: the first pass records the order of
modules and lets everything go again (``release_sub_module``); later passes also prefetch what comes next, in
one all-gather, until ``prefetch_bucket_size`` elements are passed or ``max_live_parameters`` are live
(``fetch_sub_module``), and keep what comes again within ``max_reuse_distance`` elements, what the prefetch
has passed over because it was there, and what is persistent (``__params_to_release``). parameter_offload.py
``mark_persistent_parameters``: at most ``param_persistence_threshold`` elements, first come first served up to
``model_persistence_threshold`` of all; ``setup_zero_stage3_hooks``: every module has a hook, those without
parameters prefetch too. stage3.py: gradients fill buckets of ``reduce_bucket_size`` elements
(``reduce_independent_p_g_buckets_and_remove_grads``), each reduce-scattered with every tensor padded for itself
(``reduce_scatter_coalesced``), the rest at the end of every backward
(``independent_gradient_partition_epilogue``); ``step`` partitions everything and ``_post_step`` gathers the
persistent parameters again, one by one.

Assumption: the hooks of a model, its layers and their halves; modules inside of others that own nothing and
are no such half (activation functions, rotary tables) would prefetch a little earlier.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from spec.mixers.mixer import LeafModule, Tensor
from workload.aicb.csv_workload import EPOCH_END, GeneralItem
from workload.aicb.data_parallel import ZeroOptions, full_buckets

# ``sub_group_size``: the optimizer and the gradient norm work on so many elements of a rank's shard at a time.
SUB_GROUP_ELEMENTS = 1_000_000_000


def zero3_items(modules: tuple[LeafModule, ...], options: ZeroOptions) -> Iterator[GeneralItem]:
    """All rows of one rank."""
    tensors = [tensor for module in modules for tensor in module.tensors]
    persistent = persistent_tensors(tensors, options)
    if options.ranks > 1:
        for tensor in tensors:  # partition_parameters.py ``_zero_init_param``
            yield options.comm("broadcast", tensor.elements, f"init.{tensor.name}")
        for tensor in tensors:  # stage3.py ``create_reduce_and_remove_grad_hooks``
            yield options.comm("all_gather", options.padded(tensor.elements), f"init.{tensor.name}")
    yield GeneralItem(comm_type=EPOCH_END)
    live = _Live(order=hook_order(modules), options=options, persistent=persistent)
    for epoch in range(options.epochs):
        for micro in range(options.num_micro):
            yield from live.pass_through(traced=epoch + micro > 0)
        if options.ranks > 1:
            yield from _step(tensors, persistent, options)
        live.resident = set(persistent)
        yield GeneralItem(comm_type=EPOCH_END)


def persistent_tensors(tensors: list[Tensor], options: ZeroOptions) -> set[str]:
    """Names of the parameters that stay."""
    chosen: set[str] = set()
    total = 0
    for tensor in tensors:
        small = tensor.elements <= options.param_persistence_threshold
        if small and total + tensor.elements <= options.model_persistence_threshold:
            chosen.add(tensor.name)
            total += tensor.elements
    return chosen


def hook_order(modules: tuple[LeafModule, ...]) -> list[tuple[LeafModule, str]]:
    """Every module as its hooks fire: forward in the order of the model, backward in the reverse, the one
    around others before them both times."""
    forward = [(module, "forward") for module in _entered(modules)]
    return forward + [(module, "backward") for module in _entered(modules[::-1])]


def _entered(leaves: tuple[LeafModule, ...]) -> Iterator[LeafModule]:
    """The leaves, each after those around it that are entered with it: ``layers.0.attention.q`` stands in an attention
    in a layer. Those around others own no parameters."""
    yield LeafModule(name="model", tensors=())
    entered: list[str] = []
    for leaf in leaves:
        words = _path(leaf.name)
        around = [".".join(words[:depth]) for depth in range(1, len(words))]
        yield from (LeafModule(name=name, tensors=()) for name in around if name not in entered)
        yield leaf
        entered = around


def _path(name: str) -> tuple[str, ...]:
    """Words of a name; a number belongs to the word before it."""
    words: list[str] = []
    for word in name.split("."):
        if word.isdecimal() and words:
            words[-1] += f".{word}"
        else:
            words.append(word)
    return tuple(words)


@dataclass(slots=True, kw_only=True)
class _Live:
    """The parameters whole on this rank now (``resident``), and how many elements this pass gathered of them."""

    order: list[tuple[LeafModule, str]]
    options: ZeroOptions
    persistent: set[str]
    resident: set[str] = field(default_factory=set)
    elements: int = 0
    queue: deque[tuple[Tensor, int]] = field(default_factory=deque)
    passed: dict[str, int] = field(default_factory=dict)

    def pass_through(self, *, traced: bool) -> Iterator[GeneralItem]:
        """Forward and backward of one micro-batch."""
        self.elements = 0  # ``reset_step``, whatever is still here
        self.passed = {}
        trace = ((tensor, step) for step, (module, _) in enumerate(self.order) for tensor in module.tensors)
        self.queue = deque(trace if traced else ())
        bucket: list[Tensor] = []
        for step, (module, direction) in enumerate(self.order):
            yield from self._gather(module.tensors, f"{direction}.{module.name}")
            if traced:
                self._pop(module, step)
                yield from self._prefetch(direction)
            yield from self.options.products(module, direction)
            if direction == "backward":
                bucket, full = full_buckets([*bucket, *reversed(module.tensors)], self.options)
                for each in full:
                    yield from self._reduce(each)
            self._release(module, step + 1, traced=traced)
        yield from self._reduce(bucket)

    def _gather(self, tensors: tuple[Tensor, ...], stage: str) -> Iterator[GeneralItem]:
        """One all-gather of what is not here yet."""
        missing = [tensor for tensor in tensors if tensor.name not in self.resident]
        if not missing:
            return
        self.resident.update(tensor.name for tensor in missing)
        self.elements += sum(tensor.elements for tensor in missing)
        if self.options.ranks > 1:
            size = sum(self.options.padded(tensor.elements) for tensor in missing)
            yield self.options.comm("all_gather", size, stage)

    def _pop(self, module: LeafModule, step: int) -> None:
        """Take what the module needs now off the queue, unless a prefetch has done so."""
        wanted = {tensor.name for tensor in module.tensors if self.passed.get(tensor.name, -1) < step}
        popped: set[str] = set()
        while self.queue and len(popped) < len(wanted):
            tensor, at = self.queue.popleft()
            self.passed[tensor.name] = at
            popped.add(tensor.name)

    def _prefetch(self, direction: str) -> Iterator[GeneralItem]:
        """Parameters that come next, until the bucket or what may be live is passed."""
        room = min(self.options.prefetch_bucket_size, self.options.max_live_parameters - self.elements)
        wanted: dict[str, Tensor] = {}
        size = 0
        while self.queue and size < room:
            tensor, at = self.queue.popleft()
            self.passed[tensor.name] = max(self.passed.get(tensor.name, -1), at)
            if tensor.name not in self.resident and tensor.name not in wanted:
                wanted[tensor.name] = tensor
                size += tensor.elements
        yield from self._gather(tuple(wanted.values()), f"{direction}.prefetch")

    def _release(self, module: LeafModule, step: int, *, traced: bool) -> None:
        """Let go of the module's parameters but for those that stay; ``step`` is the next hook's."""
        names = {tensor.name for tensor in module.tensors}
        if traced:
            names -= self.persistent
            names = {name for name in names if self.passed.get(name, -1) <= step}
            distance = 0
            for later, _ in self.order[step:] if names else ():
                if distance >= self.options.max_reuse_distance or not names:
                    break
                names -= {tensor.name for tensor in later.tensors}
                distance += later.elements
        for tensor in module.tensors:
            if tensor.name in names and tensor.name in self.resident:
                self.resident.discard(tensor.name)
                self.elements -= tensor.elements

    def _reduce(self, bucket: list[Tensor]) -> Iterator[GeneralItem]:
        if bucket and self.options.ranks > 1:
            size = sum(self.options.padded(tensor.elements) for tensor in bucket)
            yield self.options.comm("reduce_scatter", size, "backward.reduce_scatter_bucket")


def _step(tensors: list[Tensor], persistent: set[str], options: ZeroOptions) -> Iterator[GeneralItem]:
    """Overflow flag in fp16 (one byte), gradient norm of each sub-group (one fp64), persistent parameters."""
    if options.fp16:
        yield options.scalar(1, "step.has_overflow")
    for _ in range(_sub_groups(tensors, options)):
        yield options.scalar(8, "step.get_grad_norm_direct")
    for tensor in tensors:
        if tensor.name in persistent:
            size = options.padded(tensor.elements)
            yield options.comm("all_gather", size, f"step.persistent_parameters.{tensor.name}")


def _sub_groups(tensors: list[Tensor], options: ZeroOptions) -> int:
    """Number of sub-groups that the shard is cut into (``_create_fp16_sub_groups``)."""
    groups, elements = 0, 0
    for tensor in tensors:
        elements += options.padded(tensor.elements) // options.ranks
        if elements >= SUB_GROUP_ELEMENTS:
            groups, elements = groups + 1, 0
    return groups + (1 if elements else 0)
