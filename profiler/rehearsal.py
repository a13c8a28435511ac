"""Before a sweep: what it would measure, and whether this machine runs every kind of kernel."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from profdb.sample import Sample
from profiler.cases.given_cases import plans_here
from profiler.cases.smoke import smoke_cases
from profiler.cases.sweep_plan import describe, plan_cases, plan_tiers
from profiler.dry_run import dry_run_lines
from profiler.profiling_run import RunOptions, device_and_sheet, domain_of, run_profiling, sweep_plan
from profiler.ranks.rank_layout import RankLayout
from profiler.ranks.restart import restarts
from profiler.timing import TrialPlan

SHORT = TrialPlan(warmup=1, min_trials=3, max_trials=3, seconds=0.01)


def dry_run(options: RunOptions, layout: RankLayout) -> list[str]:
    """What a sweep of this machine would measure; [] on all ranks but the first. Raises ConfigError without the
    device."""
    if layout.rank:
        return []
    device, sheet = device_and_sheet(options, layout)
    domain = domain_of(options, sheet, layout)
    wanted = options.model.cases() if options.model is not None else []
    plan = sweep_plan(options, device.kind, domain, layout)
    plans = plan_tiers(plan, wanted) if options.cases is None else plans_here(options.cases, plan)
    return dry_run_lines(plans, sheet.cluster if sheet else None, options.trials)


def smoke(options: RunOptions, layout: RankLayout) -> list[str]:
    """Every kind of kernel once, kept nowhere: how many ran, and what the others said; [] on all ranks but the
    first. Raises UserError as run_profiling."""
    device, sheet = device_and_sheet(options, layout)
    domain = domain_of(options, sheet, layout)
    cases = smoke_cases(plan_cases(sweep_plan(options, device.kind, domain, layout)))
    # the same folder after a restart, which keeps the process: the journal in it says which case to pass over
    folder = Path(tempfile.gettempdir()) / f"smoke-{os.getpid()}"
    folder.mkdir(mode=0o700, exist_ok=restarts(os.environ) > 0)
    try:
        short = replace(options, output=folder / "data.pt", cases=tuple(cases), trials=SHORT, resume=False)
        report = run_profiling(short, layout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if report is None:
        return []
    failed = [sample for sample in report.profile.samples if sample.status != "ok"]
    counted = (
        f"{report.sweep.statuses['ok']} of {len(cases)} kinds of kernel ran in {report.sweep.seconds:.1f} s"
    )
    left = f", {report.sweep.left} were left by the budget" if report.sweep.left else ""
    return [counted + left, *(complaint(sample) for sample in failed)]


def complaint(sample: Sample) -> str:
    """What a kind that did not run said."""
    return f"  {sample.status}: {describe(sample.case)}: {sample.launched.get('reason', '')}"
