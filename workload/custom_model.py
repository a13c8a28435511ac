"""Custom models: modules whose forward and backward are lists of work items.

A MockedModel has parameters and child modules, as AICB's has; ``forward()`` gives its items in order and
``backward()`` its items in reverse. Leaves come from a Workshop, which writes them with the same operations
and prices them with the same cost model as the solver, so a custom model is generated, priced and exported as any.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ops.block import block_ops, ends, mixer_half, second_half
from ops.context import LayerContext
from ops.data_parallel.offload import offload_parts
from ops.data_parallel.sliced_collectives import return_slices
from ops.data_parallel.step import RankParameters, step_ops
from ops.data_parallel.weight_sharding import shard_over_data
from ops.layout import Layout
from ops.linear import linear
from ops.memory_bound import norm, residual
from ops.mixers.registry import MIXERS
from ops.mlp_block import feed_forward
from ops.op import CpuOverhead, Linear, Op, Ops, Owner, Pass
from ops.roles import Module, Role
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from solver.times.stage_times import p2p_bytes
from spec.arrays import bools, ints
from spec.model import BlockSpec, MlpSpec
from workload.stage_work import PieceWork, StageWork, WorkItem, work_item

WorkItems = tuple[WorkItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MockedParam:
    """Elements of one rank: a shape, and whose copies they are (``expert`` for experts)."""

    name: str
    shape: tuple[int, ...]
    owner: Owner = Owner.DENSE

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class MockedModel:
    """Attributes that are MockedModels (or lists of them) are children, MockedParams are parameters.

    A subclass may override ``forward`` and ``backward``; by default children run in the order in which they
    were set, and backward from the last to the first.
    """

    name: str = ""

    def children(self) -> Iterator["MockedModel"]:
        """Child modules in the order in which they were set."""
        for value in vars(self).values():
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, MockedModel):
                    yield each

    def parameters(self) -> Iterator[MockedParam]:
        """Own parameters, then the children's."""
        for value in vars(self).values():
            if isinstance(value, MockedParam):
                yield value
        for child in self.children():
            yield from child.parameters()

    def forward(self) -> WorkItems:
        """Items of one micro-batch, first to last."""
        return tuple(item for child in self.children() for item in child.forward())

    def backward(self) -> WorkItems:
        """Items of its backward in the order they run."""
        return tuple(item for child in reversed(list(self.children())) for item in child.backward())


class MockedOps(MockedModel):
    """A leaf: operations of the op list, priced once."""

    def __init__(self, name: str, piece: Pass, items: tuple[WorkItems, WorkItems]) -> None:
        self.name = name
        self.items = items
        self.owned = tuple(
            MockedParam(name=op.name, shape=(int(np.ravel(op.parameters)[0]),), owner=op.owner)
            for op in piece.forward
            if np.any(op.parameters)
        )

    def parameters(self) -> Iterator[MockedParam]:
        """Elements of every operation that owns some."""
        yield from self.owned

    def forward(self) -> WorkItems:
        """Priced forward operations."""
        return self.items[0]

    def backward(self) -> WorkItems:
        """Priced backward operations."""
        return self.items[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Makes leaves for a plan of a problem; sizes are those of one rank under that plan."""

    problem: Problem
    plan: Plan

    @property
    def layout(self) -> Layout:
        """The degrees of the plan."""
        return PlanTable.of(self.plan).layout

    @property
    def context(self) -> LayerContext:
        """The context that a layer's operations are written from."""
        model, job = self.problem.model, self.problem.job
        return LayerContext(sharding=self.plan.sharding, model=model, job=job, layout=self.layout)

    def leaf(self, name: str, piece: Pass, module: Module = Module.OTHER) -> MockedOps:
        """Any operations as a module, its parameters gathered and reduced where ZeRO shards them."""
        whole = shard_over_data(self.context, piece, module, name)

        def items(ops: tuple[Op, ...]) -> WorkItems:
            return tuple(work_item(self.problem.op_timer, self.layout, op) for op in ops)

        return MockedOps(name, piece, (items(whole.forward), items(whole.backward)))

    def embedding(self) -> MockedOps:
        """Token embedding with the strategy's collective."""
        return self.leaf("embedding", ends(self.context, self.plan.recompute)[0], Module.EMBEDDING)

    def head(self) -> MockedOps:
        """Final norm, vocabulary projection and loss."""
        return self.leaf("head", ends(self.context, self.plan.recompute)[1], Module.HEAD)

    def block(self, block: BlockSpec) -> MockedOps:
        """A whole transformer block, with the plan's recomputation."""
        plan = self.plan
        layer = block_ops(self.context, block).apply_recompute(plan.recompute, plan.recompute_modules)
        layer = offload_parts(layer, self.plan.offload_modules)
        return self.leaf("block", layer, Module.LAYER)

    def mixer(self, block: BlockSpec) -> MockedOps:
        """Norm, what mixes the tokens, and residual of a block."""
        half = mixer_half(self.context, block)
        if block.mixer is None:
            raise ValueError("the block mixes no tokens")
        return self.leaf(block.mixer.name, half, MIXERS[type(block.mixer)].module)

    def feed_forward(self, block: BlockSpec) -> MockedOps:
        """Norm, MLP or experts, and residual of a block."""
        module = Module.MLP if block.moe is None else Module.MOE
        return self.leaf("feed_forward", second_half(self.context, block), module)

    def mlp(self, name: str, mlp: MlpSpec) -> MockedOps:
        """A feed-forward network alone, without norm and residual."""
        network = feed_forward(self.context, mlp, Module.OTHER)
        forward, backward = _labelled(network.forward, name), _labelled(network.backward, name)
        return self.leaf(name, Pass(forward=forward, backward=backward))

    def norm(self, name: str) -> MockedOps:
        """The model's normalisation of the hidden state."""
        return self.leaf(name, norm(self.context, Module.OTHER, self.context.norm_rows, name))

    def residual(self, name: str) -> MockedOps:
        """A branch added to the residual stream."""
        return self.leaf(name, residual(self.context, Module.OTHER, self.context.norm_rows, name))

    def linear(self, name: str, inputs: int, outputs: int) -> MockedOps:
        """A whole matrix on every rank (not cut over tp) over the rank's own tokens."""
        rows = self.context.norm_rows
        layer = Linear(
            module=Module.OTHER,
            role=Role.PROJECTION,
            name=name,
            tokens=rows,
            inputs=self.layout.constant(inputs),
            outputs=self.layout.constant(outputs),
            saved_bytes=self.context.activations(rows, inputs),
        )
        return self.leaf(name, linear(self.context, layer))

    def stage(self, model: MockedModel) -> StageWork:
        """The model as the one stage of a pipeline, with the optimizer step of its parameters.

        A plan with pp > 1 takes the model for one of its equal stages.
        """
        on_rank = self._held(model)
        ops = (
            *step_ops(self.context, on_rank, bools([False])),
            *return_slices(self.context, on_rank.total, ints(len(list(model.parameters())))),
        )
        # What the host does by itself is no work of a device.
        step = tuple(work_item(self.problem.op_timer, self.layout, op) for op in ops if not isinstance(op, CpuOverhead))
        # One piece a child, so that the rows of a file keep the order of the model.
        pieces = tuple(
            PieceWork(
                name=child.name if child.name in ("embedding", "head") else f"block{index}",
                repeat=1,
                forward=child.forward(),
                backward=child.backward(),
            )
            for index, child in enumerate(model.children())
        )
        if not pieces or _overridden(model):
            pieces = (PieceWork(name="block0", repeat=1, forward=model.forward(), backward=model.backward()),)
        deep = self.plan.pp > 1
        size = int(p2p_bytes(self.problem.model, self.problem.job, PlanTable.of(self.plan))[0])
        message = self.problem.op_timer.p2p(self.layout, ints(size))
        return StageWork(
            position=0,
            count=1,
            num_micro=self.plan.num_micro,
            pieces=pieces,
            step=tuple(item for item in step if item.collective is None or item.size_bytes),
            p2p_messages=2 if deep else 0,
            p2p_bytes=size if deep else 0,
            p2p_s=float(message.seconds[0]) if deep else 0.0,
        )

    def _held(self, model: MockedModel) -> RankParameters:
        total = {owner: sum(each.elements for each in model.parameters() if each.owner is owner) for owner in Owner}
        return RankParameters(
            dense=ints(total[Owner.DENSE]), weight=ints(total[Owner.WEIGHT]), expert=ints(total[Owner.EXPERT])
        )


class MockedTransformer(MockedModel):
    """Embedding, every block of the problem's model in order, head.

    GPT, Llama, Mixtral and DeepSeek are this over their ModelSpecs (configs/7B_gpt.toml, 7B_llama2.py,
    8x7B_mixtral.py, 671B_deepseek_v3.toml): they differ in their blocks alone.
    """

    def __init__(self, workshop: Workshop) -> None:
        self.name = workshop.problem.model.name
        self.embedding = workshop.embedding()
        kinds = [(workshop.block(run.block), run.count) for run in workshop.problem.model.blocks]
        self.layers = [block for block, count in kinds for _ in range(count)]
        self.head = workshop.head()


def _labelled(ops: Ops, name: str) -> Ops:
    """The same operations under another module's label."""
    return tuple(replace(op, name=name + op.name.removeprefix(op.module)) for op in ops)


def _overridden(model: MockedModel) -> bool:
    """True where the model orders its children itself."""
    kind = type(model)
    return kind.forward is not MockedModel.forward or kind.backward is not MockedModel.backward
