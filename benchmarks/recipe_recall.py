"""Recall of hand-tuned recipes: does the solver find what a framework's own engineers tuned?

    python benchmarks/recipe_recall.py --recipes FILE [--precision bf16] [--one_each] [--accepted_only] [--json FILE]

FILE is a CSV file with a recipe a row: model, GPU, job settings and plan (no times). Each recipe that is
tuned for pre-training on a GPU with a hardware spec is put to the solver in its own settings: can it be said
(expressed), does it fit and break no rule (accepted), which rank has it among the TOP searched plans, and by
how much is it slower than the fastest. Without FILE nothing is measured: it says so and exits with 0.
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

from benchmarks.recipes import TunedRecipe, problem_of, read_recipes, recipe_plan, spec_of  # noqa: E402
from solver.memory.device import usable_bytes  # noqa: E402
from solver.plans.plan_table import Plan, PlanTable  # noqa: E402
from solver.plans.space import full_space  # noqa: E402
from solver.problem.price import price_plan  # noqa: E402
from solver.problem.problem import Problem  # noqa: E402
from solver.problem.typed_plan import broken_rules  # noqa: E402
from solver.search import search  # noqa: E402
from spec.cluster.reader import read_cluster  # noqa: E402
from spec.errors import NoFeasiblePlanError, UserError  # noqa: E402
from spec.units import GIB  # noqa: E402

TOP = 10
NEAR, FAR = 2.0, 10.0  # percent behind the winner


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What became of one recipe. ``rank`` is 1 for the fastest, None where it is not among the best; ``behind_percent``
    how much slower than the fastest it is predicted, whose device memory and parts of a step stand beside the recipe's own;
    ``cpu_s`` what the search took."""

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


def recalled(recipe: TunedRecipe, *, ranked: bool) -> Recall:
    """One recipe; ``ranked`` searches its space too."""
    try:
        problem = problem_of(recipe, read_cluster(spec_of(recipe), root=ROOT))
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
    return _ranked(result, problem, plan) if ranked and result.accepted else result


def _ranked(found: Recall, problem: Problem, plan: Plan) -> Recall:
    """With its place among the searched plans; a plan faster than all of them is the first."""
    began = time.process_time()
    try:
        best = search(problem, full_space(problem.model, problem.job), top_k=TOP).best
    except NoFeasiblePlanError:
        best = ()
    assert found.step_s is not None
    faster = [one for one in best if one.step_s < found.step_s and one.plan != plan]
    fastest = min([found.step_s, *(one.step_s for one in faster)])
    behind = 100.0 * (found.step_s / fastest - 1.0)
    ranked = asdict(found) | {
        "rank": len(faster) + 1 if len(faster) < TOP else None,
        "behind_percent": behind,
        "winner": faster[0].plan.label() if faster else plan.label(),
        "winner_gib": faster[0].needed_bytes / GIB if faster else found.needed_gib,
        "winner_parts_s": faster[0].parts_s if faster else found.parts_s,
        "cpu_s": time.process_time() - began,
    }
    return Recall(**ranked)


def lines(found: Sequence[Recall]) -> list[str]:
    """A line a recipe, and the shares."""
    lines = [f"{'recipe':60s} {'needs':>7s} {'of':>6s} {'rank':>5s} {'behind %':>8s}  what"]
    for one in found:
        needs = f"{one.needed_gib:7.1f} {one.usable_gib:6.1f}" if one.needed_gib is not None else " " * 14
        rank = f"{one.rank:5d}" if one.rank is not None else "    -"
        behind = f"{one.behind_percent:8.1f}" if one.behind_percent is not None else "       -"
        what = one.winner if one.accepted else one.reason
        state = "" if one.accepted else ("refused: " if one.expressed else "not expressed: ")
        lines.append(f"{one.recipe:60s} {needs} {rank} {behind}  {state}{what}")
    return [*lines, "", *shares(found)]


def one_each(recipes: Sequence[TunedRecipe]) -> list[TunedRecipe]:
    """Returns of each model, GPU and precision one recipe, of the fewest GPUs and no variant where there is one; those that
    ask for more than layers, attention and experts left out."""
    result: dict[tuple[str, ...], TunedRecipe] = {}
    plain = [one for one in recipes if not one.text("needs")]
    for one in sorted(plain, key=lambda one: (bool(one.text("variant")), one.whole("num_gpus"))):
        result.setdefault(tuple(one.text(key) for key in ("model", "gpu", "precision")), one)
    return list(result.values())


def shares(found: Sequence[Recall]) -> list[str]:
    """Returns how many of all recipes are expressed, accepted and near the winner."""
    total = max(len(found), 1)
    behind = [one.behind_percent for one in found if one.behind_percent is not None]
    counts = {
        "expressed": sum(one.expressed for one in found),
        "accepted": sum(one.accepted for one in found),
        f"within {NEAR:g} % of the winner": sum(one <= NEAR for one in behind),
        f"within {FAR:g} % of the winner": sum(one <= FAR for one in behind),
    }
    lines = [f"{name}: {count} of {len(found)} ({count / total:.0%})" for name, count in counts.items()]
    searched = [one.cpu_s for one in found if one.cpu_s is not None]
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
    asked = arguments(argv)
    if not asked.recipes.exists():
        print(f"skipped: there is no {asked.recipes}")
        return 0
    try:
        recipes = [one for one in read_recipes(asked.recipes) if one.counts]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if asked.precision:
        recipes = [one for one in recipes if one.text("precision") == asked.precision]
    if asked.only:
        recipes = [one for one in recipes if asked.only in one.name]
    if asked.one_each:
        recipes = one_each(recipes)
    result = [recalled(one, ranked=not asked.accepted_only) for one in recipes]
    print("\n".join(lines(result)))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in result], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
