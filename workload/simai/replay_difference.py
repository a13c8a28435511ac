"""Why the replay of an exported file and the solver's step differ, line by line.

The file holds the operations of one stage, all waited for. The solver also knows what the format has no
word for, what overlap hides, what the host costs, and that stages differ.
"""

from dataclasses import dataclass

from solver.plans.plan_table import Plan, PlanTable
from solver.question import Question
from solver.search import price_plan
from workload.build import slowest, stage_works
from workload.simai.export import beyond_of, header_of, rows_of
from workload.simai.format import SimaiWorkload
from workload.simai.replay import ReplayReport, replay_simai

WAITS = ("tp_comm", "cp_comm", "ep_comm", "wp_comm", "dp_comm")
PIPELINE = ("pp_comm", "bubble")
HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``differences`` (seconds, solver less replay) sum to ``solver_s`` - ``replay.step_s``."""

    replay: ReplayReport
    solver_s: float
    differences: dict[str, float]

    def lines(self) -> list[str]:
        """The two figures and what lies between them, in ms."""
        rows = [("replay of the file", self.replay.step_s)]
        rows += [(name, seconds) for name, seconds in self.differences.items() if abs(seconds) > 5e-7]
        rows.append(("solver's step", self.solver_s))
        return [f"{name:<68}{seconds * 1e3:>12.3f} ms" for name, seconds in rows]


def compare(question: Question, plan: Plan) -> Comparison:
    """The plan's SimAI file against the solver's price of the plan."""
    answer = price_plan(question, PlanTable.of(plan))[0]
    work = slowest(stage_works(question, plan))
    header = header_of(plan, work)
    replay = replay_simai(SimaiWorkload(header=header, rows=rows_of(work, header, plan)), question.pricer)
    beyond = [one for one in beyond_of(work, header, plan) if one.axis != "pp"]
    beyond_s = sum(one.seconds for one in beyond)
    items = [(n * work.num_micro, item) for n, item in work.per_micro_batch()]
    items += [(1, item) for item in work.step]
    serial_s = sum(times * item.seconds for times, item in items if item.collective is not None)
    parts = answer.parts_s
    waits_s = sum(parts[part] for part in WAITS)
    pipeline_s = sum(parts[part] for part in PIPELINE)
    others_s = answer.step_s - waits_s - pipeline_s - parts[HOST]
    differences = {
        f"beyond the format: {one.what} ({one.collective} over {one.axis})": one.seconds for one in beyond
    }
    differences |= {
        "collectives placed otherwise by the file": serial_s - beyond_s - replay.communication_s,
        "hidden by overlap, or on another stage": waits_s - serial_s,
        "kernel launches": parts[HOST],
        "stages that differ, and their waiting": pipeline_s - replay.pp_s - replay.bubble_s,
        "compute of another stage": others_s - replay.compute_s,
    }
    return Comparison(replay=replay, solver_s=answer.step_s, differences=differences)
