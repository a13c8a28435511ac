"""The options of run_workload.py, one parser a verb."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spec.collectives import TRAINING_COLLECTIVES
from spec.files import check_outputs
from spec.program.command import OneLineParser, add_version, decimal, whole
from spec.program.kinds import MOST_BYTES, MOST_GPUS
from workload.aicb.aiob import add_import_aiob
from workload.aicb.flags import add_generate
from workload.simai.busbw import NIC_GIB, NVLINK_GIB
from workload.topology.templates import TEMPLATES
from workload.traffic.flows import ALGORITHMS
from workload.traffic.ranks import DEFAULT_ORDER

CHECK = "check"
GENERATE = "generate"
SIMAI_PRICING = "simai"
CURVES = "curves"
SIMULATE = "simulate"
TOPOLOGY = "topology"
GROUPS = "groups"
IMPORT_AIOB = "import-aiob"
TRAFFIC = "traffic"

GIB_PER_S = (1e-3, 1e6)
"""Slowest and fastest link that anybody means."""


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


AddFlags = Callable[[argparse.ArgumentParser], None]


PROGRAM = "run_workload.py"


def parser(
    more: Mapping[str, tuple[str, AddFlags]] | None = None, program: str = PROGRAM
) -> argparse.ArgumentParser:
    """Every verb and its options, typed after ``program``; ``more`` verbs have what they do and who adds
    their options.
    """
    parser = OneLineParser(
        prog=program,
        description="Generate, check, replay, lay out and run what a training step runs.",
        allow_abbrev=False,
    )
    add_version(parser)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=WholeWords)
    add_generate(verbs.add_parser(GENERATE, help="write the workload of a training step", allow_abbrev=False))
    _check(verbs.add_parser(CHECK, help="name the defects of a SimAI workload file", allow_abbrev=False))
    _simulate(verbs.add_parser(SIMULATE, help="price a SimAI workload file", allow_abbrev=False))
    _topology(verbs.add_parser(TOPOLOGY, help="write, check or draw a topology", allow_abbrev=False))
    _groups(verbs.add_parser(GROUPS, help="list the ranks of each group", allow_abbrev=False))
    add_import_aiob(
        verbs.add_parser(IMPORT_AIOB, help="merge AICB's module times into a profile", allow_abbrev=False)
    )
    _traffic(verbs.add_parser(TRAFFIC, help="rank-to-rank flows of a collective", allow_abbrev=False))
    for name, (what, add_flags) in (more or {}).items():
        add_flags(verbs.add_parser(name, help=what, allow_abbrev=False))
    return parser


def _check(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("file", type=Path, help="SimAI workload")
    verb.add_argument("--all", action="store_true", help="every finding (default: three of a kind)")


def _simulate(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("file", type=Path, nargs="?", help="SimAI workload (or -w)")
    verb.add_argument(
        "--pricing",
        choices=(SIMAI_PRICING, CURVES),
        help="simai: the closed form of SimAI-Analytical; curves: our replay (default with --profile)",
    )
    verb.add_argument("--profile", type=Path, help="replay with the curves of this profile")
    verb.add_argument("--cluster", help="sheet of configs/clusters (default: the profile's)")
    verb.add_argument(
        "--missing", choices=("error", "modelled"), default="error", help="what a missing curve is"
    )
    verb.add_argument(
        "--nvlink_segment",
        type=whole(0, MOST_GPUS),
        default=0,
        help="with --profile: GPUs of each NVLink domain of several nodes that the job gets (default: the most, as in a question)",
    )
    _binary(verb.add_argument_group("as SimAI_analytical has them"))
    verb.add_argument(
        "--ratio_dir",
        type=Path,
        help="SimAI's inputs/ratio folder (default: as shipped, configs/simai_ratio)",
    )
    verb.add_argument("--json", type=Path, help="write the parts (seconds) to this file")
    verb.add_argument("--rows", type=Path, help="write what the closed form takes for each row to this file")


def _binary(world: argparse._ArgumentGroup) -> None:
    """Every option of SimAI_analytical, under its names."""
    world.add_argument("-w", "--workload", type=Path, help="SimAI workload")
    world.add_argument(
        "-g", "--gpus", type=whole(1, MOST_GPUS), help="world size (default: the header's all_gpus)"
    )
    world.add_argument("-g_p_s", "--gpus-per-server", type=whole(1, MOST_GPUS), help="scale-up size")
    world.add_argument("-n_p_s", "--nic_per_server", type=whole(1, MOST_GPUS), help="NICs per server")
    world.add_argument(
        "-nv", "--nvlink", type=decimal(*GIB_PER_S), help="NVLink GiB/s per GPU (default: by -g_type)"
    )
    world.add_argument(
        "-nic", "--nic_busbw", type=decimal(*GIB_PER_S), help="GiB/s per NIC (default: by -nic_t)"
    )
    world.add_argument("-g_type", "--gpu_type", dest="g_type", help=f"GPU: {', '.join(NVLINK_GIB)}")
    world.add_argument(
        "-nic_t", "--nic_type", dest="nic_t", default="cx7", help=f"NIC: {', '.join(NIC_GIB)} (default cx7)"
    )
    for axis, what, default in (
        ("dp", "data-parallel", 0.0),
        ("tp", "tensor-parallel", 0.0),
        ("ep", "expert-parallel", 0.0),
        ("pp", "pipeline", 1.0),
    ):
        world.add_argument(
            *(f"-{axis}_o", f"--{axis}_overlap"),
            dest=f"{axis}_o",
            type=decimal(0.0, 1.0),
            default=default,
            help=f"hidden share of {what} time ({default})",
        )
    world.add_argument("-busbw", type=Path, help="bus bandwidths by group, small yaml")
    world.add_argument("-r", "--result", help="prefix: write results/PREFIXEndToEnd.csv as the binary does")
    world.add_argument("-r_f", "--result_folder", help="folder in results/ for it")
    world.add_argument("-v", "--visual", help="accepted: no chart is drawn here")
    world.add_argument("-l", "--lang", help="accepted: no chart is drawn here")


def _topology(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-topo", "--topology", dest="template", help=f"template: {', '.join(TEMPLATES)}")
    for flag, name, what in (
        ("--ro", "rail_optimised", "rail-optimised"),
        ("--dt", "dual_tor", "two ToRs (DCN+)"),
        ("--dp", "dual_plane", "two planes (AlibabaHPN)"),
    ):
        verb.add_argument(flag, dest=name, action="store_true", help=what)
    for flags, name, what in (
        (("-g", "--gpu"), "gpus", "GPUs"),
        (("-gps", "--gpu_per_server"), "gpus_per_server", "GPUs per server or rack"),
        (("-nsps", "--nv_switch_per_server"), "nv_switches_per_server", "NV switches per server"),
        (("-asn", "--asw_switch_num"), "num_asw", "ASWs; must be what the GPUs take"),
        (("-npa", "--nics_per_aswitch"), "nics_per_asw", "NICs per ASW"),
        (("-psn", "--psw_switch_num"), "num_psw", "PSWs"),
        (("-app", "--asw_per_psw"), "asw_per_psw", "ASWs one PSW can take"),
    ):
        verb.add_argument(*flags, dest=name, type=whole(0, MOST_GPUS), help=what)
    for flags, name, what in (
        (("-gt", "--gpu_type"), "gpu_type", "GPU type, one word"),
        (("-nvbw", "--nvlink_bw"), "nvlink_bandwidth", "GPU to NV switch, such as 2880Gbps"),
        (("-nl", "--nv_latency"), "nv_latency", "of NVLink, such as 0.000025ms"),
        (("-bw", "--bandwidth"), "bandwidth", "NIC to ASW, such as 400Gbps"),
        (("-l", "--latency"), "latency", "of Ethernet, such as 0.0005ms"),
        (("-apbw", "--ap_bandwidth"), "uplink_bandwidth", "ASW to PSW, such as 400Gbps"),
        (("-er", "--error_rate"), "error_rate", "share of damaged packets"),
    ):
        verb.add_argument(*flags, dest=name, help=what)
    verb.add_argument("-o", "--output", type=Path, help="file or folder (default: the template's name, here)")
    verb.add_argument("--picture", type=Path, help="draw it (up to 400 nodes)")
    verb.add_argument("--check", type=Path, metavar="FILE", help="check this topology file instead")
    verb.add_argument(
        "--write_cluster", type=Path, metavar="TOML", help="write a cluster sheet of this network"
    )
    verb.add_argument("--cluster", help="with --write_cluster: the sheet of the GPU, latencies and switches")


def _degrees(verb: argparse.ArgumentParser) -> None:
    for axis in ("tp", "cp", "ep", "dp", "pp"):
        verb.add_argument(f"--{axis}", type=whole(1, MOST_GPUS), default=1, help="ranks (default 1)")
    verb.add_argument("--order", default=DEFAULT_ORDER, help=f"fastest first (default {DEFAULT_ORDER})")


def _groups(verb: argparse.ArgumentParser) -> None:
    _degrees(verb)
    verb.add_argument("--group", help="one group kind, such as tp or dp-cp (default: all)")
    verb.add_argument("--independent_ep", action="store_true", help="with --group: split dp by ep")


def _traffic(verb: argparse.ArgumentParser) -> None:
    _degrees(verb)
    verb.add_argument("--group", required=True, help="which groups communicate, such as tp or dp-cp")
    verb.add_argument("--independent_ep", action="store_true", help="split dp by ep")
    verb.add_argument(
        "--collective",
        required=True,
        choices=[kind.value for kind in TRAINING_COLLECTIVES],
        help="what they run",
    )
    verb.add_argument(
        "--size_bytes", required=True, type=whole(1, MOST_BYTES), help="whole array on one rank"
    )
    verb.add_argument("--algorithm", choices=ALGORITHMS, default="ring", help="default ring")
    verb.add_argument(
        "--domain_ranks", type=whole(0, MOST_GPUS), default=0, help="GPUs of a scale-up domain (hierarchical)"
    )
    verb.add_argument("--csv", type=Path, help="write the flows")
    verb.add_argument("--picture", type=Path, help="draw the rank matrix")


# Which options of a verb name the files it writes, and which the files it reads.

WRITTEN: dict[str, tuple[str, ...]] = {
    GENERATE: ("output", "write_aiob"),
    SIMULATE: ("json", "rows"),
    TOPOLOGY: ("output", "picture", "write_cluster"),
    TRAFFIC: ("csv", "picture"),
}
READ: dict[str, tuple[str, ...]] = {
    GENERATE: ("config", "profile", "comp_filepath"),
    SIMULATE: ("file", "workload", "profile", "busbw"),
    TOPOLOGY: ("check", "cluster"),
}


def check_result_files(options: argparse.Namespace) -> None:
    """Raise ConfigError for a result that cannot be written, or is a file that is read or another result, before any
    work is done. An output that is a folder gets a file of the verb's naming in it."""
    written = {f"--{name}": getattr(options, name) for name in WRITTEN.get(options.verb, ())}
    read = {f"--{name}": getattr(options, name) for name in READ.get(options.verb, ())}
    check_outputs(
        {option: path for option, path in written.items() if path is not None and not path.is_dir()},
        folders={"--bundle": getattr(options, "bundle", None)},
        inputs={option: Path(path) if path is not None else None for option, path in read.items()},
    )
