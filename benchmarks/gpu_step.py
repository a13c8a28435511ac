"""Real training steps of plain PyTorch, compared with their predictions from a profile of this device.

    python benchmarks/gpu_step.py --cluster h200 --write_cases CASES     # then gen_profiler_data.py --cases CASES
    python benchmarks/gpu_step.py --pre_profiling_data_path prof_data/data.pt --budget_s 300 --json F
    python benchmarks/gpu_step.py --device cpu --hidden 256 --heads 8 --kv_heads 4 --ffn 896 --vocab 1024 --seq_len 256

Decoders of four layers with the widths of Llama 3 8B (by default): micro-batches of 1, 2 and 4, eager and compiled, with
and without recomputation. Each is a row with measured and predicted seconds and peak memory, allocated and reserved; a row
that runs out of memory, fails or exceeds the budget says so. A row runs in a process of its own. With --ranks the model is
data-parallel. Without a profile only the measured columns are filled.

--write_cases lists the benchmark cases to profile first, so that nothing is extrapolated.

Exits with 0 when at least one row was measured, 1 when none was, 2 for wrong arguments.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_steps.case import DecoderShape, StepCase  # noqa: E402
from benchmarks.gpu_steps.rows import StepResult, cases_to_measure, problem_of, row_of  # noqa: E402  # noqa: E402
from profdb.store.case_file import write_cases  # noqa: E402
from solver.problem.request import Request  # noqa: E402
from spec.errors import ConfigError  # noqa: E402
from spec.files import atomic_path, check_outputs  # noqa: E402
from spec.program.command import OneLineParser, exit_status, whole  # noqa: E402

SHAPE = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq_len")
# Assumption: seconds of a row on an H200, with imports and compilation; a row that takes three times as long is stopped.
EAGER_ROW_S, COMPILED_ROW_S = 15.0, 35.0
PATIENCE = 3.0
POSITIVE = whole(1, 2**30)
HEADER = (
    f"{'step':26} {'ms':>9} {'predicted':>9} {'ratio':>6}   {'GiB':>9} {'predicted':>9} {'ratio':>6}   "
    f"{'reserved':>9} {'predicted':>9} {'ratio':>6}"
)


def cases_of(options: argparse.Namespace) -> list[StepCase]:
    """All requested cases, eager ones first."""
    shape = DecoderShape(**{name: getattr(options, name) for name in SHAPE})
    compiled = {"both": (False, True), "eager": (False,), "compiled": (True,)}[options.run]
    recompute = {"both": (False, True), "none": (False,), "full": (True,)}[options.recompute]
    return [
        StepCase(
            shape=shape,
            micro_batch=micro_batch,
            num_micro=options.num_micro,
            compiled=is_compiled,
            recompute=runs_again,
            steps=options.steps,
        )
        for is_compiled, runs_again, micro_batch in product(compiled, recompute, options.micro_batch)
    ]


def expected_s(case: StepCase) -> float:
    """Seconds that a row is expected to take."""
    return COMPILED_ROW_S if case.compiled else EAGER_ROW_S


def request_of(options: argparse.Namespace) -> Request:
    """The source of times for the predictions."""
    return Request(root=ROOT, profile=options.pre_profiling_data_path, cluster=options.cluster, missing=options.missing)


def rows_of(cases: Iterable[StepCase], options: argparse.Namespace) -> Iterable[StepResult]:
    """The rows one by one. A row that is not expected to end within the budget does not start."""
    request = request_of(options)
    ends = time.monotonic() + options.budget_s
    for case in cases:
        left_s = ends - time.monotonic()
        patience_s = PATIENCE * expected_s(case) if options.device == "cuda" else left_s
        limit_s = min(left_s, patience_s) if left_s >= expected_s(case) else 0.0
        yield row_of(case, options.ranks, options.device, request, limit_s)


def run(options: argparse.Namespace) -> int:
    """Print the table row by row; the file holds all rows so far at any time."""
    cases = cases_of(options)
    request = request_of(options)
    check_outputs(
        {"--json": options.json, "--write_cases": options.write_cases},
        folders={},
        inputs={"--pre_profiling_data_path": request.profile},
    )
    if request.profile is not None or request.cluster is not None:
        # Fail on an unusable profile before spending minutes on steps.
        problem_of(cases[0], options.ranks, request)
    if options.write_cases:
        weighed = cases_to_measure(cases, options.ranks, request)
        write_cases(options.write_cases, weighed, {"asked by": "benchmarks/gpu_step.py", "rows": len(cases)})
        print(f"{options.write_cases}: {len(weighed)} cases (gen_profiler_data.py --cases {options.write_cases})")
        return 0
    print(f"{len(cases)} rows, about {sum(map(expected_s, cases)):.0f} s on an H200\n{HEADER}", flush=True)
    results: list[StepResult] = []
    for row in rows_of(cases, options):
        results.append(row)
        print(row.as_line(), flush=True)
        if options.json:
            with atomic_path(options.json) as temporary:
                temporary.write_text(json.dumps([one.as_dict() for one in results], indent=1))
    return 0 if any(row.status == "ok" for row in results) else 1


def options_of(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line. Raises ConfigError for a shape whose heads do not divide."""
    parser = OneLineParser(prog="gpu_step.py", description="training steps of plain PyTorch, measured and predicted")
    parser.add_argument("--pre_profiling_data_path", type=Path, help="a profile of this device")
    parser.add_argument("--cluster", help="predict from this hardware spec, or from a profile of it")
    parser.add_argument("--missing", choices=("error", "modelled"), default="error")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=POSITIVE, default=1, help="data-parallel ranks, one process each")
    parser.add_argument("--budget_s", type=float, default=300.0, help="seconds for all rows")
    parser.add_argument("--write_cases", type=Path, help="write the cases that predictions depend on, and run nothing")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--run", choices=("eager", "compiled", "both"), default="both")
    parser.add_argument("--recompute", choices=("none", "full", "both"), default="both")
    parser.add_argument("--micro_batch", type=POSITIVE, nargs="+", default=(1, 2, 4))
    parser.add_argument("--num_micro", type=POSITIVE, default=1, help="micro-batches of a step")
    parser.add_argument("--steps", type=POSITIVE, default=8, help="steps measured of each row")
    for name in SHAPE:
        parser.add_argument(f"--{name}", type=POSITIVE, default=getattr(DecoderShape(), name))
    options = parser.parse_args(arguments)
    for key, parts in (("heads", "hidden"), ("kv_heads", "heads")):
        value, whole_value = getattr(options, key), getattr(options, parts)
        if whole_value % value:
            allowed = f"a divisor of --{parts} {whole_value}"
            raise ConfigError(where="command line", key=f"--{key}", value=value, allowed=allowed)
    return options


def main() -> int:
    """Run one command line; the exit status."""
    return exit_status(lambda: run(options_of(sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
