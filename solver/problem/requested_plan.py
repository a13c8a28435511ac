"""A plan from the user's settings: those of a config, or of --plan tp=8,pp=4,..."""

from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from ops.context import Sharding
from ops.layout import Layout, ranks_and_stride
from ops.recompute import Recompute
from ops.strategies import strategy_named
from solver.plans.plan_columns import plan_columns
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.rules import EQUAL_INSTEAD, RULES, UNCUT, UNEVEN_CHUNKS, WITHOUT_ORDER, Rule
from solver.plans.schedules import SCHEDULES, Schedule
from spec.cluster.cluster import HOST_NEEDED
from spec.errors import ConfigError
from spec.pipeline_layout import LayerCounts, full_layout, layout_of_model
from spec.settings.plan import PlanSettings, plan_option_settings
from spec.settings.setting import parse_settings

if TYPE_CHECKING:
    from solver.problem.problem import Problem


def parse_plan(text: str, where: str = "--plan") -> PlanSettings:
    """Returns the settings in ``strategy=msp,tp=8,pp=2,micro_batch=1``.

    Raises ConfigError for an empty plan, an unknown or repeated key, or a value that the key does not take.
    """
    return PlanSettings(**parse_settings(text, plan_option_settings(), where))


def plan_of(settings: PlanSettings, problem: "Problem", where: str) -> Plan:
    """Returns the plan of the settings, with what the framework would run for open ones and the batch of the job.

    Raises ConfigError when the degrees do not divide the world or the batch.
    """
    job = problem.job
    tp, pp, cp = settings.tp or 1, settings.pp or 1, settings.cp
    split = tp * pp * cp
    if job.world_size % split:
        raise ConfigError(where, "tensor x pipeline x context", split, f"a divisor of the world size {job.world_size}")
    dp = job.world_size // split
    micro_batch = settings.micro_batch or 1
    if job.global_batch_sequences % (dp * micro_batch):
        raise ConfigError(
            where,
            "micro_batch",
            micro_batch,
            f"the global batch of {job.global_batch_sequences} sequences must be a multiple of "
            f"dp {dp} x micro_batch {micro_batch}",
        )
    preset = job.preset
    if settings.strategy is None and tp > 1:
        settings = replace(settings, strategy=preset.tensor_parallel.default_strategy)
    if settings.zero_stage is None and settings.zero_size is None:
        settings = replace(settings, zero_stage=preset.data_parallel.default_zero_stage)
    sharding = strategy_of(settings, where)
    zero_stage, zero_size = zero_of(settings, sharding, job.world_size, where)
    offloads = settings.optimizer_offload or settings.offloaded_layers or settings.offload_modules
    if offloads and problem.cluster.host is None:
        raise ConfigError("--cluster", "host", problem.cluster.name, HOST_NEEDED)
    # A number of layers means full recomputation of that many in each chunk (Recompute.BLOCK).
    partial = bool(settings.recompute_layers)
    recompute = settings.recompute or ("full" if partial else "none")
    if partial and recompute != "full":
        raise ConfigError(where, "recompute_layers", settings.recompute_layers, "with recompute=full")
    schedule = settings.schedule or Schedule.ONE_F_ONE_B.value
    if schedule not in SCHEDULES:
        raise ConfigError(where, "schedule", schedule, f"one of {', '.join(Schedule)}")
    return Plan(
        strategy=sharding.name,
        preset=job.preset.name,
        recompute=Recompute.BLOCK if partial else Recompute(recompute),
        num_recompute_layers=settings.recompute_layers or 0,
        schedule=SCHEDULES[schedule],
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=settings.vpp,
        ep=1 if settings.ep is None else _expert_ranks(settings.ep, problem, tp * cp * dp, where),
        etp=settings.etp or 1,
        dp=dp,
        wp=settings.wp or 1,
        zero_stage=zero_stage,
        zero_size=zero_size,
        micro_batch=micro_batch,
        num_micro=job.global_batch_sequences // (dp * micro_batch),
        recompute_modules=settings.recompute_modules,
        stage_layout=_layout(settings.layout, settings, problem, where) if settings.layout else "",
        optimizer_offload=settings.optimizer_offload,
        offloaded_layers=settings.offloaded_layers,
        offload_modules=settings.offload_modules,
    )


def check_order(plan: Plan, problem: "Problem", where: str) -> None:
    """Raises ConfigError for a schedule that has no order of work on the plan's stages, and so no time."""
    if plan.pp * plan.vpp == 1:
        return
    draft = plan_columns(problem.model, problem.job, problem.cluster, PlanTable.of(plan))
    for rule in RULES:
        if rule.reason in WITHOUT_ORDER and not np.all(rule.keep(draft)):
            raise ConfigError(where, "schedule", plan.schedule.value, rule.reason)


def _layout(layout: str, settings: PlanSettings, problem: "Problem", where: str) -> str:
    """Returns the full layout of a layout or one of its short forms."""
    model = problem.model
    predictions = sum(run.count for run in model.blocks if run.block.mtp)
    counts = LayerCounts(layers=model.num_layers, pp=settings.pp or 1, vpp=settings.vpp, predictions=predictions)
    text = full_layout(layout, counts, where=where)
    layout_of_model(text, layers=counts.layers, stages=counts.pp * counts.vpp, where=where)
    return text


def strategy_of(settings: PlanSettings, where: str, *, sequence_parallel: bool = False) -> Sharding:
    """Returns the strategy; ``sequence_parallel`` requires that it splits the tokens between the linears.

    Raises ConfigError for an unknown one, and for weight groups or sequence parallelism that it does not have.
    """
    sharding = strategy_named(settings.strategy or "mtp", where=where)
    groups, tp = settings.wp or 1, settings.tp or 1
    if groups > 1 and not sharding.traits.copies.has_weight_groups:
        raise ConfigError(where, "wp", groups, f"1 with strategy {sharding.name}")
    if sequence_parallel and np.any(Layout.of(tp, tp=tp).tp_if(sharding.traits.cuts_tokens) < tp):
        allowed = f"False with strategy {sharding.name}, which leaves the sequence whole"
        raise ConfigError(where, "sequence_parallel", True, allowed)
    return sharding


def _expert_ranks(ep: int, problem: "Problem", stage_ranks: int, where: str) -> int:
    """Returns ``ep``; 0 means as many ranks as experts and a stage's ranks allow.

    Raises ConfigError for more ranks than a stage has: there is no such group to price.
    """
    if ep > stage_ranks:
        raise ConfigError(where, "ep", ep, f"at most the {stage_ranks} ranks of a stage")
    experts = max((run.block.moe.num_experts for run in problem.model.blocks if run.block.moe), default=1)
    return ep or gcd(experts, stage_ranks)


def zero_of(settings: PlanSettings, sharding: Sharding, world_size: int, where: str) -> tuple[int, int]:
    """Returns ZeRO stage and size. Size 0 is the whole group of ranks with the same weights of linears; a stage without a
    size shards over all of it, a size without a stage is stage 1. If the group is one rank there is nothing to shard.

    Raises ConfigError for more ranks than hold the same weights: there is no such group to price.
    """
    copies = sharding.traits.copies
    degrees = {"tp": settings.tp or 1, "pp": settings.pp or 1, "cp": settings.cp, "wp": settings.wp or 1}
    ranks, _ = ranks_and_stride(copies.axes(copies.linear_owner)[0], Layout.of(world_size, **degrees))
    whole = int(ranks[0])
    size = settings.zero_size
    if size is None:
        size = whole if settings.zero_stage else 1
    size = size or whole
    if size > whole:
        allowed = f"at most the {whole} ranks that hold the same weights"
        raise ConfigError(where, "zero_size", size, allowed)
    stage = int(size > 1) if settings.zero_stage is None else settings.zero_stage
    return (0, 1) if whole == size == 1 else (stage, size)


def broken_rules(problem: "Problem", plan: Plan, also: tuple[Rule, ...] = ()) -> tuple[str, ...]:
    """Returns the reason of every rule that the plan breaks, of the search's and the ``also`` given ones; not memory."""
    draft = plan_columns(problem.model, problem.job, problem.cluster, PlanTable.of(plan))
    # A search skips plans that equal another one or are hardly ever best; given ones run all the same.
    exempt = {UNCUT, EQUAL_INSTEAD}
    if plan.stage_layout:
        exempt.add(UNEVEN_CHUNKS)
    rules = [rule for rule in (*RULES, *also) if rule.reason not in exempt and rule.applies(problem.job)]
    broken = [rule.reason for rule in rules if not np.all(rule.keep(draft))]
    bidirectional = not plan.schedule.placement.looped
    rounds = plan.vpp == 1 or plan.num_micro % plan.pp == 0 or bidirectional
    if plan.stage_layout and not ((problem.job.preset.pipeline.interleaves or bidirectional) and rounds):
        broken.append("a layout needs a framework with virtual chunks, and these rounds of pp micro-batches")
    if plan.strategy not in problem.job.preset.tensor_parallel.strategies:
        broken.insert(0, f"{problem.job.preset.name} does not run {plan.strategy}")
    return tuple(broken)
