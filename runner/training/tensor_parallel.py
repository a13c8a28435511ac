"""Layers cut over tp by DTensor plans, as Megatron-LM cuts them (arXiv 1909.08053 sec. 3), with the tokens between them
cut as well under sequence parallelism (arXiv 2205.05198 sec. 4.2.2).

Experts stay whole: tokens go to them by all-to-all.
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from runner.reference.column_products import regathering
from runner.reference.experts import RoutedFeedForward
from runner.reference.feed_forward import FeedForward
from runner.reference.transformer import Block

TOKENS = Shard(1)


class RegatheredColumns(ParallelStyle):
    """The linears of these names by column; they keep this rank's tokens and gather the others' again in the backward
    (fsp). A module without a ``project`` is such a linear itself."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        project = regathering(device_mesh.get_group())
        for linear in [module.get_submodule(name) for name in self.names] or [module]:
            for name, held in list(linear.named_parameters(recurse=False)):
                cut = distribute_tensor(held.data, device_mesh, [Shard(0)], src_data_rank=None)
                linear.register_parameter(name, nn.Parameter(cut))
        if isinstance(module, nn.Linear):
            module.forward = lambda input: project(input, (module,))[0]  # type: ignore[method-assign]
        else:
            module.project = project  # type: ignore[assignment]
        return module


def cut_over_tp(name: str, part: nn.Module, mesh: DeviceMesh, *, sequence: bool, regather: bool) -> None:
    """Cut one part of a stage; ``sequence`` cuts the tokens between layers too, ``regather`` keeps the cut ones for the
    backward. No weight travels: every rank has filled the whole part alike."""
    plan: ParallelStyle | dict[str, ParallelStyle] | None
    if isinstance(part, Block):
        plan = block_plan(part, sequence=sequence, regather=regather)
    elif name == "head" and regather:
        plan = RegatheredColumns()
    else:
        plan = end_plan(name, sequence=sequence)
    if plan is not None:
        parallelize_module(part, mesh, plan, src_data_rank=None)


def end_plan(name: str, *, sequence: bool) -> ParallelStyle | None:
    """Embedding and head by vocabulary; the norm before the head as the tokens are."""
    between = TOKENS if sequence else Replicate()
    if name == "embedding":
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if name == "head":
        return ColwiseParallel(input_layouts=between)
    return SequenceParallel() if sequence else None


def block_plan(block: Block, *, sequence: bool, regather: bool) -> dict[str, ParallelStyle]:
    """The first products of each half by column, its last by row."""
    between = TOKENS if sequence else Replicate()
    plan = _columns("attention", ("q", "k", "v"), sequence=sequence, regather=regather)
    plan["attention.out"] = RowwiseParallel(output_layouts=between)
    if sequence:
        plan["attention_norm"] = plan["feed_forward_norm"] = SequenceParallel()
    half = block.feed_forward
    if isinstance(half, FeedForward):
        return plan | _feed_forward_plan("feed_forward", half, sequence=sequence, regather=regather)
    assert isinstance(half, RoutedFeedForward), "the other kind of a second half"
    plan["feed_forward"] = PrepareModuleInput(
        input_layouts=(TOKENS,), desired_input_layouts=(TOKENS,), use_local_output=True
    )
    if half.shared is not None:
        plan |= _feed_forward_plan("feed_forward.shared", half.shared, sequence=sequence, regather=regather)
    return plan


def _feed_forward_plan(
    name: str, half: FeedForward, *, sequence: bool, regather: bool
) -> dict[str, ParallelStyle]:
    inner = ("up",) if half.gate is None else ("gate", "up")
    plan = _columns(name, inner, sequence=sequence, regather=regather)
    plan[f"{name}.down"] = RowwiseParallel(output_layouts=TOKENS if sequence else Replicate())
    return plan


def _columns(
    name: str, linears: tuple[str, ...], *, sequence: bool, regather: bool
) -> dict[str, ParallelStyle]:
    """The first products of the half ``name``, on the tokens of all ranks."""
    if regather:
        return {name: RegatheredColumns(*linears)}
    plan: dict[str, ParallelStyle] = {f"{name}.{linear}": ColwiseParallel() for linear in linears}
    plan[name] = _whole_tokens(sequence=sequence)
    return plan


def _whole_tokens(*, sequence: bool) -> ParallelStyle:
    """Every rank's tokens at once. The products behind are handed one DTensor: their gradients add up on each rank, and
    one collective of the sum goes back instead of one for each product."""
    return PrepareModuleInput(
        input_layouts=(TOKENS if sequence else Replicate(),),
        desired_input_layouts=(Replicate(),),
        use_local_output=False,
    )
