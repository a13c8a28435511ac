"""Random models and plans, and the bytes that are priced for them, straight from the operations."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from ops.context import LayerContext
from ops.data_parallel.step import step_ops
from ops.layout import Layout, group_of, ranks_and_stride
from ops.op import Comm
from ops.recompute import Recompute
from ops.strategies import STRATEGIES
from solver.estimate import estimate_memory
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from spec.frameworks import framework_names, framework_preset
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, ModelSpec, MoeSpec
from tests.solver.questions import question, small_model

LATENT = AttentionSpec(
    kind=AttentionKind.MLA,
    num_heads=8,
    num_kv_heads=8,
    qk_dim=96,
    v_dim=64,
    rope_dim=32,
    q_lora_rank=128,
    kv_lora_rank=64,
)
EXPERTS = MoeSpec(num_experts=8, topk=2, expert_ffn_hidden=256, shared_ffn_hidden=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan of a question."""

    problem: Problem
    plan: Plan


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Grouped or multi-head or latent attention, dense or experts, or a dense layer first."""
    model = small_model(layers=8, kv_heads=draw(st.sampled_from([2, 4, 8])))
    block = model.blocks[0].block
    if draw(st.booleans()):
        block = replace(block, mixer=LATENT)
    tied = draw(st.booleans())
    kind = draw(st.sampled_from(["dense", "experts", "dense first"]))
    expert = replace(block, mlp=None, moe=EXPERTS)
    runs = {
        "dense": (BlockRun(block=block, count=8),),
        "experts": (BlockRun(block=expert, count=8),),
        "dense first": (BlockRun(block=block, count=1), BlockRun(block=expert, count=7)),
    }
    return replace(model, blocks=runs[kind], tied_embeddings=tied)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any strategy, ZeRO stage, recompute mode, virtual stages, expert and context degrees."""
    model = draw(models())
    strategy = draw(st.sampled_from(list(STRATEGIES)))
    tp, dp = (draw(st.sampled_from([1, 2, 4])) for _ in range(2))
    pp = draw(st.sampled_from([1, 2, 3, 4]))
    traits = STRATEGIES[strategy].traits
    isp = traits.copies.has_weight_groups
    pp = pp if traits.pipelined else 1
    cp = 1 if isp else draw(st.sampled_from([1, 2]))
    experts = any(run.block.moe for run in model.blocks)
    ep = draw(st.sampled_from([1, 2, 4])) if experts else 1
    etp = draw(st.sampled_from([1, tp])) if experts and traits.cuts_experts else 1
    if (tp * cp * dp) % (ep * etp):
        ep = etp = 1
    # 8 layers on 3 stages are uneven; chunks want whole layers each.
    vpp = draw(st.sampled_from([1, 2])) if pp in (2, 4) else 1
    deep = pp == 1 and not isp
    layout = Layout.of(tp * cp * dp * pp, tp=tp, cp=cp, pp=pp)
    wp = min(draw(st.sampled_from([1, 2, 4])), tp * dp) if isp else 1
    # Where weights are cut over wp, shards are of what holds the same weights (solver/plans/rules.py).
    copies = int(ranks_and_stride(traits.copies.dense, layout)[0][0]) // wp
    stage = draw(st.sampled_from([0, 1, 2, 3] if deep else [0, 1])) if copies > 1 else 0
    plan = Plan(
        strategy=strategy,
        preset="internevo",
        recompute=draw(st.sampled_from([Recompute.NONE, Recompute.FULL])),
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        ep=ep,
        etp=etp,
        dp=dp,
        wp=wp,
        zero_stage=stage,
        zero_size=copies if stage else 1,
        micro_batch=draw(st.sampled_from([1, 2])),
        num_micro=draw(st.sampled_from([4, 8])),
    )
    preset = framework_preset(draw(st.sampled_from(framework_names(legacy=True))))
    asked = question(
        model=model, world_size=plan.world_size, sequences=dp * plan.micro_batch * plan.num_micro, preset=preset
    )
    return Case(problem=asked, plan=plan)


def priced_bytes(case: Case, position: int) -> dict[tuple[str, str], int]:
    """Bytes of a step by collective and axis on one rank of the stage class at ``position``."""
    asked, plan = case.problem, case.plan
    table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
    row = int((table.stages.position == position).argmax())
    weights = [int(w[row]) for w in (*table.stages.layers, table.stages.embedding, table.stages.head)]
    domain = asked.op_timer.domain_ranks
    total: Counter[tuple[str, str]] = Counter()

    def add(op: object, layout: object, times: int) -> None:
        if isinstance(op, Comm) and group_of(op.axis, layout, domain).ranks[0] > 1:  # type: ignore[arg-type]
            launches = int(np.ravel(op.repeat)[0])
            total[(op.collective.value, op.axis.value)] += times * launches * int(np.ravel(op.size_bytes)[0])

    for piece, weight in zip(table.layers.pieces, weights, strict=True):
        for op in (*piece.forward, *piece.backward):
            add(op, table.layers.layout, plan.num_micro * weight)
    one = table.stages.plan[[row]]
    layout = table.plans.layout.take(one)
    several = table.plans.layout.pp[table.stages.plan] > 1
    tied = ((table.stages.embedding ^ table.stages.head) & several & asked.model.tied_embeddings)[[row]]
    context = LayerContext(sharding=plan.sharding, model=asked.model, job=asked.job, layout=layout)
    for op in step_ops(context, table.bytes.on_rank.take(one * 0 + row), tied):
        add(op, layout, 1)
    return {kind: size for kind, size in total.items() if size}
