"""Pricing one given plan: the one written in a config, or one typed as tp=8,pp=4,..."""

from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from ops.context import Sharding
from ops.layout import Layout, ranks_and_stride
from ops.recompute import Recompute
from ops.strategies import strategy_named
from solver.plans.draft import drafted
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.rules import EQUAL_INSTEAD, RULES, UNCUT, UNEVEN_CHUNKS, WITHOUT_ORDER, Rule
from solver.plans.schedules import Schedule, schedule_named
from spec.cluster.cluster import HOST_NEEDED
from spec.errors import ConfigError
from spec.pipeline_layout import Dealt, dealt_layout, written_layout
from spec.settings.plan import WrittenPlan, typed_plan_settings
from spec.settings.setting import typed_values

if TYPE_CHECKING:
    from solver.problem.problem import Problem


def parse_plan(text: str, where: str = "--plan") -> WrittenPlan:
    """``strategy=msp,tp=8,pp=2,micro_batch=1`` as a plan; keys left out are not set.

    Raises ConfigError for an empty plan, an unknown or repeated key, or a value that the key does not take.
    """
    return WrittenPlan(**typed_values(text, typed_plan_settings(), where))


def plan_of(written: WrittenPlan, problem: "Problem", where: str) -> Plan:
    """The plan a config writes, with the batch of the job.

    Raises ConfigError when the degrees do not divide the world or the batch.
    """
    job = problem.job
    tp, pp, cp = written.tp or 1, written.pp or 1, written.cp
    split = tp * pp * cp
    if job.world_size % split:
        raise ConfigError(
            where=where,
            key="tensor x pipeline x context",
            value=split,
            allowed=f"a divisor of the world size {job.world_size}",
        )
    dp = job.world_size // split
    micro_batch = written.micro_batch or 1
    if job.global_batch_sequences % (dp * micro_batch):
        raise ConfigError(
            where=where,
            key="micro_batch",
            value=micro_batch,
            allowed=f"the global batch of {job.global_batch_sequences} sequences must be a multiple of "
            f"dp {dp} x micro_batch {micro_batch}",
        )
    sharding = strategy_of(written, where)
    layout = Layout.of(job.world_size, tp=tp, pp=pp, cp=cp, wp=written.wp or 1)
    zero_stage, zero_size = _sharding(written, _copies(sharding, layout), where)
    waits = written.optimizer_offload or written.offloaded_layers or written.offload_modules
    if waits and problem.cluster.host is None:
        raise ConfigError(where="--cluster", key="host", value=problem.cluster.name, allowed=HOST_NEEDED)
    return Plan(
        strategy=sharding.name,
        preset=job.preset.name,
        recompute=_recompute(written, where),
        num_recompute_layers=written.recompute_layers or 0,
        schedule=_schedule(written.schedule or Schedule.ONE_F_ONE_B.value, where),
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=written.vpp,
        ep=_expert_ranks(written, problem, tp * cp * dp, where),
        etp=written.etp or 1,
        dp=dp,
        wp=written.wp or 1,
        zero_stage=zero_stage,
        zero_size=zero_size,
        micro_batch=micro_batch,
        num_micro=job.global_batch_sequences // (dp * micro_batch),
        recompute_modules=written.recompute_modules,
        stage_layout=_layout(written, problem, where),
        optimizer_offload=written.optimizer_offload,
        offloaded_layers=written.offloaded_layers,
        offload_modules=written.offload_modules,
    )


def check_order(plan: Plan, problem: "Problem", where: str) -> None:
    """Raises ConfigError for a schedule that has no order of work on the plan's stages, and so no time."""
    if plan.pp * plan.vpp == 1:
        return
    draft = drafted(problem.model, problem.job, problem.cluster, PlanTable.of(plan))
    for rule in RULES:
        if rule.reason in WITHOUT_ORDER and not np.all(rule.keep(draft)):
            raise ConfigError(where=where, key="schedule", value=plan.schedule.value, allowed=rule.reason)


def _layout(written: WrittenPlan, problem: "Problem", where: str) -> str:
    """The layout as written, its short forms written out; "" where there is none."""
    if not written.layout:
        return ""
    model = problem.model
    predicted = sum(run.count for run in model.blocks if run.block.mtp)
    dealt = Dealt(layers=model.num_layers, pp=written.pp or 1, vpp=written.vpp, predicted=predicted)
    text = written_layout(written.layout, dealt, where=where)
    dealt_layout(text, layers=dealt.layers, stages=dealt.pp * dealt.vpp, where=where)
    return text


def _copies(sharding: Sharding, layout: Layout) -> int:
    """Ranks that hold the same weights of linears."""
    copies = sharding.traits.copies
    ranks, _ = ranks_and_stride(copies.copy_axis(copies.linear_owner), layout)
    return int(ranks[0])


def strategy_of(written: WrittenPlan, where: str, *, sequence_parallel: bool = False) -> Sharding:
    """The strategy as written; ``sequence_parallel`` says that it is to cut the tokens between the linears.

    Raises ConfigError for one that nobody knows, and for weight groups or a cut sequence that it does not have.
    """
    sharding = strategy_named(written.strategy or "mtp", where=where)
    groups, tp = written.wp or 1, written.tp or 1
    if groups > 1 and not sharding.traits.copies.has_weight_groups:
        raise ConfigError(where=where, key="wp", value=groups, allowed=f"1 with strategy {sharding.name}")
    if sequence_parallel and np.any(sharding.norm_shards(Layout.of(tp, tp=tp)) < tp):
        allowed = f"False with strategy {sharding.name}, which leaves the sequence whole"
        raise ConfigError(where=where, key="sequence_parallel", value=True, allowed=allowed)
    return sharding


def _expert_ranks(written: WrittenPlan, problem: "Problem", stage_ranks: int, where: str) -> int:
    """ep as written; 0 means as many ranks as experts and a stage's ranks allow.

    Raises ConfigError for more ranks than a stage has: there is no such group to price.
    """
    if (written.ep or 1) > stage_ranks:
        raise ConfigError(
            where=where, key="ep", value=written.ep, allowed=f"at most the {stage_ranks} ranks of a stage"
        )
    if written.ep != 0:
        return written.ep or 1
    experts = max((run.block.moe.num_experts for run in problem.model.blocks if run.block.moe), default=1)
    return gcd(experts, stage_ranks)


def _sharding(written: WrittenPlan, whole: int, where: str) -> tuple[int, int]:
    """ZeRO stage and size as written. Size 0 is the ``whole`` group that holds the same weights of linears; a
    stage alone shards over all of it, a size alone is stage 1. Where the whole group is one rank there is
    nothing to shard.

    Raises ConfigError for more ranks than hold the same weights: there is no such group to price.
    """
    size = written.zero_size
    if size is None:
        size = whole if written.zero_stage else 1
    size = size or whole
    if size > whole:
        allowed = f"at most the {whole} ranks that hold the same weights"
        raise ConfigError(where=where, key="zero_size", value=size, allowed=allowed)
    stage = int(size > 1) if written.zero_stage is None else written.zero_stage
    return (0, 1) if whole == size == 1 else (stage, size)


def _recompute(written: WrittenPlan, where: str) -> Recompute:
    name = written.recompute or ("full" if written.recompute_layers else "none")
    if not written.recompute_layers:
        return Recompute(name)
    if name != "full":
        raise ConfigError(
            where=where, key="recompute_layers", value=written.recompute_layers, allowed="with recompute=full"
        )
    return Recompute.BLOCK


def _schedule(name: str, where: str) -> Schedule:
    if name not in set(Schedule):
        raise ConfigError(where=where, key="schedule", value=name, allowed=f"one of {', '.join(Schedule)}")
    return schedule_named(name)


def broken_rules(problem: "Problem", plan: Plan, also: tuple[Rule, ...] = ()) -> tuple[str, ...]:
    """Every rule of the search, and of those ``also`` held, that the plan breaks, besides memory."""
    draft = drafted(problem.model, problem.job, problem.cluster, PlanTable.of(plan))
    passed_over = {UNCUT, EQUAL_INSTEAD}
    if plan.stage_layout:
        passed_over.add(UNEVEN_CHUNKS)
    broken = [
        rule.reason
        for rule in (*RULES, *also)
        if rule.reason not in passed_over and not np.all(rule.keep(draft))
    ]
    turns = not plan.schedule.placement.looped
    rounds = plan.vpp == 1 or plan.num_micro % plan.pp == 0 or turns
    if plan.stage_layout and not ((problem.job.preset.pipeline.interleaves or turns) and rounds):
        broken.append("a layout needs a framework with virtual chunks, and these rounds of pp micro-batches")
    if plan.strategy not in problem.job.preset.tensor_parallel.strategies:
        broken.insert(0, f"{problem.job.preset.name} does not run {plan.strategy}")
    return tuple(broken)
