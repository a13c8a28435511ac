"""What a run tells at its end, in a few lines."""

from pathlib import Path

from profdb.sample import ProfileDatabase
from profiler.cases.sweep_plan import describe
from profiler.conditions.account import account_lines
from profiler.profiling_run import RunReport

SHOWN_DIFFERENCES = 3


def report_lines(report: RunReport, output: Path) -> list[str]:
    """Counts, the machine, disagreements with earlier runs, and remarks."""
    result = report.sweep
    labels = ", ".join(f"{count} {status}" for status, count in sorted(result.statuses.items())) or "nothing"
    machine = report.profile.machine
    best = ", ".join(f"{flops / 1e12:.3g} TFLOP/s {name}" for name, flops in machine.best_flops.items())
    lines = [
        f"measured in {result.seconds:.1f} s: {labels}"
        + (f"; {result.left} left by the budget (continue with --resume)" if result.left else ""),
        f"{output}: {len(report.profile.samples)} samples of {machine.gpu}"
        + (f" (cluster {machine.cluster})" if machine.cluster else "")
        + (f", best {best}" if best else "")
        if report.profile.samples
        else f"{output}: not written, as nothing is measured yet",
    ]
    if sum(result.statuses.values()):
        lines += account_lines(report.account)
    if report.differences:
        lines.append(f"{len(report.differences)} cases differ from an earlier run by more than 10 %:")
        for found in report.differences[:SHOWN_DIFFERENCES]:
            lines.append(
                f"  {describe(found.case)}: {found.first_s * 1e6:.4g} us, now {found.second_s * 1e6:.4g} us"
            )
    return [*lines, *(f"note: {note}" for note in report.notes)]


def draw(profile: ProfileDatabase, folder: Path) -> str:
    """All pictures of a profile; says how many and where."""
    from profiler.pictures.plots import draw_profile

    return f"{len(draw_profile(profile, folder))} pictures in {folder}"
