"""Handing a plan on, as the main command is asked to: its traffic, SimAI's files, launch settings."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from solver.problem.loading import LoadedProblem
from solver.problem.result import Answer


def draw(options: argparse.Namespace, opened: LoadedProblem, answer: Answer) -> None:
    """Save the rank-by-rank traffic of a plan, one array and picture per parallel axis."""
    from workload.traffic.plan_traffic import draw_plan_traffic

    for path in draw_plan_traffic(opened.problem, answer.plan, options.draw_heatmap_path):
        print(f"wrote {path}")


def export(options: argparse.Namespace, opened: LoadedProblem, answer: Answer) -> None:
    """Write a plan as a SimAI workload and say what the format has no word for."""
    from workload.simai.export import export_simai

    exported = export_simai(
        opened.problem, answer.plan, options.export_simai, strict=options.strict_export, stage=options.stage
    )
    for line in exported.beyond_lines():
        print(line, file=sys.stderr)
    for path in exported.paths:
        print(f"wrote {path}")


def bundle(options: argparse.Namespace, opened: LoadedProblem, answer: Answer, root: Path) -> None:
    """Write workload, topology, bus bandwidths and the commands that simulate them; ``root`` holds the ratio tables."""
    from workload.bundle import export_bundle
    from workload.simai.busbw import SHIPPED, read_ratio_tables

    ratios = read_ratio_tables(root / SHIPPED)
    for path in export_bundle(opened.problem, answer.plan, options.export_bundle, ratios).paths:
        print(f"wrote {path}")


def launch_settings(opened: LoadedProblem, answer: Answer, files: Mapping[str, Path]) -> None:
    """Write a plan as its framework's settings, and as a timeline, each to its path."""
    from workload.launch_files import write_launch_files

    written, notes = write_launch_files(opened.problem, answer.plan, files)
    for note in notes:
        print(note, file=sys.stderr)
    for path in written:
        print(f"wrote {path}")
