"""What a ``generate`` command asks for, written: a communication test, a bundle, or a workload in either format."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from workload.aicb.aiob.export import aiob_of
from workload.aicb.aiob.text import write_aiob
from workload.aicb.generate.comm_test_files import is_test, write_test
from workload.aicb.generate.flags import GENERAL, default_options
from workload.aicb.generate.general import write_general_files
from workload.aicb.generate.other_flags import notes_on
from workload.aicb.generate.shape_flags import refuse
from workload.aicb.generate.simai import Generated, file_name, generated, target, write_simai_files
from workload.build import stage_works
from workload.bundle.bundle import export_bundle
from workload.report import group_lines
from workload.simai.closed_form.ratio import SHIPPED, read_ratio_tables
from workload.traffic.plan_traffic import plan_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What to say: ``notes`` beside the answer, ``lines`` as the answer."""

    notes: tuple[str, ...]
    lines: tuple[str, ...]


def write_files(options: argparse.Namespace, root: Path) -> Written:
    """Everything that the options ask for. Raises UserError with one line for what cannot be."""
    test = is_test(options)
    notes = tuple(notes_on(options, default_options(), test=test))
    if test:
        path, rows = write_test(options)
        return Written(notes=notes, lines=(f"wrote {path}: {rows} rows",))
    if options.bundle and options.format == GENERAL:
        raise refuse("format", GENERAL, "simai, with --bundle")
    made = generated(options, root)
    lines = _beside(made, options)
    if options.bundle:
        beyond, files = _bundle(made, options, root)
    elif options.format == GENERAL:
        path = target(options.output, file_name(made, options, "_workload.csv"))
        written = write_general_files(made, options, path)
        beyond, files = [], [f"wrote {path}: {rows} rows" for path, rows in written]
    else:
        path = target(options.output, file_name(made, options, ".txt"))
        exported = write_simai_files(made, path, strict=options.strict_export)
        beyond, files = exported.beyond_lines(), [f"wrote {path}" for path in exported.paths]
    return Written(notes=(*notes, *made.notes, *beyond), lines=(*lines, *files))


def _beside(made: Generated, options: argparse.Namespace) -> list[str]:
    """The groups and the AIOB file, where asked for."""
    lines: list[str] = []
    if options.show_groups:
        for kind, members in plan_groups(made.plan).items():
            lines += group_lines(kind, members)
    if options.write_aiob:
        write_aiob(options.write_aiob, aiob_of(stage_works(made.question, made.plan)))
        lines.append(f"wrote {options.write_aiob}")
    return lines


def _bundle(made: Generated, options: argparse.Namespace, root: Path) -> tuple[list[str], list[str]]:
    bundle = export_bundle(
        made.question,
        made.plan,
        options.bundle,
        read_ratio_tables(root / SHIPPED),
        work=made.works[0] if len(made.works) == 1 else None,
        times_known=options.comp_filepath is None and made.has_times and options.fixed_time_us is None,
    )
    return bundle.exported.beyond_lines(), [f"wrote {path}" for path in bundle.paths]
