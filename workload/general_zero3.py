"""DeepSpeed ZeRO-3 as a general workload: what is gathered when, released, and reduced.

Source: DeepSpeed, runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``,
``release_sub_module``) and stage3.py: the first micro-batch gathers each module when it runs and records
the order; later ones also prefetch the parameters that come next, in one all-gather of at most
``prefetch_bucket_size`` elements while at most ``max_live_parameters`` are held; a parameter needed again
within ``max_reuse_distance`` elements stays. Parameters of at most ``param_persistence_threshold`` elements
(together at most ``model_persistence_threshold``) stay after their first gather and return once a step.
Gradients are reduce-scattered in buckets, the rest at the end of every backward.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from workload.general import EPOCH_END, GeneralItem
from workload.model_parameters import Module, Tensor
from workload.zero_options import ZeroOptions


def zero3_items(modules: tuple[Module, ...], options: ZeroOptions) -> Iterator[GeneralItem]:
    """All rows of one rank."""
    tensors = [tensor for module in modules for tensor in module.tensors]
    persistent = persistent_tensors(tensors, options)
    if options.ranks > 1:
        for tensor in tensors:
            yield options.comm("broadcast", tensor.elements, f"init.{tensor.name}")
    yield GeneralItem(comm_type=EPOCH_END)
    live = _Live(modules=modules, options=options, persistent=persistent)
    for epoch in range(options.epochs):
        for micro in range(options.num_micro):
            yield from live.pass_through(traced=epoch + micro > 0)
        if options.ranks > 1:
            yield from _step(tensors, persistent, options)
        yield GeneralItem(comm_type=EPOCH_END)


def persistent_tensors(tensors: list[Tensor], options: ZeroOptions) -> set[str]:
    """Names of the parameters that are never let go, first come first served."""
    chosen: set[str] = set()
    total = 0
    for tensor in tensors:
        small = tensor.elements <= options.param_persistence_threshold
        if small and total + tensor.elements <= options.model_persistence_threshold:
            chosen.add(tensor.name)
            total += tensor.elements
    return chosen


@dataclass(slots=True, kw_only=True)
class _Live:
    """The parameters whole on this rank now, and how many elements they are."""

    modules: tuple[Module, ...]
    options: ZeroOptions
    persistent: set[str]
    held: set[str] = field(default_factory=set)
    elements: int = 0

    def pass_through(self, *, traced: bool) -> Iterator[GeneralItem]:
        """Forward and backward of one micro-batch."""
        order = [(module, "forward") for module in self.modules]
        order += [(module, "backward") for module in reversed(self.modules)]
        bucket = 0
        ahead = _Ahead(order=order)
        for place, (module, direction) in enumerate(order):
            yield from self._gather(module.tensors, f"{direction}.{module.name}")
            if traced:
                yield from self._prefetch(ahead, place)
            yield from self.options.products(module, direction)
            if direction == "backward":
                for tensor in reversed(module.tensors):
                    size = self.options.padded(tensor.elements)
                    if bucket and bucket + tensor.elements > self.options.reduce_bucket_size:
                        yield from self._reduce(bucket)
                        bucket = 0
                    bucket += size
            self._release(module, order, place, traced=traced)
        yield from self._reduce(bucket)
        for module in self.modules:
            self._let_go(module.tensors)

    def _gather(self, tensors: tuple[Tensor, ...], stage: str) -> Iterator[GeneralItem]:
        """One all-gather of what is not here yet."""
        missing = [tensor for tensor in tensors if tensor.name not in self.held]
        if not missing:
            return
        self.held.update(tensor.name for tensor in missing)
        self.elements += sum(tensor.elements for tensor in missing)
        if self.options.ranks > 1:
            size = sum(self.options.padded(tensor.elements) for tensor in missing)
            yield self.options.comm("all_gather", size, stage)

    def _prefetch(self, ahead: "_Ahead", place: int) -> Iterator[GeneralItem]:
        """Parameters that come next, up to the bucket and to what may be live."""
        room = min(self.options.prefetch_bucket_size, self.options.max_live_parameters - self.elements)
        wanted: list[Tensor] = []
        size = 0
        ahead.skip_to(place + 1)
        while size < room:
            tensor = ahead.take()
            if tensor is None:
                break
            if tensor.name not in self.held and all(tensor.name != one.name for one in wanted):
                wanted.append(tensor)
                size += tensor.elements
        yield from self._gather(tuple(wanted), f"{ahead.order[place][1]}.prefetch")

    def _release(self, module: Module, order: list[tuple[Module, str]], place: int, *, traced: bool) -> None:
        """Let the module's parameters go unless they come back within the reuse distance."""
        again = set()
        if traced:
            names = {tensor.name for tensor in module.tensors}
            distance = 0
            for later, _ in order[place + 1 :]:
                if distance >= self.options.max_reuse_distance:
                    break
                again |= names & {tensor.name for tensor in later.tensors}
                distance += later.elements
                if again == names:
                    break
        self._let_go(tuple(tensor for tensor in module.tensors if tensor.name not in again))

    def _let_go(self, tensors: tuple[Tensor, ...]) -> None:
        for tensor in tensors:
            if tensor.name in self.held and tensor.name not in self.persistent:
                self.held.discard(tensor.name)
                self.elements -= tensor.elements

    def _reduce(self, elements: int) -> Iterator[GeneralItem]:
        if elements and self.options.ranks > 1:
            yield self.options.comm("reduce_scatter", elements, "backward.reduce_scatter_bucket")


@dataclass(slots=True, kw_only=True)
class _Ahead:
    """The recorded order of parameters from a place on, taken one by one."""

    order: list[tuple[Module, str]]
    place: int = 0
    index: int = 0

    def skip_to(self, place: int) -> None:
        """Nothing before ``place`` is taken any more."""
        if self.place < place:
            self.place, self.index = place, 0

    def take(self) -> Tensor | None:
        """The next parameter; None at the end."""
        while self.place < len(self.order):
            tensors = self.order[self.place][0].tensors
            if self.index < len(tensors):
                self.index += 1
                return tensors[self.index - 1]
            self.place, self.index = self.place + 1, 0
        return None


def _step(tensors: list[Tensor], persistent: set[str], options: ZeroOptions) -> Iterator[GeneralItem]:
    """Overflow flag (one byte), gradient norm (one fp64), persistent parameters back."""
    yield options.scalar(1, "step.has_overflow")
    yield options.scalar(8, "step.get_grad_norm_direct")
    size = sum(options.padded(tensor.elements) for tensor in tensors if tensor.name in persistent)
    if size:
        yield options.comm("all_gather", size, "step.persistent_parameters")
