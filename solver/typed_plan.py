"""Pricing one given plan: the one written in a config, or one typed as tp=8,pp=4,..."""

from dataclasses import fields
from math import gcd

import numpy as np

from ops.recompute.layers import Recompute
from ops.recompute.modules import MODULES
from ops.strategies.registry import STRATEGIES, strategy_named
from solver.plans.plan_table import Plan
from solver.plans.rules import RULES, UNEVEN_CHUNKS, UNEVEN_LAYERS, Draft
from solver.question import Question
from solver.schedules.registry import Schedule, schedule_named
from spec.arrays import ints
from spec.errors import ConfigError
from spec.readers.config_file import WrittenPlan

PLAN_KEYS: dict[str, str] = {
    "strategy": f"one of {', '.join(STRATEGIES)}",
    "tp": "ranks",
    "pp": "ranks",
    "wp": "ranks",
    "ep": "ranks",
    "etp": "ranks, 1 unless said",
    "cp": "ranks",
    "vpp": "virtual chunks of a stage",
    "zero_stage": "0, 1, 2 or 3",
    "zero_size": "ranks, 0 for the whole data-parallel group",
    "micro_batch": "sequences",
    "recompute": "none, selective or full",
    "layout": "what each stage holds, such as Ett|tt|tL",
    "recompute_layers": "layers of every chunk of a stage, with recompute=full; all unless said",
    "recompute_modules": f"{', '.join(MODULES)}, joined by +",
    "optimizer_offload": "share of the optimizer on the host, 0 to 1",
    "offloaded_layers": "layers whose activations wait on the host",
    "schedule": "1f1b, zb-h1, zb-h2, zb-1p or zb-2p",
}
# 0 stands for a choice (ep, zero_size) or for no sharding (zero_stage); a degree of 0 means nothing.
ZERO_ALLOWED = frozenset({"ep", "zero_stage", "zero_size"})


def parse_plan(text: str) -> WrittenPlan:
    """``strategy=msp,tp=8,pp=2,micro_batch=1`` as a plan; keys left out are not set.

    Raises ConfigError for an empty plan, an unknown or repeated key, or a value that is no number or too small.
    """
    if not text.strip(" ,"):
        raise ConfigError(
            where="--plan",
            key="plan",
            value=text,
            allowed=f"key=value,... with keys of {', '.join(PLAN_KEYS)}",
        )
    numbers: dict[str, int] = {}
    words: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = entry.partition("=")
        key, value = key.strip(), value.strip()
        if key not in PLAN_KEYS or not value:
            raise ConfigError(
                where="--plan",
                key=key,
                value=value,
                allowed=f"key=value with a key of {', '.join(PLAN_KEYS)}",
            )
        if key in words or key in numbers:
            raise ConfigError(where="--plan", key=key, value=value, allowed="each key once")
        if key in ("strategy", "recompute", "recompute_modules", "schedule", "layout", "optimizer_offload"):
            words[key] = value
        elif value.isdecimal() and (int(value) or key in ZERO_ALLOWED):
            numbers[key] = int(value)
        else:
            least = 0 if key in ZERO_ALLOWED else 1
            allowed = f"a whole number of at least {least}: {PLAN_KEYS[key]}"
            raise ConfigError(where="--plan", key=key, value=value, allowed=allowed)
    return WrittenPlan(
        strategy=words.get("strategy"),
        recompute=words.get("recompute"),
        tp=numbers.get("tp"),
        pp=numbers.get("pp"),
        wp=numbers.get("wp"),
        ep=numbers.get("ep"),
        zero_size=numbers.get("zero_size"),
        micro_batch=numbers.get("micro_batch"),
        cp=numbers.get("cp", 1),
        vpp=numbers.get("vpp", 1),
        zero_stage=numbers.get("zero_stage"),
        stage_layout=words.get("layout", ""),
        etp=numbers.get("etp"),
        recompute_layers=numbers.get("recompute_layers"),
        recompute_modules=_modules(words.get("recompute_modules")),
        schedule=words.get("schedule"),
        optimizer_offload=_share(words.get("optimizer_offload", "0")),
        offloaded_layers=numbers.get("offloaded_layers", 0),
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        allowed = PLAN_KEYS["optimizer_offload"]
        raise ConfigError(where="--plan", key="optimizer_offload", value=text, allowed=allowed)
    return share


def _modules(text: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split("+")) if text is not None else ()
    for name in names:
        if name not in MODULES:
            raise ConfigError(
                where="--plan", key="recompute_modules", value=name, allowed=PLAN_KEYS["recompute_modules"]
            )
    return names


def plan_of(written: WrittenPlan, question: Question, where: str) -> Plan:
    """The plan a config writes, with the batch of the job.

    Raises ConfigError when the degrees do not divide the world or the batch.
    """
    job = question.job
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
    whole = job.world_size // (pp * (written.wp or 1)) if written.strategy == "isp" else dp * cp
    zero_stage, zero_size = _sharding(written, whole)
    return Plan(
        strategy=strategy_named(written.strategy or "mtp", where=where).name,
        preset=job.preset.name,
        recompute=_recompute(written, where),
        num_recompute_layers=written.recompute_layers or 0,
        schedule=_schedule(written.schedule or Schedule.ONE_F_ONE_B.value, where),
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=written.vpp,
        ep=_expert_ranks(written, question, tp * cp * dp, where),
        etp=written.etp or 1,
        dp=dp,
        wp=written.wp or 1,
        zero_stage=zero_stage,
        zero_size=zero_size,
        micro_batch=micro_batch,
        num_micro=job.global_batch_sequences // (dp * micro_batch),
        stage_layout=written.stage_layout,
    )


def _expert_ranks(written: WrittenPlan, question: Question, stage_ranks: int, where: str) -> int:
    """ep as written; 0 means as many ranks as experts and a stage's ranks allow.

    Raises ConfigError for more ranks than a stage has: there is no such group to price.
    """
    if (written.ep or 1) > stage_ranks:
        raise ConfigError(
            where=where, key="ep", value=written.ep, allowed=f"at most the {stage_ranks} ranks of a stage"
        )
    if written.ep != 0:
        return written.ep or 1
    experts = max((run.block.moe.num_experts for run in question.model.blocks if run.block.moe), default=1)
    return gcd(experts, stage_ranks)


def _sharding(written: WrittenPlan, whole: int) -> tuple[int, int]:
    """ZeRO stage and size as written. Size 0 is the ``whole`` group that holds the same weights (for isp the
    weight data-parallel ranks); a stage alone shards over all of it, a size alone is stage 1. Where the
    whole group is one rank there is nothing to shard."""
    size = written.zero_size
    if size is None:
        size = whole if written.zero_stage else 1
    size = size or whole
    stage = int(size > 1) if written.zero_stage is None else written.zero_stage
    return (0, 1) if whole == size == 1 else (stage, size)


def _recompute(written: WrittenPlan, where: str) -> Recompute:
    name = written.recompute or ("full" if written.recompute_layers else "none")
    if name not in ("none", "selective", "full"):
        raise ConfigError(where=where, key="recompute", value=name, allowed=PLAN_KEYS["recompute"])
    if not written.recompute_layers:
        return Recompute(name)
    if name != "full":
        raise ConfigError(
            where=where, key="recompute_layers", value=written.recompute_layers, allowed="with recompute=full"
        )
    return Recompute.BLOCK


def _schedule(name: str, where: str) -> Schedule:
    if name not in set(Schedule):
        raise ConfigError(where=where, key="schedule", value=name, allowed=PLAN_KEYS["schedule"])
    return schedule_named(name)


def broken_rules(question: Question, plan: Plan) -> tuple[str, ...]:
    """Every rule of the search that the plan breaks, besides memory."""
    columns = {
        field.name: ints(getattr(plan, field.name))
        for field in fields(Plan)
        if isinstance(getattr(plan, field.name), int)
    }
    draft = Draft(
        model=question.model,
        job=question.job,
        cluster=question.cluster,
        strategy=plan.strategy,
        columns=columns,
        recompute=plan.recompute,
        schedule=plan.schedule,
    )
    passed_over = {"the same plan as mtp when nothing is cut"}
    if plan.stage_layout:
        passed_over |= {UNEVEN_LAYERS, UNEVEN_CHUNKS}
    broken = [
        rule.reason for rule in RULES if rule.reason not in passed_over and not np.all(rule.keep(draft))
    ]
    rounds = plan.vpp == 1 or plan.num_micro % plan.pp == 0
    if plan.stage_layout and not (question.job.preset.pipeline.interleaves and rounds):
        broken.append("a layout needs a framework with virtual chunks, and these rounds of pp micro-batches")
    if plan.strategy not in question.job.preset.tensor_parallel.strategies:
        broken.insert(0, f"{question.job.preset.name} does not run {plan.strategy}")
    return tuple(broken)
