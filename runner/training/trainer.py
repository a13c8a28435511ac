"""Training of one plan: layers cut over tp by DTensor plans, as Megatron-LM cuts them (arXiv 1909.08053 sec. 3), with the tokens between them
cut as well under sequence parallelism (arXiv 2205.05198 sec. 4.2.2).

Experts stay whole: tokens go to them by all-to-all.
"""

import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from ops.layout import Layout
from ops.recompute import Recompute
from runner.reference.layers import FeedForward, SelfAttention, core_of, regathering
from runner.reference.transformer import Block, BlockContext, RoutedFeedForward, Share, Stage, stage_of
from runner.training.data_parallel import Copies, LocalOptimizer, Meshes, Sum, add_up, meshes_of, place
from runner.training.pipeline import OneAfterAnother, Pipeline, layers_of, pipeline_of, shares_of
from solver.plans.plan_table import Plan
from spec.model import ModelSpec

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


def _feed_forward_plan(name: str, half: FeedForward, *, sequence: bool, regather: bool) -> dict[str, ParallelStyle]:
    inner = ("up",) if half.gate is None else ("gate", "up")
    plan = _columns(name, inner, sequence=sequence, regather=regather)
    plan[f"{name}.down"] = RowwiseParallel(output_layouts=TOKENS if sequence else Replicate())
    return plan


def _columns(name: str, linears: tuple[str, ...], *, sequence: bool, regather: bool) -> dict[str, ParallelStyle]:
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


# Synthetic tokens: the same for a sequence of a step whatever the plan.


def sequences_of(plan: Plan, data_rank: int) -> range:
    """The sequences of a step's global batch, by number, that a data-parallel rank trains on."""
    own = plan.num_micro * plan.micro_batch
    return range(data_rank * own, (data_rank + 1) * own)


def step_tokens(step: int, sequences: range, seq_len: int, vocab: int) -> Tensor:
    """[sequences, seq_len + 1] on the host; token t + 1 is what token t should foretell."""
    rows = []
    for sequence in sequences:
        seed = zlib.crc32(f"{step}.{sequence}".encode())
        generator = torch.Generator().manual_seed(seed)
        rows.append(torch.randint(vocab, (seq_len + 1,), generator=generator))
    return torch.stack(rows)


# A plan put together: stages with their weights, cut and copied, a schedule and an optimizer.


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training: model, plan, formats in which layers compute and gradients of FSDP2 are reduced, how sequences cut
    over cp meet ("all_gather" or "all_to_all"), whether blocks are compiled."""

    model: ModelSpec
    plan: Plan
    seq_len: int
    compute: torch.dtype = torch.float32
    reduce: torch.dtype = torch.float32
    context_parallel: str = "all_gather"
    compiled: bool = False

    @property
    def tokens_cut(self) -> bool:
        """True if tokens are cut over tp between the linears."""
        layout = Layout.of(self.plan.tp, tp=self.plan.tp)
        return int(self.plan.sharding.norm_shards(layout)[0]) > 1

    @property
    def regathers(self) -> bool:
        """True if products keep this rank's tokens for the backward, and not those of all."""
        layout = Layout.of(self.plan.tp, tp=self.plan.tp)
        return int(self.plan.sharding.saved_input_shards(layout)[0]) > 1


class Trainer:
    """This rank's part of a training. Every rank of the world makes one."""

    def __init__(self, training: Training, device: torch.device) -> None:
        self.training, self.device = training, device
        plan = training.plan
        self.meshes: Meshes = meshes_of(plan, device.type)
        copies = Copies(plan=plan, meshes=self.meshes, compute=training.compute, reduce=training.reduce)
        core = core_of(training.context_parallel, self.meshes.cp)
        self.positions = core.positions(training.seq_len)
        around = BlockContext(
            core=core,
            experts=self.meshes.experts,
            positions=self.positions.to(device),
            device=device,
            dtype=torch.float32 if copies.sharded else training.compute,
        )
        layers = layers_of(plan, training.model.num_layers)
        shares = shares_of(plan, self.meshes.stage, layers)
        self.stages: list[Stage] = [self._stage(share, around, copies) for share in shares]
        modules = [copies.wrap(stage) for stage in self.stages]
        self.sums: list[Sum] = [each for stage in self.stages for each in copies.sums(stage)]
        self.parameters = [each for stage in self.stages for each in stage.parameters()]
        states = [each for stage in self.stages for each in copies.states(stage)]
        self.optimizers = [LocalOptimizer(held.parameters, held.group) for held in states if held.parameters]
        self.work: OneAfterAnother | Pipeline = self._work(modules)

    def _stage(self, share: Share, around: BlockContext, copies: Copies) -> Stage:
        plan = self.training.plan
        before_head: list[nn.Module] = []

        def cut(name: str, part: nn.Module) -> None:
            if plan.tp > 1:
                sequence, regather = self.training.tokens_cut, self.training.regathers
                cut_over_tp(name, part, self.meshes.axis("tp"), sequence=sequence, regather=regather)
            if self.training.compiled and isinstance(part, Block):
                part.compile()
            if name == "norm":
                before_head.append(part)
            else:
                copies.shard_parts(*before_head, part)

        stage = stage_of(self.training.model, share, around, cut)
        repeat(stage, plan)
        return stage

    def _work(self, modules: Sequence[nn.Module]) -> OneAfterAnother | Pipeline:
        plan = self.training.plan
        if self.meshes.pp is None:
            return OneAfterAnother(module=modules[0], num_micro=plan.num_micro, loss=self.loss)
        return pipeline_of(modules, plan, self.meshes.stage, self.meshes.pp, self.loss)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A micro-batch's share of the mean cross entropy of this rank's tokens; logits are cut over tp."""
        if self.meshes.tp is not None:
            logits = DTensor.from_local(logits, self.meshes.axis("tp"), [Shard(-1)], run_check=False)
        entropy = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        entropy = entropy.to_local() if isinstance(entropy, DTensor) else entropy
        return entropy / self.training.plan.num_micro

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of this rank in a step, [sequences, tokens]."""
        training = self.training
        sequences = sequences_of(training.plan, self.meshes.data_rank)
        tokens = step_tokens(step, sequences, training.seq_len, training.model.vocab)
        return tokens[:, self.positions].to(self.device), tokens[:, self.positions + 1].to(self.device)

    def gradients(self, tokens: Tensor, targets: Tensor) -> None:
        """Forward and backward of all micro-batches, and what the copies add up."""
        with loss_parallel() if self.meshes.tp is not None else nullcontext():
            self.work.run(tokens, targets)
        place(self.parameters)
        add_up(self.sums)

    def step(self, tokens: Tensor, targets: Tensor) -> None:
        """A whole training step."""
        self.gradients(tokens, targets)
        self.update()

    def update(self) -> None:
        """The optimizers' part of it."""
        for optimizer in self.optimizers:
            optimizer.step()

    def loss_share(self) -> float:
        """Share of this rank in the mean loss of the step's global batch: the sum over all ranks is that loss."""
        plan = self.training.plan
        return sum(float(loss) for loss in self.work.losses) / (plan.tp * plan.cp * plan.dp)


def repeat(stage: Stage, plan: Plan) -> None:
    """Mark the layers that are recomputed in the backward."""
    blocks = [block for block in stage.blocks.values() if isinstance(block, Block)]
    if plan.recompute is Recompute.SELECTIVE:
        for module in stage.modules():
            if isinstance(module, SelfAttention):
                module.repeats_core = True
    elif plan.recompute is not Recompute.NONE:
        count = plan.num_recompute_layers if plan.recompute is Recompute.BLOCK else len(blocks)
        for block in blocks[:count]:
            block.runs_again = True
