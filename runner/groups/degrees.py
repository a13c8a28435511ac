"""Parallel degrees of a run: from a plan that may name dp (``tp=2,dp=2``), a workload's arguments, or options."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from solver.plans.plan_table import Plan
from solver.problem.requested_plan import parse_plan
from spec.errors import ConfigError
from spec.settings.plan import PlanSettings
from workload.aicb.csv_workload import Arguments
from workload.traffic.ranks import DEFAULT_ORDER, RankOrder, rank_groups

DP = re.compile(r"dp=([1-9][0-9]{0,6})")
PLAN = "--plan"


def plan_and_dp(text: str) -> tuple[PlanSettings, int | None]:
    """The plan of ``text`` and its dp, which other plans do not name as it follows from the world size; None if absent.

    Raises ConfigError for a dp that is not a number or given twice, and as parse_plan.
    """
    words = [word.strip() for word in text.split(",")]
    dp_words = [word for word in words if word.startswith("dp=")]
    if not dp_words:
        return parse_plan(text), None
    match = DP.fullmatch(dp_words[0])
    if match is None or len(dp_words) > 1:
        raise ConfigError(where=PLAN, key="dp", value=",".join(dp_words), allowed="dp=N once, a whole number")
    rest = ",".join(word for word in words if word not in dp_words)
    return (parse_plan(rest) if rest else PlanSettings()), int(match[1])


def check_dp(plan: Plan, dp: int | None) -> None:
    """Raise ConfigError if the requested dp is not that of the plan."""
    if dp is not None and plan.dp != dp:
        split = f"tp {plan.tp} x pp {plan.pp} x cp {plan.cp}"
        allowed = f"{plan.dp}, what {split} leave of {plan.world_size} processes"
        raise ConfigError(where=PLAN, key="dp", value=dp, allowed=allowed)


# The degrees of a run, from options or from a workload's arguments.

# Degree -> its name among AICB's arguments.
NAMES = {
    "tp": "tensor_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "pp": "pipeline_model_parallel",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Ranks along each axis; world = tp x cp x dp x pp. Experts have a grid of their own, etp x ep x edp over a stage's
    ranks (arXiv 2504.14960 sec. 3.2); ``wp`` is the size of isp's weight groups. ``order`` as RankGenerator's."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    pp: int = 1
    wp: int = 1
    order: str = DEFAULT_ORDER

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.stage_ranks * self.pp

    @property
    def dense(self) -> RankOrder:
        """The rank grid of everything but experts."""
        return RankOrder(tp=self.tp, cp=self.cp, dp=self.dp, pp=self.pp, order=self.order)

    @property
    def expert(self) -> RankOrder:
        """The rank grid of experts. Raises ConfigError when ep x etp does not divide a stage."""
        if self.stage_ranks % (self.ep * self.etp):
            raise ConfigError(
                where="run",
                key="ep x etp",
                value=self.ep * self.etp,
                allowed=f"a divisor of the {self.stage_ranks} ranks of a stage",
            )
        return RankOrder(tp=self.etp, ep=self.ep, dp=self.stage_ranks // self.etp, pp=self.pp, order=self.order)

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank."""
        return next(group.index(rank) for group in rank_groups(self.dense, "pp") if rank in group)

    def label(self) -> str:
        """``tp 2 x dp 4``."""
        axes = [f"{name} {getattr(self, name)}" for name in ("tp", "cp", "dp", "pp") if getattr(self, name) > 1]
        return " x ".join(axes) or "one rank"


def degrees_of(arguments: Arguments, requested: Mapping[str, int | None], world: int, order: str) -> Degrees:
    """The degrees for ``world`` ranks: requested ones take precedence over a workload's arguments, others are 1, and dp
    is the rest. etp is tp unless given, as in Megatron-LM.

    Raises ConfigError for a workload of another number of ranks, and for degrees that do not divide them.
    """
    degrees = {name: requested.get(name) or _number(arguments, key) or 1 for name, key in NAMES.items()}
    # Without experts etp stays 1, so that it cannot make the expert grid fail.
    if not (requested.get("etp") or _number(arguments, NAMES["etp"])):
        degrees["etp"] = degrees["tp"] if degrees["ep"] > 1 else 1
    split = degrees["tp"] * degrees["cp"] * degrees["pp"]
    ranks = workload_ranks(arguments)
    if ranks is not None and ranks != world:
        advice = "start as many (torchrun --nproc-per-node)" if ranks > world else "start no more than that"
        raise ConfigError(
            where="run", key="processes", value=world, allowed=f"{ranks}, the ranks of the workload: {advice}"
        )
    if world % split:
        axes = f"tp {degrees['tp']} x cp {degrees['cp']} x pp {degrees['pp']}"
        raise ConfigError(where="run", key="processes", value=world, allowed=f"a multiple of {axes} = {split}")
    return Degrees(**degrees, dp=world // split, order=order)


def workload_ranks(arguments: Arguments) -> int | None:
    """The ranks of a workload by its arguments; None if they do not give them."""
    world = _number(arguments, "world_size")
    nodes, per_node = _number(arguments, "nnodes"), _number(arguments, "nproc_per_node")
    return world or (nodes * per_node if nodes and per_node else None)


def _number(arguments: Arguments, key: str) -> int | None:
    value = arguments.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
