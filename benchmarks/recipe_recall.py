"""Recall of hand-tuned recipes: does the solver find the plans that a framework's own engineers tuned?

    python benchmarks/recipe_recall.py --recipes FILE [--precision bf16] [--one_each] [--accepted_only] [--json FILE]

FILE is a CSV file with a recipe per row: model, GPU, job settings and plan (no times). For each recipe that is tuned for
pre-training on a GPU with a hardware spec, under its own settings: can the solver express it, does it fit and break no
rule (accepted), what is its rank among the TOP plans of a search, and how much slower is it than the fastest? Without
FILE the script says so and exits with 0.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.recipes import SPECS, TunedRecipe, problem_of, read_recipes, recipe_plan  # noqa: E402
from solver.memory.device import usable_bytes  # noqa: E402
from solver.plans.plan_table import Plan, PlanTable  # noqa: E402
from solver.plans.space import full_space  # noqa: E402
from solver.problem.price import price_plan  # noqa: E402
from solver.problem.problem import Problem  # noqa: E402
from solver.problem.requested_plan import broken_rules  # noqa: E402
from solver.search import search  # noqa: E402
from spec.cluster.reader import read_cluster  # noqa: E402
from spec.errors import NoFeasiblePlanError, UserError  # noqa: E402
from spec.program.command import exit_status  # noqa: E402
from spec.units import GIB  # noqa: E402

TOP = 10
NEAR, FAR = 2.0, 10.0  # percent behind the winner


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """The result for one recipe. ``rank`` is 1 for the fastest plan, None beyond the TOP; ``behind_percent`` is how much
    slower than the fastest plan (the winner) it is predicted; ``cpu_s`` are CPU seconds of the search."""

    recipe: str
    expressed: bool
    accepted: bool = False
    reason: str = ""
    needed_gib: float | None = None
    usable_gib: float | None = None
    step_s: float | None = None
    rank: int | None = None
    behind_percent: float | None = None
    winner: str = ""
    winner_gib: float | None = None
    parts_s: dict[str, float] | None = None
    winner_parts_s: dict[str, float] | None = None
    cpu_s: float | None = None


def recall(recipe: TunedRecipe, *, ranked: bool) -> Recall:
    """The result for one recipe; ``ranked`` searches its space as well."""
    try:
        problem = problem_of(recipe, read_cluster(SPECS[recipe.text("gpu")], root=ROOT))
        plan = recipe_plan(recipe, problem)
        (answer,) = price_plan(problem, PlanTable.of(plan))
    except UserError as error:
        return Recall(recipe=recipe.name, expressed=False, reason=str(error))
    usable = usable_bytes(problem.cluster)
    broken = broken_rules(problem, plan)
    fits = answer.needed_bytes <= usable
    reason = "; ".join((*broken, *(() if fits else ("does not fit in memory",))))
    result = Recall(
        recipe=recipe.name,
        expressed=True,
        accepted=not reason,
        reason=reason,
        needed_gib=answer.needed_bytes / GIB,
        usable_gib=usable / GIB,
        step_s=answer.step_s,
        parts_s=answer.parts_s,
    )
    return _with_rank(result, problem, plan) if ranked and result.accepted else result


def _with_rank(result: Recall, problem: Problem, plan: Plan) -> Recall:
    """The result with the recipe's rank among the searched plans."""
    began = time.process_time()
    try:
        best = search(problem, full_space(problem.model, problem.job), top_k=TOP).best
    except NoFeasiblePlanError:
        best = ()
    assert result.step_s is not None
    faster = [one for one in best if one.step_s < result.step_s and one.plan != plan]
    fastest = min([result.step_s, *(one.step_s for one in faster)])
    behind = 100.0 * (result.step_s / fastest - 1.0)
    values = asdict(result) | {
        "rank": len(faster) + 1 if len(faster) < TOP else None,
        "behind_percent": behind,
        "winner": faster[0].plan.label() if faster else plan.label(),
        "winner_gib": faster[0].needed_bytes / GIB if faster else result.needed_gib,
        "winner_parts_s": faster[0].parts_s if faster else result.parts_s,
        "cpu_s": time.process_time() - began,
    }
    return Recall(**values)


def lines(recalls: Sequence[Recall]) -> list[str]:
    """A line for each recipe, and the shares."""
    lines = [f"{'recipe':60s} {'needs':>7s} {'of':>6s} {'rank':>5s} {'behind %':>8s}  what"]
    for one in recalls:
        needs = f"{one.needed_gib:7.1f} {one.usable_gib:6.1f}" if one.needed_gib is not None else " " * 14
        rank = f"{one.rank:5d}" if one.rank is not None else "    -"
        behind = f"{one.behind_percent:8.1f}" if one.behind_percent is not None else "       -"
        what = one.winner if one.accepted else one.reason
        state = "" if one.accepted else ("refused: " if one.expressed else "not expressed: ")
        lines.append(f"{one.recipe:60s} {needs} {rank} {behind}  {state}{what}")
    return [*lines, "", *shares(recalls)]


def one_each(recipes: Sequence[TunedRecipe]) -> list[TunedRecipe]:
    """One recipe for each model, GPU and precision: preferably not a variant, with the fewest GPUs. Models that need more
    than attention and MoE layers are left out."""
    result: dict[tuple[str, ...], TunedRecipe] = {}
    plain = [one for one in recipes if not one.text("needs")]
    for one in sorted(plain, key=lambda one: (bool(one.text("variant")), one.whole("num_gpus"))):
        result.setdefault(tuple(one.text(key) for key in ("model", "gpu", "precision")), one)
    return list(result.values())


def shares(recalls: Sequence[Recall]) -> list[str]:
    """Lines with the numbers of recipes that are expressed, accepted and close to the winner."""
    total = max(len(recalls), 1)
    behind = [one.behind_percent for one in recalls if one.behind_percent is not None]
    counts = {
        "expressed": sum(one.expressed for one in recalls),
        "accepted": sum(one.accepted for one in recalls),
        f"within {NEAR:g} % of the winner": sum(one <= NEAR for one in behind),
        f"within {FAR:g} % of the winner": sum(one <= FAR for one in behind),
    }
    lines = [f"{name}: {count} of {len(recalls)} ({count / total:.0%})" for name, count in counts.items()]
    searched = [one.cpu_s for one in recalls if one.cpu_s is not None]
    return [*lines, f"CPU seconds of {len(searched)} searches: {sum(searched):.0f}"] if searched else lines


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="recall of hand-tuned recipes")
    parser.add_argument("--recipes", type=Path, required=True, help="CSV file of recipes")
    parser.add_argument("--precision", help="only recipes of this precision, such as bf16")
    parser.add_argument("--only", help="only recipes whose name has this word")
    parser.add_argument("--one_each", action="store_true", help="one recipe a model, GPU and precision")
    parser.add_argument("--accepted_only", action="store_true", help="do not search, which takes most of the time")
    parser.add_argument("--json", type=Path, help="file for the figures of every recipe")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Read, ask, print."""
    options = arguments(argv)
    if not options.recipes.exists():
        print(f"skipped: there is no {options.recipes}")
        return 0
    recipes = [one for one in read_recipes(options.recipes) if one.counts]
    if options.precision:
        recipes = [one for one in recipes if one.text("precision") == options.precision]
    if options.only:
        recipes = [one for one in recipes if options.only in one.name]
    if options.one_each:
        recipes = one_each(recipes)
    recalls = [recall(one, ranked=not options.accepted_only) for one in recipes]
    print("\n".join(lines(recalls)))
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in recalls], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
