"""A plan put together: stages with their weights, cut and copied, a schedule and an optimizer."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from ops.layout import Layout
from ops.recompute.layers import Recompute
from runner.reference.attention import SelfAttention
from runner.reference.context_parallel import core_of
from runner.reference.transformer import Block, Share, Stage, Surroundings, stage_of
from runner.training.data_parallel import Copies, Sum, add_up, place
from runner.training.meshes import Meshes, meshes_of
from runner.training.optimizer import LocalOptimizer
from runner.training.pipeline import OneAfterAnother, Pipelined, layers_of, pipelined, shares_of
from runner.training.tensor_parallel import cut_over_tp
from runner.training.tokens import sequences_of, step_tokens
from solver.plans.plan_table import Plan
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What to train and how: formats in which layers compute and gradients of FSDP2 are reduced, how sequences cut
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
        """Whether tokens are cut over tp between the linears."""
        layout = Layout.of(self.plan.tp, tp=self.plan.tp)
        return int(self.plan.sharding.norm_shards(layout)[0]) > 1

    @property
    def regathers(self) -> bool:
        """Whether products keep this rank's tokens for the backward, and not those of all."""
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
        around = Surroundings(
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
        self.work: OneAfterAnother | Pipelined = self._work(modules)

    def _stage(self, share: Share, around: Surroundings, copies: Copies) -> Stage:
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

    def _work(self, modules: Sequence[nn.Module]) -> OneAfterAnother | Pipelined:
        plan = self.training.plan
        if self.meshes.pp is None:
            return OneAfterAnother(module=modules[0], num_micro=plan.num_micro, loss=self.loss)
        return pipelined(modules, plan, self.meshes.stage, self.meshes.pp, self.loss)

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
        """What this rank adds to the mean loss of the step's global batch: the sum over all ranks is that loss."""
        plan = self.training.plan
        return sum(float(loss) for loss in self.work.losses) / (plan.tp * plan.cp * plan.dp)


def repeat(stage: Stage, plan: Plan) -> None:
    """Mark what runs again in the backward."""
    blocks = [block for block in stage.blocks.values() if isinstance(block, Block)]
    if plan.recompute is Recompute.SELECTIVE:
        for module in stage.modules():
            if isinstance(module, SelfAttention):
                module.repeats_core = True
    elif plan.recompute is not Recompute.NONE:
        count = plan.num_recompute_layers if plan.recompute is Recompute.BLOCK else len(blocks)
        for block in blocks[:count]:
            block.runs_again = True
