"""PyTorch FSDP as a general workload.

Source: arXiv 2304.11277 sec. 3.2-3.3 and torch.distributed.fsdp: one unit a layer, embedding, final norm and
head in the root unit; FULL_SHARD (stage 3) gathers a unit before its forward and again before its backward,
SHARD_GRAD_OP (stage 2) once; the root is not let go between the two. Every backward reduce-scatters the
unit's gradient.
"""

from collections.abc import Iterator

from workload.aicb.general.csv_workload import EPOCH_END, GeneralItem
from workload.aicb.general.model_parameters import Unit
from workload.aicb.general.zero_options import ZeroOptions


def fsdp_items(units: tuple[Unit, ...], options: ZeroOptions) -> Iterator[GeneralItem]:
    """All rows of one rank; stage 0 (NO_SHARD) all-reduces each unit's gradient."""
    layers = [unit for unit in units if unit.name.startswith("layers.")]
    root = sum(_elements(unit) for unit in units if unit not in layers)
    yield GeneralItem(comm_type=EPOCH_END)
    for _ in range(options.epochs):
        for _ in range(options.num_micro):
            yield from _forward(units, layers, root, options)
            yield from _backward(units, layers, root, options)
        if options.ranks > 1:
            yield options.scalar(4, "step.grad_norm")
        yield GeneralItem(comm_type=EPOCH_END)


def _elements(unit: Unit) -> int:
    return sum(module.elements for module in unit.modules)


def _moved(kind: str, elements: int, stage: str, options: ZeroOptions) -> Iterator[GeneralItem]:
    if options.ranks > 1:
        yield options.comm(kind, options.padded(elements), stage)


def _forward(
    units: tuple[Unit, ...], layers: list[Unit], root: int, options: ZeroOptions
) -> Iterator[GeneralItem]:
    gathers = options.stage >= 2
    if gathers:
        yield from _moved("all_gather", root, "forward.root", options)
    for unit in units:
        if gathers and unit in layers:
            yield from _moved("all_gather", _elements(unit), f"forward.{unit.name}", options)
        for module in unit.modules:
            yield from options.products(module, "forward")


def _backward(
    units: tuple[Unit, ...], layers: list[Unit], root: int, options: ZeroOptions
) -> Iterator[GeneralItem]:
    reduction = "reduce_scatter" if options.stage >= 2 else "all_reduce"
    for unit in reversed(units):
        inner = unit in layers
        if options.stage == 3 and inner:
            yield from _moved("all_gather", _elements(unit), f"backward.{unit.name}", options)
        for module in reversed(unit.modules):
            yield from options.products(module, "backward")
        if inner:
            yield from _moved(reduction, _elements(unit), f"backward.{unit.name}", options)
    yield from _moved(reduction, root, "backward.root", options)
