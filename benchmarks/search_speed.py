"""How fast questions are answered on one core: CPU seconds by phase, plans priced, memory.

    python benchmarks/search_speed.py [--question WORDS ...] [--sweep] [--raw [PLANS ...]] [--calculon DIR] [--json FILE]

Every question runs in a process of its own (imports, profile and search, as the main command has them); the
hundred questions of ``--sweep`` share one, and the cost model as a sweep does. ``--raw`` prices tables of
so many plans that fit, every one with its memory, all parts of its step and its pipeline replayed. "priced"
counts feasible plans whose step was computed, never those that rules reject in bulk. CPU seconds, because a
busy machine stretches the others.
"""

import argparse
import datetime
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spec.files import check_outputs, replaced_path  # noqa: E402
from spec.program.command import (  # noqa: E402
    OneLineParser,
    exit_status,
    whole,
)

if TYPE_CHECKING:
    from benchmarks.search_speeds.calculon import Tried
    from benchmarks.search_speeds.raw_rate import Rate

SHOWN = ("imports", "profile", "rules", "memory", "layer times", "step end", "pipeline", "ranking", "other")
SWEEP, RAW, CALCULON = "sweep", "raw", "calculon"
RAW_PLANS = (10_000, 100_000, 1_000_000)
MOST_PLANS = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a process took: CPU seconds by phase and in all, plans priced, the most memory it held."""

    question: str
    cpu_s: float
    search_s: float
    phases_s: dict[str, float]
    priced: int
    peak_rss_bytes: int


def measure(names: Sequence[str]) -> Measured:
    """Ask the questions ``names`` (``SWEEP`` stands for all of the sweep) in this process."""
    from benchmarks.search_speeds.phases import Phases, wrap_all
    from benchmarks.search_speeds.questions import QUESTIONS, sweep

    phases = Phases()
    with phases.phase("imports"):
        import solver.analysis.sweep
        import solver.plans.space
        import solver.problem.loading
        import solver.problem.request
        import solver.report.plans
        import solver.search
    imported_s = time.process_time()
    wrap_all(phases)
    asked = sweep() if SWEEP in names else [QUESTIONS[name] for name in names]
    priced, search_s, shared = 0, 0.0, solver.analysis.sweep.Shared()
    for one in asked:
        request = one.request(ROOT)
        question = shared.open(request, solver.problem.request.read_request(request)).problem
        began = time.process_time()
        found = solver.search.search(question, solver.plans.space.full_space(question.model, question.job))
        search_s += time.process_time() - began
        priced += found.num_priced
    seconds = phases.finished()
    # What the interpreter and this benchmark took before the clock ran.
    seconds["imports"] = imported_s
    return Measured(
        question=SWEEP if SWEEP in names else ", ".join(names),
        cpu_s=time.process_time(),
        search_s=search_s,
        phases_s=seconds,
        priced=priced,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def in_a_process(*words: str) -> dict[str, Any]:
    """What a process took that did nothing else."""
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lines(measured: Sequence[dict[str, Any]]) -> list[str]:
    """A table: a row a question."""
    head = f"{'question':28} {'cpu s':>6} {'search':>6} {'priced':>7} {'plans/s':>8} {'GiB':>5}  "
    found = [head + " ".join(f"{name:>11}" for name in SHOWN)]
    for one in measured:
        rate = one["priced"] / one["search_s"]
        row = f"{one['question']:28} {one['cpu_s']:6.2f} {one['search_s']:6.2f} {one['priced']:7,} {rate:8,.0f} "
        row += f"{one['peak_rss_bytes'] / 2**30:5.2f}  "
        found.append(row + " ".join(f"{one['phases_s'].get(name, 0.0):11.2f}" for name in SHOWN))
    return found


def raw_line(one: dict[str, Any]) -> str:
    """A table of plans."""
    kind = "interleaved" if one["interleaved"] else "plain"
    return (
        f"{one['plans']:,} {kind} plans, {one['distinct']:,} of them different: {one['cpu_s']:.1f} CPU s, "
        f"{one['plans'] / one['cpu_s']:,.0f} plans/s, {one['peak_rss_bytes'] / 2**30:.2f} GiB"
    )


def main(arguments: list[str]) -> int:
    """Run one command line; the exit status."""
    return exit_status(lambda: run(arguments))


def run(arguments: list[str]) -> int:
    """Measure, print, write."""
    from benchmarks.search_speeds.calculon import files_of
    from benchmarks.search_speeds.questions import QUESTIONS

    parser = OneLineParser(prog="search_speed.py", description="CPU seconds of searches by phase")
    parser.add_argument("--question", nargs="*", choices=[*QUESTIONS, SWEEP], default=list(QUESTIONS))
    parser.add_argument("--sweep", action="store_true", help="also the hundred questions in one process")
    parser.add_argument(
        "--raw", nargs="*", type=whole(1, MOST_PLANS), metavar="PLANS", help="tables of so many plans"
    )
    parser.add_argument("--calculon", type=Path, metavar="DIR", help="also a checkout of Calculon")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.inside:
        print(json.dumps(asdict(_inside(*given.inside))))
        return 0
    check_outputs({"--json": given.json}, folders={}, inputs={})
    if given.calculon:
        files_of(given.calculon)
    names = [*given.question, *([SWEEP] if given.sweep else [])]
    measured = [in_a_process(name) for name in names]
    if measured:
        print("\n".join(lines(measured)))
    sizes = [] if given.raw is None else given.raw or RAW_PLANS
    raw = [in_a_process(RAW, str(plans), kind) for plans in sizes for kind in ("plain", "interleaved")]
    print("".join(raw_line(one) + "\n" for one in raw), end="")
    calculon = in_a_process(CALCULON, str(given.calculon)) if given.calculon else None
    if calculon:
        tried, priced = (calculon[key] / calculon["cpu_s"] for key in ("tried", "priced"))
        print(f"Calculon, GPT-3 175B on 1,024 A100: {tried:,.0f} plans/s tried, {priced:,.0f} priced")
    print(f"{platform.processor() or platform.machine()}, one core, {datetime.date.today().isoformat()}")
    if given.json:
        document = {
            "date": datetime.date.today().isoformat(),
            "machine": platform.platform(),
            "runs": measured,
            "raw": raw,
            "calculon": calculon,
        }
        with replaced_path(given.json) as temporary:
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _inside(name: str, *rest: str) -> "Measured | Rate | Tried":
    """What a process measures that was begun for it."""
    from benchmarks.search_speeds.calculon import calculon_rate
    from benchmarks.search_speeds.raw_rate import ASKED, raw_rate

    if name == CALCULON:
        return calculon_rate(Path(rest[0]))
    if name == RAW:
        interleaved = rest[1] == "interleaved"
        return raw_rate(ASKED[interleaved].request(ROOT), int(rest[0]), interleaved=interleaved)
    return measure([name])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
