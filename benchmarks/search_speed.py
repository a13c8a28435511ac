"""Speed of searches on one core: CPU seconds, plans priced, memory.

    python benchmarks/search_speed.py [--question WORDS ...] [--sweep]

Every question runs in a process of its own (imports, profile and search, as in the main command); the hundred questions
of ``--sweep`` share a process and a cost model, as a sweep does. "priced" counts feasible plans whose step was computed,
not those that rules reject in bulk. Times are CPU seconds, which other programs on the machine do not lengthen; cProfile
says where they go.
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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from solver.analysis.sweep import ProfileCache  # noqa: E402
from solver.plans.space import full_space  # noqa: E402
from solver.problem.request import Request, read_request  # noqa: E402
from solver.search import search  # noqa: E402
from spec.program.command import OneLineParser, exit_status  # noqa: E402

SWEEP = "sweep"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTiming:
    """What a process took: CPU seconds in all and of its searches, plans priced, peak memory."""

    question: str
    cpu_s: float
    search_s: float
    priced: int
    peak_rss_bytes: int


def measure(name: str) -> SearchTiming:
    """The timing of the question ``name`` (``SWEEP``: of all questions of the sweep), run in this process."""
    priced, search_s, shared = 0, 0.0, ProfileCache()
    for one in sweep() if name == SWEEP else [QUESTIONS[name]]:
        request = one.request(ROOT)
        problem = shared.open(request, read_request(request)).problem
        began = time.process_time()
        result = search(problem, full_space(problem.model, problem.job))
        search_s += time.process_time() - began
        priced += result.num_priced
    return SearchTiming(
        question=name,
        # The interpreter's start and all imports are in it.
        cpu_s=time.process_time(),
        search_s=search_s,
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
    head = f"{'question':28} {'cpu s':>6} {'search':>6} {'priced':>7} {'plans/s':>8} {'GiB':>5}"
    result = [head]
    for one in measured:
        rate = one["priced"] / one["search_s"]
        row = f"{one['question']:28} {one['cpu_s']:6.2f} {one['search_s']:6.2f} {one['priced']:7,} {rate:8,.0f} "
        result.append(row + f"{one['peak_rss_bytes'] / 2**30:5.2f}")
    return result


def main(arguments: list[str]) -> int:
    """Run one command line; the exit status."""
    return exit_status(lambda: run(arguments))


def run(arguments: list[str]) -> int:
    """Measure, print, write."""
    parser = OneLineParser(prog="search_speed.py", description="CPU seconds of searches")
    parser.add_argument("--question", nargs="*", choices=[*QUESTIONS, SWEEP], default=list(QUESTIONS))
    parser.add_argument("--sweep", action="store_true", help="also the hundred questions in one process")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        print(json.dumps(asdict(measure(options.inside))))
        return 0
    names = [*options.question, *([SWEEP] if options.sweep else [])]
    measured = [in_a_process(name) for name in names]
    if measured:
        print("\n".join(lines(measured)))
    print(f"{platform.processor() or platform.machine()}, one core, {datetime.date.today().isoformat()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
