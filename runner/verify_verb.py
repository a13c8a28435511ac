"""The verb ``verify``: trains the best plans of a search, compares each with its prediction, and searches again with what
was learnt. A plan that fails is a result too. No torch."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from runner.comparison.train_record import plan_words, recorded_plan
from runner.launch.hosts import LaunchResult, run_on_hosts
from runner.launch.verb import add_hosts, launch_of
from runner.reference.kernels import settings_of
from solver.report.files import write_json
from solver.report.terminal import table
from spec.errors import ConfigError
from spec.files import check_outputs
from spec.frameworks import framework_preset
from spec.program.command import batch_tokens, decimal, whole
from spec.program.kinds import MOST_MINUTES, MOST_SEQUENCE_TOKENS, MOST_STEP_TOKENS
from spec.readers.read_config import add_config, read_config
from spec.settings.job import job_settings
from spec.settings.setting import parse_settings, setting_text
from spec.units import bytes_to_gib, seconds_to_ms

PROJECT = Path(__file__).resolve().parents[1]
MOST_PLANS = 20
OUT_OF_MEMORY = "out of memory"
FEWEST_STEPS = 2
"""Measured plans that a calibration needs."""


def add_verify(verb: argparse.ArgumentParser) -> None:
    """All options of ``verify``, named as in simulation_train_formulaic.py."""
    what = verb.add_argument_group("what to train")
    add_config(what, required=True)
    tokens = partial(batch_tokens, minimum=1, maximum=MOST_STEP_TOKENS)
    what.add_argument("--global_batch_size", type=tokens, required=True, help="tokens of a step")
    what.add_argument(
        "--seq_len", type=whole(1, MOST_SEQUENCE_TOKENS), help="tokens per sequence (default: the config's)"
    )
    what.add_argument("--framework", help="preset (default: the config's)")
    what.add_argument("--job", action="append", default=[], help="settings of the job (docs/configs.md)")
    how = verb.add_argument_group("how to run")
    how.add_argument("--top", type=whole(1, MOST_PLANS), default=3, help="best plans to train (default 3)")
    how.add_argument("--steps", type=whole(1, 10_000), default=10, help="steps timed of each plan (default 10)")
    how.add_argument("--compile", action="store_true", help="compile the blocks by torch.compile")
    how.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(default cuda)")
    how.add_argument("--profile", type=Path, required=True, help="profile of these devices, measured if it is missing")
    how.add_argument("--minutes", type=decimal(1e-3, MOST_MINUTES), help="of measuring that profile")
    how.add_argument("--out", type=Path, required=True, help="folder of all results, which every host must see")
    add_hosts(verb)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPlan:
    """A plan of the search and what became of it: ``outcome`` is ran, out of memory or failed, ``reason`` the line that
    says why. Seconds of a step, and allocated bytes of the rank with most."""

    plan: str
    predicted_s: float
    predicted_bytes: float
    measured_s: float | None = None
    measured_bytes: float | None = None
    outcome: str = "ran"
    reason: str = ""


def verify(options: argparse.Namespace, root: Path) -> int:
    """Measures a profile if there is none, searches, trains, compares, calibrates and searches again. Returns the exit
    status: 1 if no plan ran."""
    read_config(options.config, assume=options.assume)
    if options.framework:
        framework_preset(options.framework)
    check_outputs(files={}, folders={"--out": options.out}, inputs={"--profile": options.profile})
    times = ["--config", str(options.config), "--pre_profiling_data_path", str(options.profile), "--missing=modelled"]
    times += ["--assume", options.assume] if options.assume else []
    question = [*times, *searched(options)]
    # Whatever can be refused has been, before minutes go into a profile.
    make_folder(options.out)
    if not options.profile.exists():
        minutes = [f"--budget_minutes={options.minutes}"] if options.minutes else []
        words = ["profile", "--device", options.device, "--output", str(options.profile), *minutes]
        measured = run_on_hosts(launch_of(options, words))
        if measured.status:
            return measured.status
    answer = options.out / "answer.json"
    if status := pss(["search", *question, "--json", str(answer)]).status:
        # A folder made for this question alone goes again; one with results stays.
        with suppress(OSError):
            options.out.rmdir()
        return status
    plans = [checked(options, times, number, best) for number, best in enumerate(bests(answer), 1)]
    write_json(options.out / "checked.json", {"plans": [asdict(one) for one in plans], "regret": regret(plans)})
    print("\n".join(["", *lines(plans)]), flush=True)
    return calibrated(options, question, sum(one.measured_s is not None for one in plans))


def make_folder(folder: Path) -> None:
    """Makes the folder of the results. Raises ConfigError where that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a folder that can be made ({error.strerror})"
        raise ConfigError(where="verify", key="--out", value=str(folder), allowed=allowed) from error


def searched(options: argparse.Namespace) -> list[str]:
    """The words of the search: of the plans that ``train`` runs, as the reference transformer runs them."""
    ranks = options.nproc * len(launch_of(options, ["train"]).hosts)
    given = parse_settings(",".join(options.job), job_settings(), "--job") if options.job else {}
    settings = dict(settings_of(compiled=options.compile)) | given
    words = [f"--world_size={ranks}", f"--global_batch_size={options.global_batch_size}", "--modes=mtp"]
    words += [f"--top_k={options.top}", *(f"--job={key}={setting_text(value)}" for key, value in settings.items())]
    words += [f"--seq_len={options.seq_len}"] if options.seq_len else []
    return [*words, *([f"--framework={options.framework}"] if options.framework else [])]


def bests(answer: Path) -> list[Mapping[str, Any]]:
    """The best plans of an answer's file."""
    best: list[Mapping[str, Any]] = json.loads(answer.read_text(encoding="utf-8"))["best"]
    return best


def checked(options: argparse.Namespace, times: Sequence[str], number: int, best: Mapping[str, Any]) -> CheckedPlan:
    """The plan ``number`` after some steps of training, appended to steps.csv where it ran."""
    words = plan_words(recorded_plan("answer.json", best["plan"]))
    print(f"\nplan {number}: {words}", flush=True)
    one = CheckedPlan(plan=words, predicted_s=best["step_s"], predicted_bytes=best["allocated_bytes"])
    result = options.out / f"step_{number}.json"
    result.unlink(missing_ok=True)
    if number == 1:
        (options.out / "steps.csv").unlink(missing_ok=True)
    trained = run_on_hosts(launch_of(options, trained_words(options, words, result)))
    if trained.status:
        return failed(one, trained)
    if not result.exists():
        raise ConfigError(where="verify", key="--out", value=str(options.out), allowed="a folder that every host sees")
    compared = pss(["compare", str(result), *times, "--append", str(options.out / "steps.csv")])
    if compared.status:
        return failed(one, compared)
    record = json.loads(result.read_text(encoding="utf-8"))
    return replace(one, measured_s=median(record["steps_s"]), measured_bytes=record["allocated_bytes"])


def trained_words(options: argparse.Namespace, plan: str, result: Path) -> list[str]:
    """The words of ``train`` for a plan."""
    words = ["train", "--config", str(options.config), f"--plan={plan}", f"--device={options.device}"]
    words += [f"--global_batch_size={options.global_batch_size}", f"--steps={options.steps}", "--json", str(result)]
    words += [f"--job={text}" for text in options.job] + ["--compile"] * options.compile
    for key in ("seq_len", "framework", "assume"):
        if value := getattr(options, key):
            words.append(f"--{key}={value}")
    return words


def failed(one: CheckedPlan, result: LaunchResult) -> CheckedPlan:
    """The plan with the reason why it did not run."""
    reason = next(iter(result.errors), f"status {result.status}").removeprefix("error: ")
    return replace(one, outcome=OUT_OF_MEMORY if OUT_OF_MEMORY in reason else "failed", reason=reason)


def regret(plans: Sequence[CheckedPlan]) -> float | None:
    """By how much the predicted best of the plans that ran is slower than the fastest of them; None where none ran."""
    ran = [one.measured_s for one in plans if one.measured_s is not None]
    return ran[0] / min(ran) - 1.0 if ran else None


def lines(plans: Sequence[CheckedPlan]) -> list[str]:
    """The plans as a table, why some did not run, and the plan that was predicted best beside the fastest."""
    rows = [
        [
            str(number),
            f"{seconds_to_ms(one.predicted_s):,.4g}",
            "" if one.measured_s is None else f"{seconds_to_ms(one.measured_s):,.4g}",
            "" if one.measured_s is None else f"{one.measured_s / one.predicted_s:.3f}",
            f"{bytes_to_gib(one.predicted_bytes):.4g}",
            "" if one.measured_bytes is None else f"{bytes_to_gib(one.measured_bytes):.4g}",
            one.outcome,
        ]
        for number, one in enumerate(plans, 1)
    ]
    heads = ["plan", "predicted ms", "measured ms", "ratio", "predicted GiB", "allocated GiB", "outcome"]
    result = [table(rows, heads)]
    result += [f"plan {number} {one.outcome}: {one.reason}" for number, one in enumerate(plans, 1) if one.reason]
    ran = [(one.measured_s, number) for number, one in enumerate(plans, 1) if one.measured_s is not None]
    if not ran:
        return [*result, "no plan ran"]
    return [
        *result,
        f"predicted best: plan {ran[0][1]}; fastest: plan {min(ran)[1]}; regret {100 * (regret(plans) or 0):.1f} %",
    ]


def calibrated(options: argparse.Namespace, question: Sequence[str], measured: int) -> int:
    """Fits factors to the measured steps and searches again; steps that no factors explain, as on a busy machine, are an
    answer too. Returns the exit status."""
    if measured < FEWEST_STEPS:
        return 0 if measured else 1
    factors = str(options.out / "calibration.toml")
    fitted = ["--steps", str(options.out / "steps.csv"), "--pre_profiling_data_path", str(options.profile)]
    if pss(["calibrate", *fitted, "--missing=modelled", "--out", factors]).status:
        print("no calibration: the comparisons above stand", flush=True)
        return 0
    return pss(["search", *question, "--calibration", factors, "--json", str(options.out / "calibrated.json")]).status


def pss(words: Sequence[str]) -> LaunchResult:
    """The end of a program of this project, which prints as it runs; its errors are kept."""
    command = [sys.executable, "-m", "pss", *words]
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stderr is not None
        errors = []
        for line in running.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if line.startswith("error: "):
                errors.append(line.rstrip())
    return LaunchResult(status=running.returncode, errors=tuple(errors))
