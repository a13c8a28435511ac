"""Training under one plan: the stages of this rank with their parallelism, the step, and the synthetic data.

Layers are sharded over tp by DTensor plans as in Megatron-LM (arXiv 1909.08053 sec. 3), tokens between them under
sequence parallelism as well (arXiv 2205.05198 sec. 4.2.2). Experts are not sharded over tp: tokens go to them by
all-to-all.
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
from runner.reference.layers import FeedForward, SelfAttention, core_of, regathered_columns
from runner.reference.transformer import Block, BlockContext, ModelSlice, RoutedFeedForward, Stage, stage_of
from runner.training.data_parallel import (
    DataParallelism,
    GradientSum,
    LocalOptimizer,
    Meshes,
    match_placements,
    meshes_of,
    reduce_gradients,
)
from runner.training.pipeline import PipelineExecutor, SequentialExecutor, layers_of, pipeline_executor, slices_of
from solver.plans.plan_table import Plan
from spec.model import ModelSpec

TOKENS = Shard(1)


class RegatheredColumns(ParallelStyle):
    """Shards the linears of these names by column; they save this rank's tokens alone and gather the others' again in
    the backward (fsp). Without names the module is such a linear itself."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        project = regathered_columns(device_mesh.get_group())
        for linear in [module.get_submodule(name) for name in self.names] or [module]:
            for name, weight in list(linear.named_parameters(recurse=False)):
                shard = distribute_tensor(weight.data, device_mesh, [Shard(0)], src_data_rank=None)
                linear.register_parameter(name, nn.Parameter(shard))
        if isinstance(module, nn.Linear):
            module.forward = lambda input: project(input, (module,))[0]  # type: ignore[method-assign]
        else:
            module.project = project  # type: ignore[assignment]
        return module


def shard_over_tp(name: str, part: nn.Module, mesh: DeviceMesh, *, sequence: bool, regather: bool) -> None:
    """Shard one part of a stage over tp; with ``sequence`` tokens between layers too, with ``regather`` the backward
    gathers them again. No weight is sent: every rank has filled the whole part with the same values."""
    style: ParallelStyle | dict[str, ParallelStyle] | None
    if isinstance(part, Block):
        style = block_plan(part, sequence=sequence, regather=regather)
    elif name == "head" and regather:
        style = RegatheredColumns()
    else:
        style = end_plan(name, sequence=sequence)
    if style is not None:
        parallelize_module(part, mesh, style, src_data_rank=None)


def end_plan(name: str, *, sequence: bool) -> ParallelStyle | None:
    """The style of a part outside the blocks: embedding and head sharded by vocabulary, the norm as its tokens are."""
    between = TOKENS if sequence else Replicate()
    if name == "embedding":
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if name == "head":
        return ColwiseParallel(input_layouts=between)
    return SequenceParallel() if sequence else None


def block_plan(block: Block, *, sequence: bool, regather: bool) -> dict[str, ParallelStyle]:
    """The styles of a block: the first linears of each half sharded by column, its last by row."""
    between = TOKENS if sequence else Replicate()
    plan = _columns("attention", ("q", "k", "v"), sequence=sequence, regather=regather)
    plan["attention.out"] = RowwiseParallel(output_layouts=between)
    if sequence:
        plan["attention_norm"] = plan["feed_forward_norm"] = SequenceParallel()
    half = block.feed_forward
    if isinstance(half, FeedForward):
        return plan | _feed_forward_plan("feed_forward", half, sequence=sequence, regather=regather)
    assert isinstance(half, RoutedFeedForward), "a block has one or the other"
    # The router and the dispatch work on this rank's tokens, as plain tensors.
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
    """The styles of the first linears of the half ``name``, which work on the tokens of all ranks."""
    if regather:
        return {name: RegatheredColumns(*linears)}
    plan: dict[str, ParallelStyle] = {f"{name}.{linear}": ColwiseParallel() for linear in linears}
    plan[name] = _whole_tokens(sequence=sequence)
    return plan


def _whole_tokens(*, sequence: bool) -> ParallelStyle:
    """The style that gathers all ranks' tokens. It passes on one DTensor, so that the input gradients of several linears
    are summed on each rank before a single collective."""
    return PrepareModuleInput(
        input_layouts=(TOKENS if sequence else Replicate(),),
        desired_input_layouts=(Replicate(),),
        use_local_output=False,
    )


# Synthetic data: a sequence of a step has the same tokens under every plan.


def sequences_of(plan: Plan, data_rank: int) -> range:
    """The sequences of a step's global batch, by number, that a data-parallel rank trains on."""
    own = plan.num_micro * plan.micro_batch
    return range(data_rank * own, (data_rank + 1) * own)


def step_tokens(step: int, sequences: range, seq_len: int, vocab: int) -> Tensor:
    """Tokens as [sequences, seq_len + 1] on the host; the target of token t is token t + 1."""
    rows = []
    for sequence in sequences:
        seed = zlib.crc32(f"{step}.{sequence}".encode())
        generator = torch.Generator().manual_seed(seed)
        rows.append(torch.randint(vocab, (seq_len + 1,), generator=generator))
    return torch.stack(rows)


# A rank's trainer: stages with their weights, sharded and replicated, a pipeline schedule, and an optimizer.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Everything that a trainer depends on: model, plan, the formats in which layers compute and FSDP2 reduces
    gradients, the communication of context parallelism ("all_gather" or "all_to_all"), and compilation of blocks."""

    model: ModelSpec
    plan: Plan
    seq_len: int
    compute: torch.dtype = torch.float32
    reduce: torch.dtype = torch.float32
    context_parallel: str = "all_gather"
    compiled: bool = False

    @property
    def tokens_sharded(self) -> bool:
        """True if tokens are sharded over tp between the linears."""
        layout = Layout.of(self.plan.tp, tp=self.plan.tp)
        return int(layout.tp_if(self.plan.sharding.traits.cuts_tokens)[0]) > 1

    @property
    def regathers(self) -> bool:
        """True if linears save this rank's tokens for the backward and not those of all ranks."""
        layout = Layout.of(self.plan.tp, tp=self.plan.tp)
        return int(layout.tp_if(self.plan.sharding.traits.saves_shards)[0]) > 1


class Trainer:
    """This rank's part of a training run. Every rank of the world makes one."""

    def __init__(self, training: TrainingConfig, device: torch.device) -> None:
        self.training, self.device = training, device
        plan = training.plan
        self.meshes: Meshes = meshes_of(plan, device.type)
        data_parallel = DataParallelism(plan=plan, meshes=self.meshes, compute=training.compute, reduce=training.reduce)
        core = core_of(training.context_parallel, self.meshes.cp)
        # This rank's tokens of each sequence; loss and rotary embedding follow from their positions.
        self.positions = core.positions(training.seq_len)
        context = BlockContext(
            core=core,
            experts=self.meshes.experts,
            positions=self.positions.to(device),
            device=device,
            dtype=torch.float32 if data_parallel.sharded else training.compute,
        )
        layers = layers_of(plan, training.model.num_layers)
        slices = slices_of(plan, self.meshes.stage, layers)
        self.stages: list[Stage] = [self._stage(model_slice, context, data_parallel) for model_slice in slices]
        modules = [data_parallel.wrap(stage) for stage in self.stages]
        self.gradient_sums: list[GradientSum] = [
            each for stage in self.stages for each in data_parallel.gradient_sums(stage)
        ]
        self.parameters = [each for stage in self.stages for each in stage.parameters()]
        shards = [each for stage in self.stages for each in data_parallel.optimizer_shards(stage)]
        self.optimizers = [LocalOptimizer(parameters, group) for parameters, group in shards if parameters]
        self.executor: SequentialExecutor | PipelineExecutor = self._make_executor(modules)

    def _stage(self, model_slice: ModelSlice, context: BlockContext, data_parallel: DataParallelism) -> Stage:
        plan = self.training.plan
        before_head: list[nn.Module] = []

        # Called for each part as soon as it has its weights: tensor parallelism first, then compilation, then FSDP2,
        # as torchtitan orders them. The norm waits for the head, with which it forms one unit of FSDP2.
        def shard(name: str, part: nn.Module) -> None:
            if plan.tp > 1:
                sequence, regather = self.training.tokens_sharded, self.training.regathers
                shard_over_tp(name, part, self.meshes.axis("tp"), sequence=sequence, regather=regather)
            if self.training.compiled and isinstance(part, Block):
                part.compile()
            if name == "norm":
                before_head.append(part)
            else:
                data_parallel.shard_parts(*before_head, part)

        stage = stage_of(self.training.model, model_slice, context, shard)
        apply_recompute(stage, plan)
        return stage

    def _make_executor(self, modules: Sequence[nn.Module]) -> SequentialExecutor | PipelineExecutor:
        plan = self.training.plan
        if self.meshes.pp is None:
            return SequentialExecutor(module=modules[0], num_micro=plan.num_micro, loss=self.loss)
        return pipeline_executor(modules, plan, self.meshes.stage, self.meshes.pp, self.loss)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross entropy of a micro-batch over the number of micro-batches."""
        # The head leaves logits sharded by vocabulary over tp; loss_parallel reduces over them without a gather.
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
        """Run forward and backward of all micro-batches, and reduce the gradients."""
        with loss_parallel() if self.meshes.tp is not None else nullcontext():
            self.executor.run(tokens, targets)
        match_placements(self.parameters)
        reduce_gradients(self.gradient_sums)

    def step(self, tokens: Tensor, targets: Tensor) -> None:
        """Run a whole training step."""
        self.gradients(tokens, targets)
        self.update()

    def update(self) -> None:
        """Run the optimizers."""
        for optimizer in self.optimizers:
            optimizer.step()

    def loss_share(self) -> float:
        """This rank's part of the mean loss of the global batch: the sum over all ranks is that loss."""
        plan = self.training.plan
        # Only the last stage has losses; the ranks of tp have the same ones, those of cp and dp their own tokens'.
        return sum(float(loss) for loss in self.executor.losses) / (plan.tp * plan.cp * plan.dp)


def apply_recompute(stage: Stage, plan: Plan) -> None:
    """Mark the layers, or attention cores, that are recomputed in the backward."""
    blocks = [block for block in stage.blocks.values() if isinstance(block, Block)]
    if plan.recompute is Recompute.SELECTIVE:
        for module in stage.modules():
            if isinstance(module, SelfAttention):
                module.recomputes_core = True
    elif plan.recompute is not Recompute.NONE:
        count = plan.num_recompute_layers if plan.recompute is Recompute.BLOCK else len(blocks)
        for block in blocks[:count]:
            block.recomputed = True
