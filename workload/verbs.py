"""The verbs of run_workload.py that need no device: their options, and what runs them."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from spec.collectives import TRAINING_COLLECTIVES, Collective
from spec.errors import ConfigError
from spec.files import check_outputs
from spec.program.command import OneLineParser, whole
from spec.program.kinds import MOST_BYTES, MOST_GPUS
from workload.aicb.flags import add_generate
from workload.aicb.module_cases import add_import_aiob, import_aiob
from workload.aicb.write_files import write_files
from workload.diagnostics import Severity
from workload.report import finding_lines, flow_lines, group_lines, print_lines, shape_line, topology_line
from workload.simai.check import check_simai
from workload.simai.reader import read_simai
from workload.simulate import add_simulate, simulate
from workload.topology.hardware_spec import topology_shape, write_cluster
from workload.topology.templates import TEMPLATES, Fabric, build_topology
from workload.topology.topology import Topology, draw_topology, read_topology, write_topology
from workload.traffic.flows import ALGORITHMS, flow_matrix, rank_flows, write_flows
from workload.traffic.plan_traffic import draw_heatmap
from workload.traffic.ranks import DEFAULT_ORDER, RankOrder, named_groups, rank_groups

PROGRAM = "run_workload.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadVerb:
    """A verb: what it does, who adds its options, and what runs it in the project folder and returns the exit status
    (1: the file checked has defects). ``written`` and ``read`` are its options that name files."""

    what: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Path], int]
    written: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


def generate(options: argparse.Namespace, root: Path) -> int:
    """Writes the workload of a training step, or of a communication test."""
    notes, lines = write_files(options, root)
    for note in notes:
        print(note, file=sys.stderr)
    return print_lines(lines)


def merge_aiob(options: argparse.Namespace, _: Path) -> int:
    """Merges AICB's module times into a profile."""
    return print_lines(import_aiob(options))


def add_check(verb: argparse.ArgumentParser) -> None:
    """All options of ``check``."""
    verb.add_argument("file", type=Path, help="SimAI workload")
    verb.add_argument("--all", action="store_true", help="every finding (default: three of a kind)")


def check(options: argparse.Namespace, _: Path) -> int:
    """Names the defects of a SimAI workload file."""
    file = read_simai(options.file)
    findings = check_simai(file)
    print(f"{file.name}: {file.num_rows} rows, policy {file.header.policy or 'none'}")
    print_lines(finding_lines(findings, everything=options.all))
    return int(any(each.severity is not Severity.NOTE for each in findings))


def add_topology(verb: argparse.ArgumentParser) -> None:
    """All options of ``topology``."""
    add = verb.add_argument
    add("-topo", "--topology", dest="template", help=f"template: {', '.join(TEMPLATES)}")
    for flag, name, what in (
        ("--ro", "rail_optimised", "rail-optimised"),
        ("--dt", "dual_tor", "two ToRs (DCN+)"),
        ("--dp", "dual_plane", "two planes (AlibabaHPN)"),
    ):
        add(flag, dest=name, action="store_true", help=what)
    for flags, name, what in (
        (("-g", "--gpu"), "gpus", "GPUs"),
        (("-gps", "--gpu_per_server"), "gpus_per_server", "GPUs per server or rack"),
        (("-nsps", "--nv_switch_per_server"), "nv_switches_per_server", "NV switches per server"),
        (("-asn", "--asw_switch_num"), "num_asw", "ASWs; must be what the GPUs take"),
        (("-npa", "--nics_per_aswitch"), "nics_per_asw", "NICs per ASW"),
        (("-psn", "--psw_switch_num"), "num_psw", "PSWs"),
        (("-app", "--asw_per_psw"), "asw_per_psw", "ASWs one PSW can take"),
    ):
        add(*flags, dest=name, type=whole(0, MOST_GPUS), help=what)
    for flags, name, what in (
        (("-gt", "--gpu_type"), "gpu_type", "GPU type, one word"),
        (("-nvbw", "--nvlink_bw"), "nvlink_bandwidth", "GPU to NV switch, such as 2880Gbps"),
        (("-nl", "--nv_latency"), "nv_latency", "of NVLink, such as 0.000025ms"),
        (("-bw", "--bandwidth"), "bandwidth", "NIC to ASW, such as 400Gbps"),
        (("-l", "--latency"), "latency", "of Ethernet, such as 0.0005ms"),
        (("-apbw", "--ap_bandwidth"), "uplink_bandwidth", "ASW to PSW, such as 400Gbps"),
        (("-er", "--error_rate"), "error_rate", "share of damaged packets"),
    ):
        add(*flags, dest=name, help=what)
    add("-o", "--output", type=Path, help="file or folder (default: the template's name, here)")
    add("--picture", type=Path, help="draw it (up to 400 nodes)")
    add("--check", type=Path, metavar="FILE", help="check this topology file instead")
    add("--write_cluster", type=Path, metavar="TOML", help="write a hardware spec of this network")
    add("--cluster", help="with --write_cluster: the hardware spec of the GPU, latencies and switches")


def topology(options: argparse.Namespace, root: Path) -> int:
    """Writes a topology of the templates, or check a file."""
    if options.check:
        return check_topology(options, root)
    made = build_topology({each.name: getattr(options, each.name) for each in fields(Fabric)})
    target = options.output or Path(made.file_name)
    target = target / made.file_name if target.is_dir() else target
    # A hardware spec that cannot be made is refused before anything is written.
    use_topology(made, options, root)
    write_topology(target, made)
    print(f"wrote {target}: {topology_line(made)}")
    return 0


def use_topology(made: Topology, options: argparse.Namespace, root: Path) -> None:
    """Draws a topology and writes it as a hardware spec, where requested."""
    if options.picture:
        draw_topology(made, options.picture)
        print(f"wrote {options.picture}")
    if options.write_cluster:
        if options.cluster is None:
            raise ConfigError(
                where="topology", key="--cluster", value=None, allowed="the hardware spec whose GPUs these are"
            )
        cluster = write_cluster(made, options.cluster, options.write_cluster, root=root)
        print(f"wrote {options.write_cluster}: {cluster.max_nodes} nodes of {cluster.gpus_per_node} GPUs")


def check_topology(options: argparse.Namespace, root: Path) -> int:
    """Names the defects of a topology file."""
    read, findings = read_topology(options.check)
    print(f"{options.check}: {topology_line(read) if read else 'cannot be used'}")
    print_lines(finding_lines(findings))
    if read:
        print(shape_line(topology_shape(read)))
        use_topology(read, options, root)
    return int(any(each.severity is not Severity.NOTE for each in findings))


def _degrees(verb: argparse.ArgumentParser) -> None:
    for axis in ("tp", "cp", "ep", "dp", "pp"):
        verb.add_argument(f"--{axis}", type=whole(1, MOST_GPUS), default=1, help="ranks (default 1)")
    verb.add_argument("--order", default=DEFAULT_ORDER, help=f"fastest first (default {DEFAULT_ORDER})")


def add_groups(verb: argparse.ArgumentParser) -> None:
    """All options of ``groups``."""
    _degrees(verb)
    verb.add_argument("--group", help="one group kind, such as tp or dp-cp (default: all)")
    verb.add_argument("--independent_ep", action="store_true", help="with --group: split dp by ep")


def groups(options: argparse.Namespace, _: Path) -> int:
    """Lists the ranks of each group."""
    order = rank_order(options)
    kinds = named_groups(order)
    if options.group:
        kinds = {options.group: rank_groups(order, options.group, independent_ep=options.independent_ep)}
    for kind, members in kinds.items():
        print_lines(group_lines(kind, members))
    return 0


def add_traffic(verb: argparse.ArgumentParser) -> None:
    """All options of ``traffic``."""
    add = verb.add_argument
    _degrees(verb)
    add("--group", required=True, help="which groups communicate, such as tp or dp-cp")
    add("--independent_ep", action="store_true", help="split dp by ep")
    add("--collective", required=True, choices=[kind.value for kind in TRAINING_COLLECTIVES], help="what they run")
    add("--size_bytes", required=True, type=whole(1, MOST_BYTES), help="whole array on one rank")
    add("--algorithm", choices=ALGORITHMS, default="ring", help="default ring")
    add("--domain_ranks", type=whole(0, MOST_GPUS), default=0, help="GPUs of a scale-up domain (hierarchical)")
    add("--csv", type=Path, help="write the flows")
    add("--picture", type=Path, help="draw the rank matrix")


def traffic(options: argparse.Namespace, _: Path) -> int:
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
    print_lines(flow_lines(flows))
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
    return RankOrder(tp=options.tp, cp=options.cp, ep=options.ep, dp=options.dp, pp=options.pp, order=options.order)


VERBS: dict[str, WorkloadVerb] = {
    "generate": WorkloadVerb(
        what="write the workload of a training step",
        add_flags=add_generate,
        run=generate,
        written=("output", "write_aiob"),
        read=("config", "profile", "comp_filepath"),
    ),
    "check": WorkloadVerb(what="name the defects of a SimAI workload file", add_flags=add_check, run=check),
    "simulate": WorkloadVerb(
        what="price a SimAI workload file",
        add_flags=add_simulate,
        run=simulate,
        written=("json", "rows"),
        read=("file", "workload", "profile", "busbw"),
    ),
    "topology": WorkloadVerb(
        what="write, check or draw a topology",
        add_flags=add_topology,
        run=topology,
        written=("output", "picture", "write_cluster"),
        read=("check", "cluster"),
    ),
    "groups": WorkloadVerb(what="list the ranks of each group", add_flags=add_groups, run=groups),
    "import-aiob": WorkloadVerb(
        what="merge AICB's module times into a profile", add_flags=add_import_aiob, run=merge_aiob
    ),
    "traffic": WorkloadVerb(
        what="rank-to-rank flows of a collective", add_flags=add_traffic, run=traffic, written=("csv", "picture")
    ),
}


# The command line of all verbs.

# One dash and a whole word: argparse would take its first letter for a short flag and the rest for a value.
WORD = re.compile(r"-[A-Za-z][\w-]+")


class WholeWords(OneLineParser):
    """A parser of a verb that names an unknown flag in full."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As its parent, unless a word with one dash is no flag of the verb."""
        known = {name for action in self._actions for name in action.option_strings}
        for word in args or ():
            name = WORD.match(word)
            if name and name[0] not in known and word not in known:
                self.error(f"unrecognized arguments: {word}")
        return super().parse_known_args(args, namespace)


def parser(verbs: Mapping[str, WorkloadVerb] = VERBS, program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns the parser of every verb and its options, typed after ``program``."""
    parser = OneLineParser(
        prog=program,
        version=True,
        description="Generate, check, replay, lay out and run what a training step runs.",
        allow_abbrev=False,
    )
    parts = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=WholeWords)
    for name, verb in verbs.items():
        verb.add_flags(parts.add_parser(name, help=verb.what, allow_abbrev=False))
    return parser


def check_result_files(options: argparse.Namespace, verb: WorkloadVerb) -> None:
    """Raise ConfigError for a result that cannot be written, or is a file that is read or another result, before any
    work is done. An output that is a folder gets a file of the verb's naming in it."""
    written = {f"--{name}": getattr(options, name) for name in verb.written}
    read = {f"--{name}": getattr(options, name) for name in verb.read}
    check_outputs(
        {option: path for option, path in written.items() if path is not None and not path.is_dir()},
        folders={"--bundle": getattr(options, "bundle", None)},
        inputs={option: Path(path) if path is not None else None for option, path in read.items()},
    )
