"""Layers cut over tp by DTensor plans, as Megatron-LM cuts them (arXiv 1909.08053 sec. 3), with the tokens between them
cut as well under sequence parallelism (arXiv 2205.05198 sec. 4.2.2).

Experts stay whole: tokens go to them by all-to-all.
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from runner.reference.experts import RoutedFeedForward
from runner.reference.transformer import Block

TOKENS = Shard(1)


def cut_over_tp(name: str, part: nn.Module, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Cut one part of a stage; ``sequence`` cuts the tokens between layers too. No weight travels: every rank has
    filled the whole part alike."""
    plan: ParallelStyle | dict[str, ParallelStyle] | None
    if isinstance(part, Block):
        plan = block_plan(part, sequence=sequence)
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


def block_plan(block: Block, *, sequence: bool) -> dict[str, ParallelStyle]:
    """The first products of each half by column, its last by row."""
    between = TOKENS if sequence else Replicate()
    plan: dict[str, ParallelStyle] = {f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")}
    plan["attention.out"] = RowwiseParallel(output_layouts=between)
    if sequence:
        plan["attention_norm"] = plan["feed_forward_norm"] = SequenceParallel()
    plan["attention"] = _whole_tokens(sequence=sequence)
    if not isinstance(block.feed_forward, RoutedFeedForward):
        return plan | _feed_forward_plan("feed_forward", sequence=sequence)
    plan["feed_forward"] = PrepareModuleInput(
        input_layouts=(TOKENS,), desired_input_layouts=(TOKENS,), use_local_output=True
    )
    if block.feed_forward.shared is not None:
        plan |= _feed_forward_plan("feed_forward.shared", sequence=sequence)
    return plan


def _feed_forward_plan(name: str, *, sequence: bool) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {f"{name}.{inner}": ColwiseParallel() for inner in ("gate", "up")}
    plan[f"{name}.down"] = RowwiseParallel(output_layouts=TOKENS if sequence else Replicate())
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
