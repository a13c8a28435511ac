"""A plan typed with the dp that follows from its other degrees: ``tp=2,dp=2``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from solver.plans.plan_table import Plan
from solver.problem.typed_plan import parse_plan
from spec.errors import ConfigError
from spec.settings.plan import WrittenPlan
from workload.aicb.csv_workload import Arguments
from workload.traffic.ranks import DEFAULT_ORDER, RankOrder, rank_groups

DP = re.compile(r"dp=([1-9][0-9]{0,6})")
PLAN = "--plan"


def plan_and_dp(text: str) -> tuple[WrittenPlan, int | None]:
    """The plan, and the dp that was typed with it (None: not said).

    Raises ConfigError for a dp that is no number or said twice, and as parse_plan.
    """
    words = [word.strip() for word in text.split(",")]
    said = [word for word in words if word.startswith("dp=")]
    if not said:
        return parse_plan(text), None
    result = DP.fullmatch(said[0])
    if result is None or len(said) > 1:
        raise ConfigError(where=PLAN, key="dp", value=",".join(said), allowed="dp=N once, a whole number")
    rest = ",".join(word for word in words if word not in said)
    return (parse_plan(rest) if rest else WrittenPlan()), int(result[1])


def check_dp(plan: Plan, dp: int | None) -> None:
    """Raise ConfigError where the typed dp is not that of the plan."""
    if dp is not None and plan.dp != dp:
        split = f"tp {plan.tp} x pp {plan.pp} x cp {plan.cp}"
        allowed = f"{plan.dp}, what {split} leave of {plan.world_size} processes"
        raise ConfigError(where=PLAN, key="dp", value=dp, allowed=allowed)


# The degrees of a run: what a workload's arguments say, or what was typed.

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
    """Ranks along each axis; world = tp x cp x dp x pp. ``etp`` cuts experts, whose grid is etp x ep x edp over a
    stage's ranks (arXiv 2504.14960 sec. 3.2); ``wp`` are isp's weight groups. ``order`` as RankGenerator's."""

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
        """The grid of everything but experts."""
        return RankOrder(tp=self.tp, cp=self.cp, dp=self.dp, pp=self.pp, order=self.order)

    @property
    def expert(self) -> RankOrder:
        """The grid of experts. Raises ConfigError when ep x etp does not divide a stage."""
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
        shown = [f"{name} {getattr(self, name)}" for name in ("tp", "cp", "dp", "pp") if getattr(self, name) > 1]
        return " x ".join(shown) or "one rank"


def degrees_of(arguments: Arguments, typed: Mapping[str, int | None], world: int, order: str) -> Degrees:
    """The degrees for ``world`` ranks: typed ones beat those in a workload's arguments; what neither says is 1, and dp
    is the rest. Experts are cut by tp unless etp says otherwise, as Megatron-LM does.

    Raises ConfigError for a workload of another number of ranks, and for degrees that do not divide them.
    """
    result = {name: typed.get(name) or _number(arguments, key) or 1 for name, key in NAMES.items()}
    if not (typed.get("etp") or _number(arguments, NAMES["etp"])):
        result["etp"] = result["tp"] if result["ep"] > 1 else 1
    split = result["tp"] * result["cp"] * result["pp"]
    wanted = workload_ranks(arguments)
    if wanted is not None and wanted != world:
        more = "start as many (torchrun --nproc-per-node)" if wanted > world else "start no more than that"
        raise ConfigError(
            where="run", key="processes", value=world, allowed=f"{wanted}, the ranks of the workload: {more}"
        )
    if world % split:
        axes = f"tp {result['tp']} x cp {result['cp']} x pp {result['pp']}"
        raise ConfigError(where="run", key="processes", value=world, allowed=f"a multiple of {axes} = {split}")
    return Degrees(**result, dp=world // split, order=order)


def workload_ranks(arguments: Arguments) -> int | None:
    """The ranks that a workload's arguments speak of; None where they say nothing."""
    world = _number(arguments, "world_size")
    nodes, per_node = _number(arguments, "nnodes"), _number(arguments, "nproc_per_node")
    return world or (nodes * per_node if nodes and per_node else None)


def _number(arguments: Arguments, key: str) -> int | None:
    value = arguments.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
