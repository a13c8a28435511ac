"""Store the answers to thousands of questions, and compare: does the program still answer the same?

    python benchmarks/frozen.py --out FROZEN.json.gz [--quick] [--measurements PATH [PATH ...] [--curves DIR]]
    python benchmarks/frozen.py --compare FROZEN.json.gz [--quick] [--measurements PATH [PATH ...] [--curves DIR]]

Questions go through the public interfaces: plans and searches from Python (solver.ask), files by command lines. They are
drawn with a fixed seed from the shipped models, clusters, frameworks and precisions; a refused question is stored by the
kind of its error. With --measurements, predictions of published rows are stored too (as for benchmarks/accuracy.py; none
if the files are missing). --quick takes a tenth of each kind. --compare prints for every kind the number of differences
and the first ones: relative beyond 1e-12, in files other lines except comments. It exits with 1 if there is one.
"""

import argparse
import contextlib
import gzip
import io
import itertools
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import run_workload  # noqa: E402
import simulation_train_formulaic  # noqa: E402
import solver  # noqa: E402
from benchmarks.measured_times import measured_times  # noqa: E402
from benchmarks.published_rows import Pricing, read_rows  # noqa: E402
from spec.errors import UserError  # noqa: E402
from spec.frameworks import framework_names  # noqa: E402
from spec.settings.plan import PlanSettings, plan_option_settings  # noqa: E402
from workload.settings.frameworks import WRITTEN  # noqa: E402

TOLERANCE = 1e-12
SEED = 20261123
MODELS = (
    *("7B_llama2.py", "70B_llama3.py", "405B_llama3.py", "8B_qwen3.json", "235B_qwen3_moe.json"),
    *("671B_deepseek_v3.toml", "20B_gpt_oss.json", "175B_gpt.toml", "80B_qwen3_next.json", "27B_gemma3.json"),
)
MOST_CLUSTERS = 16
PRECISIONS = ("bf16", "fp8-current", "fp8-delayed", "mxfp8", "nvfp4")
WORLDS = (8, 16, 32, 64, 128, 256)
STRATEGIES = ("mtp", "msp", "fsp", "isp", "ulysses")
PLANS_A_QUESTION = 10
COUNTS = {"plans": 200, "searches": 40, "exports": 30, "launch_files": 12, "workloads": 10}
# Inputs of the exporters: models that frameworks have, and plain plans on 16 GPUs.
LAUNCHED_MODELS = ("8B_llama3.py", "8B_qwen3.json", "7B_llama2.py", "235B_qwen3_moe.json")
LAUNCHED_PLANS = (
    "strategy=mtp,micro_batch=1,zero_stage=1,recompute=none",
    "strategy=mtp,micro_batch=1,zero_stage=3,recompute=none",
    "strategy=fsp,tp=2,pp=2,micro_batch=1,zero_stage=1,recompute=full",
)

Question = dict[str, Any]
Frozen = dict[str, Any]


def random_question(rng: random.Random, *, largest: int) -> Question:
    """Model, cluster and job for ``solver.ask``, on at most ``largest`` GPUs."""
    clusters = sorted(path.stem for path in (ROOT / "configs" / "clusters").glob("*.toml"))
    world = rng.choice([size for size in WORLDS if size <= largest])
    sequence = rng.choice([2048, 4096, 8192])
    return {
        "model": str(ROOT / "configs" / rng.choice(MODELS)),
        "cluster": rng.choice(clusters[:: max(len(clusters) // MOST_CLUSTERS, 1)]),
        "job": {
            "world_size": world,
            "global_batch_tokens": world * rng.choice([2, 4, 8]) * sequence,
            "seq_len": sequence,
            "framework": rng.choice(framework_names(legacy=True)),
            "precision": rng.choice(PRECISIONS),
        },
        "constraints": {"headroom": 0, "rank_by": "time"},
    }


def random_plan(rng: random.Random) -> str:
    """A plan as for --plan; many are refused."""
    keys: dict[str, object] = {"strategy": rng.choice(STRATEGIES), "tp": rng.choice([1, 1, 2, 4, 8])}
    keys["pp"] = rng.choice([1, 1, 2, 4])
    keys["cp"] = rng.choice([1, 1, 1, 2])
    keys["vpp"] = rng.choice([1, 1, 2]) if int(str(keys["pp"])) > 1 else 1
    keys["ep"] = rng.choice([1, 1, 4, 8])
    keys["micro_batch"] = rng.choice([1, 1, 2])
    keys["recompute"] = rng.choice(["none", "none", "full", "selective"])
    keys["zero_stage"] = rng.choice([0, 1, 1, 2, 3])
    if rng.random() < 0.2:
        keys["schedule"] = rng.choice(["zero-bubble-h1", "dual-pipe", "all-forwards"])
    return ",".join(f"{key}={value}" for key, value in keys.items())


def refused_or(ask: Callable[[], object]) -> object:
    """The result of ``ask``, or the kind of error that it raises."""
    try:
        return ask()
    except UserError as error:
        return {"refused": type(error).__name__}


def accepted(draw: Callable[[], object], count: int) -> Iterator[object]:
    """The results of ``draw``, refused questions included, until ``count`` of them are accepted."""
    while count:
        answer = draw()
        count -= not (isinstance(answer, dict) and "refused" in answer)
        yield answer


def numbers(answer: solver.Answer) -> Frozen:
    """Seconds and bytes of a plan, with all parts."""
    return {
        "plan": answer.plan.label(),
        "step_s": answer.step_s,
        "parts_s": answer.parts_s,
        "origins_s": answer.origins_s,
        "interval_s": [answer.interval_low_s, answer.interval_high_s],
        "memory_bytes": answer.memory_bytes,
        "totals_bytes": [answer.allocated_bytes, answer.reserved_bytes, answer.device_bytes, answer.needed_bytes],
        "mfu": answer.mfu,
    }


def plans(count: int) -> Iterator[object]:
    """Random plans for ``count`` random questions, each priced alone."""
    rng = random.Random(f"{SEED} plans")

    def priced() -> object:
        question = random_question(rng, largest=256)
        texts = [random_plan(rng) for _ in range(PLANS_A_QUESTION)]
        reply = solver.ask(**question)
        return [refused_or(lambda text=text: numbers(reply.price(text))) for text in texts]

    return accepted(lambda: refused_or(priced), count)


def searches(count: int) -> Iterator[object]:
    """The ten best plans of ``count`` random questions."""
    rng = random.Random(f"{SEED} searches")

    def ranked() -> object:
        return [numbers(one) for one in solver.ask(**random_question(rng, largest=64)).search().best]

    return accepted(lambda: refused_or(ranked), count)


def exports(count: int) -> Iterator[object]:
    """Every export of the best plans of ``count`` random questions, by command lines: name -> output."""
    rng = random.Random(f"{SEED} exports")
    frameworks = {framework for one in WRITTEN.values() for framework in one.frameworks}

    def exported() -> object:
        question = random_question(rng, largest=32)
        question["job"]["framework"] = rng.choice(sorted(frameworks))
        plan = solver.ask(**question).best.plan
        words = command_words(question, plan_text(plan.settings))
        options = [("export_simai", "workload.txt"), ("export_bundle", "bundle")]
        options += [(f"export_{name}", f"{name}.out") for name in WRITTEN]
        return {
            name: command_output(simulation_train_formulaic.main, [*words, f"--{name}"], file) for name, file in options
        }

    return accepted(lambda: refused_or(exported), count)


def launch_files(count: int) -> Iterator[object]:
    """The output of every exporter for ``count`` pairs of a model and a plan, under each of its frameworks."""
    job = {"world_size": 16, "global_batch_tokens": 64 * 4096, "seq_len": 4096, "precision": "bf16"}
    pairs = itertools.islice(itertools.product(LAUNCHED_MODELS, LAUNCHED_PLANS), count)
    for (model, plan), (name, exporter) in itertools.product(pairs, sorted(WRITTEN.items())):
        for framework in sorted(exporter.frameworks):
            path = str(ROOT / "configs" / model)
            question = {"model": path, "cluster": "h100-sxm", "job": job | {"framework": framework}}
            words = [*command_words(question, plan), f"--export_{name}"]
            yield {f"{name} {framework}": command_output(simulation_train_formulaic.main, words, f"{name}.out")}


def command_words(question: Question, plan: str) -> list[str]:
    """A question and a plan as command-line options."""
    job = question["job"]
    words = ["--config", question["model"], "--cluster", question["cluster"], "--plan", plan, "--force"]
    words += ["--world_size", str(job["world_size"]), "--framework", job["framework"]]
    words += ["--precision", job["precision"], "--seq_len", str(job["seq_len"])]
    return [*words, "--global_batch_size", str(job["global_batch_tokens"])]


def plan_text(plan: PlanSettings) -> str:
    """A plan as for --plan, without empty values but for the ZeRO stage, which frameworks have defaults of."""
    values = {
        key: value for key, value in asdict(plan).items() if value not in (None, (), "", 0) or key == "zero_stage"
    }
    texts = {key: "+".join(value) if isinstance(value, tuple) else value for key, value in values.items()}
    return ",".join(f"{key}={value}" for key, value in texts.items() if key in plan_option_settings())


def workloads(count: int) -> Iterator[object]:
    """``count`` workloads of AICB's, by command lines."""
    rng = random.Random(f"{SEED} workloads")
    for _ in range(count):
        frame = rng.choice(["Megatron", "DeepSpeed", "FSDP"])
        layout = rng.choice(["simai", "general"]) if frame == "Megatron" else "general"
        words = ["generate", "--frame", frame, "--format", layout, "--model_size", rng.choice(["7", "13", "22"])]
        words += ["--world_size", "16", "--global_batch", "32"]
        words += [] if frame == "Megatron" else ["--zero_stage", rng.choice(["1", "2", "3"])]
        yield command_output(run_workload.main, [*words, "--output"], "workload.out")


def command_output(main: Callable[[list[str]], int], words: list[str], file: str) -> Frozen:
    """The exit status of a command line, and the files that it writes, without comments."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as quiet:
        quiet.enter_context(contextlib.redirect_stdout(io.StringIO()))
        quiet.enter_context(contextlib.redirect_stderr(io.StringIO()))
        status = main([*words, str(Path(folder) / file)])
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        texts = {
            str(path.relative_to(folder)): path.read_text().replace(folder, "").replace(str(ROOT), "") for path in files
        }
    lines = {name: [line for line in text.splitlines() if line[:1] != "#"] for name, text in texts.items()}
    return {"status": status, "files": lines}


def rows(measurements: Sequence[Path], curves: Path | None, every: int) -> Iterator[object]:
    """Predictions of every ``every``-th published row by dataset and row; none if there is no such file."""
    result = read_rows([path for path in measurements if path.exists()])[::every]
    for one in Pricing(cost_model=measured_times(curves, None).cost_model).predict(result):
        name = f"{one.row.dataset} {one.row.row_id}"
        answer = numbers(one.answer) | {"row_step_s": one.step_s} if one.answer else {"refused": one.reason}
        yield {name: answer}


KINDS: Mapping[str, Callable[[int], Iterator[object]]] = {
    "plans": plans,
    "searches": searches,
    "exports": exports,
    "launch_files": launch_files,
    "workloads": workloads,
}


def differences(before: object, after: object, place: str = "", least: float = 1e-18) -> Iterator[str]:
    """The places at which two stored answers differ by more than ``least``, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        # A part that is negligible in its step is compared to the largest part.
        parts = [abs(value) for value in before.values() if isinstance(value, float)]
        floor = TOLERANCE * max(parts) if parts and len(parts) == len(before) else least
        for key in dict.fromkeys((*before, *after)):
            yield from differences(before.get(key), after.get(key), f"{place}.{key}", floor)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{place}[{index}]")
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=least):
            yield f"{place}: {before!r} -> {after!r}"
    elif before != after:
        yield f"{place}: {str(before)[:120]} -> {str(after)[:120]}"


def main(argv: list[str] | None = None) -> int:
    """Store or compare. The exit status: 1 if something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="file to store the answers in")
    parser.add_argument("--compare", type=Path, help="file of stored answers")
    parser.add_argument("--quick", action="store_true", help="a tenth of each kind")
    parser.add_argument("--measurements", type=Path, nargs="+", default=[], help="files or folders of rows")
    parser.add_argument("--curves", type=Path, help="folder of measured curves for the rows")
    options = parser.parse_args(argv)
    if not options.out and not options.compare:
        parser.error("--out or --compare is needed")
    counts = {kind: -(-count // 10) if options.quick else count for kind, count in COUNTS.items()}
    answers = {kind: list(KINDS[kind](count)) for kind, count in counts.items()}
    if options.measurements:
        answers["rows"] = list(rows(options.measurements, options.curves, 10 if options.quick else 1))
    result = json.loads(json.dumps(answers))  # as the stored answers are read
    if options.out:
        with gzip.open(options.out, "wt", encoding="utf-8") as handle:
            json.dump(result, handle)
    if not options.compare:
        return 0
    with gzip.open(options.compare, "rt", encoding="utf-8") as handle:
        stored = json.load(handle)
    differ = 0
    for kind, now in result.items():
        if kind not in stored:
            print(f"{kind}: not stored")
            continue
        before = stored[kind]
        if kind == "rows" and options.quick:
            names = {name for one in now for name in one}
            before = [one for one in before if not names.isdisjoint(one)]
        lines = list(differences(before[: len(now)], now))
        differ += len(lines)
        print(f"{kind}: {len(now)} questions, {len(lines)} differences", *lines[:3], sep="\n  ")
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
