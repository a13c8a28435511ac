"""The command that makes a calibration: python -m solver.calibrate."""

# ruff: noqa: E402 - what follows takes a second to import, and Ctrl-C may come meanwhile
from spec.program.command import exit_status, quiet_interrupts

quiet_interrupts()

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from math import exp
from pathlib import Path

import numpy as np

from solver.calibrate.fit import Steps, fit
from solver.calibrate.measured_steps import MeasuredStep, read_steps, steps_of
from solver.problem.calibration import Calibration, Fit, calibration_path, write_calibration
from solver.problem.interval import NEW_SOURCES
from solver.problem.request import DEFAULT_PROFILE, Request, profile_path
from solver.report.terminal import table
from spec.errors import ConfigError, UserError
from spec.files import shipped_folder
from spec.program.command import OneLineParser
from spec.units import seconds_to_ms

ROOT = shipped_folder()
PROGRAM = "python -m solver.calibrate"


def main(arguments: Sequence[str], program: str = PROGRAM) -> int:
    """Runs the command and returns its exit status; ``program`` is its name in messages."""
    return exit_status(lambda: fit_steps(options_parser(program).parse_args(arguments)))


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    parser = OneLineParser(
        prog=program, description="Fit a handful of factors to a few measured steps of your cluster."
    )
    parser.add_argument(
        "--steps",
        type=Path,
        required=True,
        help="CSV: config, world_size, global_batch (tokens), measured_step_s, and plan or tp, pp, ...",
    )
    parser.add_argument("--pre_profiling_data_path", type=Path, help="the profile (default prof_data/data.pt)")
    parser.add_argument("--cluster", help="a hardware spec of configs/clusters (default: the profile's machine)")
    parser.add_argument("--missing", choices=("error", "modelled"), default="error")
    parser.add_argument("--out", type=Path, help="the file (default: beside the profile, or here for the shipped one)")
    return parser


def fit_steps(options: argparse.Namespace) -> int:
    """Reads the measured steps, fits, prints the errors, writes the file and returns 0."""
    request = Request(
        root=ROOT, profile=options.pre_profiling_data_path, cluster=options.cluster, missing=options.missing
    )
    profile = profile_path(request)
    measured = read_steps(options.steps, replace(request, profile=profile))
    if not measured:
        raise ConfigError(where="--steps", key="steps", value=str(options.steps), allowed="a line a measured step")
    framework = one_framework(measured)
    steps = steps_of(measured)
    result = fit(steps)
    print("\n".join([*report_lines(measured, steps, result), *worth_lines(options.steps, steps, result)]))
    # Beside a profile of the user's, in the current folder for the shipped one.
    default_out = (
        calibration_path(profile)
        if profile in (request.profile, DEFAULT_PROFILE)
        else Path(calibration_path(profile).name)
    )
    out = options.out or default_out
    write_calibration(out, result, measured[0].problem.cluster, framework)
    print(f"wrote {out}; use it with --calibration {out}")
    return 0


def one_framework(measured: Sequence[MeasuredStep]) -> str:
    """Returns the framework preset of all steps; ConfigError for two: what they lie off by is not the same."""
    first = measured[0].problem.job.preset.name
    for one in measured[1:]:
        if one.problem.job.preset.name != first:
            allowed = f"{first}, as in the lines before: a calibration of its own for each framework"
            raise ConfigError(where=one.where, key="framework", value=one.problem.job.preset.name, allowed=allowed)
    return first


def report_lines(measured: Sequence[MeasuredStep], steps: Steps, result: Fit) -> list[str]:
    """Returns a table of every step, without factors, with them, and by a fit without the step; then the factors."""
    fitted_s = steps.predicted_s(result.factors).tolist()
    left_out = [
        f"{seconds_to_ms(one.measured_s * exp(miss)):.1f}" for one, miss in zip(measured, result.left_out, strict=False)
    ]
    rows = [
        [one.plan.label(), *(f"{seconds_to_ms(s):.1f}" for s in (one.measured_s, before, after)), left]
        for one, before, after, left in zip(measured, steps.priced_s.tolist(), fitted_s, left_out or ["-"], strict=True)
    ]
    lines = [table(rows, ["plan", "measured ms", "priced", "calibrated", "left out"]), ""]
    return lines + [f"{field.name:26} {getattr(result.factors, field.name):.4g}" for field in fields(Calibration)]


def worth_lines(path: Path, steps: Steps, result: Fit) -> list[str]:
    """Returns what the factors are worth: the leave-one-out error, and a warning where factors help no step that they were
    not fitted to. Raises UserError where besides their interval is wider than without them."""
    error = result.leave_one_out_error
    if error is None:
        return ["one step: no leave-one-out error; more steps, of other plans and sizes, narrow the interval"]
    errors = f"leave-one-out error {100 * error:.1f} % over {len(result.left_out)} steps, {100 * result.priced_error:.1f} % without factors"
    if error < result.priced_error:
        return [errors]
    own = steps.priced.std
    if result.factors.interval_std(own).mean() > NEW_SOURCES.interval_std(own, np.zeros_like(own)).mean():
        raise UserError(
            f"{path}: {errors}: no factors explain these steps, and none are written; check the settings of each (docs/faq.md)"
        )
    return [errors, "warning: the factors are no better than none for a step that they were not fitted to"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
