"""Speed of searches on one core: CPU seconds by phase, plans priced, memory.

    python benchmarks/search_speed.py [--question WORDS ...] [--sweep] [--json FILE]

Every question runs in a process of its own (imports, profile and search, as in the main command); the hundred questions
of ``--sweep`` share a process and a cost model, as a sweep does. "priced" counts feasible plans whose step was computed,
not those that rules reject in bulk. Times are CPU seconds, which other programs on the machine do not lengthen.
"""

import argparse
import datetime
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import solver.analysis.sweep  # noqa: E402
import solver.plans.space  # noqa: E402
import solver.problem.request  # noqa: E402
import solver.search  # noqa: E402
from solver.problem.request import Request  # noqa: E402
from spec.files import atomic_path, check_outputs  # noqa: E402
from spec.program.command import OneLineParser, exit_status  # noqa: E402

PHASES = ("imports", "profile", "rules", "memory", "layer times", "step end", "pipeline", "ranking", "other")
SWEEP = "sweep"
# Phase -> (module, name) of the functions that it consists of. Time counts for the innermost phase.
WRAPPED: dict[str, tuple[tuple[str, str], ...]] = {
    "profile": (("solver.analysis.sweep", "find_profile"),),
    "rules": (("solver.search", "enumerate_block"),),
    "memory": (("solver.search", "estimate_memory"),),
    "layer times": (("solver.estimate", "piece_times"),),
    "step end": (("solver.estimate", "step_times"),),
    "pipeline": (("solver.estimate", "spans_of"), ("solver.candidates.candidates", "spans_of")),
    "ranking": (("solver.search", "_answers"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion:
    """A question of a user; sizes in GPUs and tokens."""

    config: str
    world_size: int
    global_batch_tokens: int
    framework: str | None = None
    seq_len: int | None = None

    def request(self, root: Path) -> Request:
        """The request of the command line for this question."""
        return Request(
            root=root,
            profile=root / "prof_data" / "data.pt",
            config=root / "configs" / self.config,
            world_size=self.world_size,
            global_batch_tokens=self.global_batch_tokens,
            framework=self.framework,
            seq_len=self.seq_len,
        )


QUESTIONS: dict[str, SearchQuestion] = {
    "7B on 128": SearchQuestion(config="7B_internlm2.py", world_size=128, global_batch_tokens=1 << 22),
    "70B on 1,024": SearchQuestion(config="70B_llama2.py", world_size=1024, global_batch_tokens=1 << 22),
    "GPT-175B on 1,024, megatron": SearchQuestion(
        config="175B_gpt.toml", world_size=1024, global_batch_tokens=1536 * 2048, framework="megatron"
    ),
    "405B on 1,024": SearchQuestion(config="405B_llama3.py", world_size=1024, global_batch_tokens=1 << 24),
    "DeepSeek-V3 on 2,048": SearchQuestion(
        config="671B_deepseek_v3.toml", world_size=2048, global_batch_tokens=15360 * 4096
    ),
    "405B on 16,384": SearchQuestion(config="405B_llama3.py", world_size=16384, global_batch_tokens=1 << 24),
    "70B on 1,024, zero-bubble": SearchQuestion(
        config="70B_llama2.py", world_size=1024, global_batch_tokens=1 << 22, framework="zero-bubble"
    ),
}


def sweep() -> list[SearchQuestion]:
    """A hundred questions of a sweep: one model on 8 to 128 GPUs, with several batches, frameworks and lengths."""
    return [
        SearchQuestion(
            config="8B_llama3.py", world_size=world, global_batch_tokens=batch, framework=framework, seq_len=length
        )
        for world in (8, 16, 32, 64, 128)
        for batch in (1 << 21, 1 << 22)
        for framework in ("megatron", "internevo", "fsdp", "deepspeed", "zero-bubble")
        for length in (4096, 8192)
    ]


class Phases:
    """Clocks of the phases, of which one runs at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running = ["other"]
        self._since = time.process_time()

    def _lap(self) -> None:
        now = time.process_time()
        phase = self._running[-1]
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside as ``name``."""
        self._lap()
        self._running.append(name)
        try:
            yield
        finally:
            self._lap()
            self._running.pop()

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with its time counted as ``name``."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return timed

    def finished(self) -> dict[str, float]:
        """Seconds by phase so far."""
        self._lap()
        return dict(self.seconds)


def wrap_all(phases: Phases) -> None:
    """Time every function of ``WRAPPED``, for the rest of this process."""
    for name, places in WRAPPED.items():
        for module_name, function in places:
            module = import_module(module_name)
            setattr(module, function, phases.around(name, getattr(module, function)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTiming:
    """What a process took: CPU seconds in total and by phase, plans priced, peak memory."""

    question: str
    cpu_s: float
    search_s: float
    phases_s: dict[str, float]
    priced: int
    peak_rss_bytes: int


def measure(names: Sequence[str]) -> SearchTiming:
    """The timing of the questions ``names`` (``SWEEP``: all of the sweep), run in this process."""
    imported_s = time.process_time()
    phases = Phases()
    wrap_all(phases)
    search_questions = sweep() if SWEEP in names else [QUESTIONS[name] for name in names]
    priced, search_s, shared = 0, 0.0, solver.analysis.sweep.ProfileCache()
    for one in search_questions:
        request = one.request(ROOT)
        question = shared.open(request, solver.problem.request.read_request(request)).problem
        began = time.process_time()
        result = solver.search.search(question, solver.plans.space.full_space(question.model, question.job))
        search_s += time.process_time() - began
        priced += result.num_priced
    seconds = phases.finished()
    # Before the clock ran: the interpreter's start and all imports, this benchmark's included.
    seconds["imports"] = imported_s
    return SearchTiming(
        question=SWEEP if SWEEP in names else ", ".join(names),
        cpu_s=time.process_time(),
        search_s=search_s,
        phases_s=seconds,
        priced=priced,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def in_a_process(name: str) -> dict[str, Any]:
    """The timing of one question in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", name]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def lines(measured: Sequence[dict[str, Any]]) -> list[str]:
    """A table with a row for each question."""
    head = f"{'question':28} {'cpu s':>6} {'search':>6} {'priced':>7} {'plans/s':>8} {'GiB':>5}  "
    result = [head + " ".join(f"{name:>11}" for name in PHASES)]
    for one in measured:
        rate = one["priced"] / one["search_s"]
        row = f"{one['question']:28} {one['cpu_s']:6.2f} {one['search_s']:6.2f} {one['priced']:7,} {rate:8,.0f} "
        row += f"{one['peak_rss_bytes'] / 2**30:5.2f}  "
        result.append(row + " ".join(f"{one['phases_s'].get(name, 0.0):11.2f}" for name in PHASES))
    return result


def main(arguments: list[str]) -> int:
    """Run one command line; the exit status."""
    return exit_status(lambda: run(arguments))


def run(arguments: list[str]) -> int:
    """Measure, print, write."""
    parser = OneLineParser(prog="search_speed.py", description="CPU seconds of searches by phase")
    parser.add_argument("--question", nargs="*", choices=[*QUESTIONS, SWEEP], default=list(QUESTIONS))
    parser.add_argument("--sweep", action="store_true", help="also the hundred questions in one process")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        print(json.dumps(asdict(measure([options.inside]))))
        return 0
    check_outputs({"--json": options.json}, folders={}, inputs={})
    names = [*options.question, *([SWEEP] if options.sweep else [])]
    measured = [in_a_process(name) for name in names]
    if measured:
        print("\n".join(lines(measured)))
    print(f"{platform.processor() or platform.machine()}, one core, {datetime.date.today().isoformat()}")
    if options.json:
        document = {"date": datetime.date.today().isoformat(), "machine": platform.platform(), "runs": measured}
        with atomic_path(options.json) as temporary:
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
