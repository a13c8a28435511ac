"""What a training step runs: check and price SimAI workloads, lay out groups, traffic and topologies, run it."""

# ruff: noqa: E402 - what follows takes a second to import, and Ctrl-C may come meanwhile
from spec.program.command import exit_status, quiet_interrupts

quiet_interrupts()

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from solver.report.files import write_json
from spec.collectives import Collective
from spec.errors import ConfigError
from spec.files import shipped_folder
from workload.aicb.aiob import import_aiob
from workload.aicb.write_files import write_files
from workload.command_line import (
    CHECK,
    CURVES,
    GENERATE,
    GROUPS,
    IMPORT_AIOB,
    PROGRAM,
    SIMAI_PRICING,
    SIMULATE,
    TOPOLOGY,
    TRAFFIC,
    check_result_files,
    parser,
)
from workload.diagnostics import Severity, summarised
from workload.report import (
    finding_lines,
    flow_lines,
    group_lines,
    replay_lines,
    shape_line,
    simai_lines,
    topology_line,
)
from workload.simai.check import check_simai
from workload.simai.closed_form import price_simai
from workload.simai.reader import SimaiFile, read_simai, usable_workload
from workload.simulate import (
    closed_form_options,
    ignored,
    replayed,
    wants_files,
    workload_path,
    write_results,
)
from workload.topology.hardware_spec import topology_shape, write_cluster
from workload.topology.templates import Fabric, build_topology
from workload.topology.topology import Topology, draw_topology, read_topology, write_topology
from workload.traffic.flows import flow_matrix, rank_flows, write_flows
from workload.traffic.plan_traffic import draw_heatmap
from workload.traffic.ranks import RankOrder, named_groups, rank_groups

ROOT = shipped_folder()


def main(arguments: list[str], program: str = PROGRAM) -> int:
    """Runs one command line, typed after ``program``; the exit status (1: the file checked has defects)."""
    return exit_status(lambda: run(options_parser(program).parse_args(arguments)))


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns what reads a command line typed after ``program``."""
    from runner.verbs import VERBS

    return parser({name: (verb.what, verb.add_flags) for name, verb in VERBS.items()}, program)


def run(options: argparse.Namespace) -> int:
    """Hands the options to their verb."""
    from runner.verbs import VERBS

    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        GENERATE: generate,
        CHECK: check,
        SIMULATE: simulate,
        TOPOLOGY: topology,
        GROUPS: groups,
        TRAFFIC: traffic,
        IMPORT_AIOB: take_aiob,
    }
    check_result_files(options)
    if options.verb in VERBS:
        return VERBS[options.verb].run(options, ROOT)
    return verbs[options.verb](options)


def generate(options: argparse.Namespace) -> int:
    """Writes the workload of a training step, or of a communication test."""
    written = write_files(options, ROOT)
    for note in written.notes:
        print(note, file=sys.stderr)
    for line in written.lines:
        print(line)
    return 0


def take_aiob(options: argparse.Namespace) -> int:
    """Merges AICB's module times into a profile."""
    for line in import_aiob(options):
        print(line)
    return 0


def check(options: argparse.Namespace) -> int:
    """Names the defects of a SimAI workload file."""
    file = read_simai(options.file)
    findings = check_simai(file)
    print(f"{file.name}: {file.num_rows} rows, policy {file.header.policy or 'none'}")
    for line in finding_lines(findings, everything=options.all):
        print(line)
    return int(any(each.severity is not Severity.NOTE for each in findings))


def simulate(options: argparse.Namespace) -> int:
    """Prices a SimAI workload file: by our curves, by SimAI's closed form, or both side by side."""
    file = read_simai(workload_path(options))
    workload = usable_workload(file)
    for line in ignored(options):
        print(line, file=sys.stderr)
    pricing = options.pricing or (CURVES if options.profile else SIMAI_PRICING)
    if pricing == CURVES:
        replay = replayed(options, workload, ROOT)
        for line in replay_lines(replay):
            print(line)
        if options.gpus_per_server is None and not wants_files(options):
            if options.json:
                named = {f"{name}_s": part for name, part in replay.parts.items()}
                write_json(options.json, {**named, "step_s": replay.step_s})
            return warn(file, ())
        print()
    asked = closed_form_options(options, ROOT)
    report = price_simai(workload, asked)
    if options.json:
        parts = {f"{name}_s": part for name, part in report.parts.items()}
        write_json(options.json, {**parts, "step_s": report.total_s, "warnings": list(report.warnings)})
    for line in simai_lines(report):
        print(line)
    for path in write_results(options, workload, asked, report):
        print(f"wrote {path}")
    return warn(file, report.warnings)


def warn(file: SimaiFile, warnings: Sequence[str]) -> int:
    """Prints what is wrong with the file and what its pricing has to say; returns 0."""
    defects = [each for each in check_simai(file) if each.severity is not Severity.NOTE]
    for warning in (*summarised(defects, per_kind=1), *warnings):
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def topology(options: argparse.Namespace) -> int:
    """Writes a topology of the templates, or check a file."""
    if options.check:
        return check_topology(options)
    made = build_topology({each.name: getattr(options, each.name) for each in fields(Fabric)})
    target = options.output or Path(made.file_name)
    target = target / made.file_name if target.is_dir() else target
    write_topology(target, made)
    print(f"wrote {target}: {topology_line(made)}")
    use_topology(made, options)
    return 0


def use_topology(made: Topology, options: argparse.Namespace) -> None:
    """Draws a topology and write it as a cluster sheet, where asked for."""
    if options.picture:
        draw_topology(made, options.picture)
        print(f"wrote {options.picture}")
    if options.write_cluster:
        if options.cluster is None:
            raise ConfigError(
                where="topology", key="--cluster", value=None, allowed="the sheet whose GPUs these are"
            )
        cluster = write_cluster(made, options.cluster, options.write_cluster, root=ROOT)
        print(f"wrote {options.write_cluster}: {cluster.max_nodes} nodes of {cluster.gpus_per_node} GPUs")


def check_topology(options: argparse.Namespace) -> int:
    """Names the defects of a topology file."""
    read, findings = read_topology(options.check)
    print(f"{options.check}: {topology_line(read) if read else 'cannot be used'}")
    for line in finding_lines(findings):
        print(line)
    if read:
        print(shape_line(topology_shape(read)))
        use_topology(read, options)
    return int(any(each.severity is not Severity.NOTE for each in findings))


def groups(options: argparse.Namespace) -> int:
    """Lists the ranks of each group."""
    order = rank_order(options)
    kinds = named_groups(order)
    if options.group:
        kinds = {options.group: rank_groups(order, options.group, independent_ep=options.independent_ep)}
    for kind, members in kinds.items():
        for line in group_lines(kind, members):
            print(line)
    return 0


def traffic(options: argparse.Namespace) -> int:
    """Prints and writes rank-to-rank flows of one collective."""
    order = rank_order(options)
    members = rank_groups(order, options.group, independent_ep=options.independent_ep)
    flows = rank_flows(
        members,
        Collective(options.collective),
        options.size_bytes,
        options.algorithm,
        domain_ranks=options.domain_ranks,
    )
    for line in flow_lines(flows):
        print(line)
    if options.csv:
        write_flows(options.csv, flows)
        print(f"wrote {options.csv}")
    if options.picture:
        title = f"{options.collective} of {options.size_bytes} bytes in {options.group} groups"
        draw_heatmap(flow_matrix(flows, order.world_size), options.picture, title)
        print(f"wrote {options.picture}")
    return 0


def rank_order(options: argparse.Namespace) -> RankOrder:
    """Returns the degrees and the order of the command line."""
    return RankOrder(
        tp=options.tp, cp=options.cp, ep=options.ep, dp=options.dp, pp=options.pp, order=options.order
    )
