"""Check exports of the shipped configs with the frameworks' own parsers.

    python benchmarks/handover.py [--megatron DIR] [--zero_bubble DIR] [--internevo DIR] [--accelerate DIR] [--torchtitan DIR]

Each DIR is a checkout. Its parser runs in a process of its own, with stubs for CUDA and for missing packages that it does
not need. Exits with 1 when a parser refuses an export, with 2 for a folder that is not such a checkout. Checked with
Megatron-LM core_v0.14.0 and core_v0.19.0, the zero-bubble fork's 39f2c18, InternEvo's 02ea919, accelerate's 16cb6eb and
torchtitan's b5bcd76; the last two need their requirements installed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from profdb.modelled.cost_model import ModelledCostModel  # noqa: E402
from solver.plans.plan_table import Plan  # noqa: E402
from solver.problem.problem import Problem  # noqa: E402
from solver.problem.requested_plan import broken_rules, parse_plan, plan_of  # noqa: E402
from solver.times.op_times import OpTimer  # noqa: E402
from spec.cluster.reader import read_cluster  # noqa: E402
from spec.errors import ConfigError, ExportError  # noqa: E402
from spec.program.command import exit_status  # noqa: E402
from spec.readers.read_config import read_config  # noqa: E402
from spec.settings.job import JobRequest, job_of  # noqa: E402
from workload.launch_files import EXPORTERS  # noqa: E402

PARSERS = Path(__file__).resolve().parent / "handover_parsers.py"
CLUSTER = "h100-sxm"
WORLD = 192  # three stages divide it too
# Plans that cover every part of an export; those that a model cannot run are skipped.
PLANS = (
    "tp=1,zero_stage=1",
    "tp=1,pp=4,zero_stage=1,recompute=full",
    "tp=4,strategy=fsp,zero_stage=1",
    "tp=4,strategy=msp,zero_stage=1",
    "tp=8,strategy=fsp,pp=4,vpp=2,zero_stage=1",
    "tp=2,strategy=mtp,pp=2",
    "tp=2,strategy=fsp,cp=2,zero_stage=1,zero_size=16",
    "tp=2,strategy=fsp,pp=8,recompute=full,recompute_layers=1,zero_stage=1",
    "tp=8,strategy=isp,wp=8,zero_stage=1",
    "tp=1,ep=8,zero_stage=1",
    "tp=2,strategy=fsp,ep=8,pp=2,zero_stage=1",
    "tp=1,pp=3,zero_stage=1",
    "tp=2,strategy=mtp,zero_stage=2",
    "tp=1,zero_stage=3",
    "tp=2,strategy=fsp,pp=4,schedule=zb-h1,zero_stage=1",
    "tp=1,pp=4,schedule=zb-h2",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An exported ``text``, named by its config and plan, for ``world`` ranks."""

    name: str
    world: int
    text: str


def shipped_configs() -> list[Path]:
    """Every model config of this project."""
    folder = ROOT / "configs"
    return sorted(path for path in folder.iterdir() if path.suffix in (".py", ".toml", ".json"))


def problem_of(config: Path, framework: str) -> Problem:
    """The config's model and job on WORLD GPUs, 16 sequences a rank."""
    read = read_config(config)
    seq_len = read.seq_len or 4096
    cluster = read_cluster(CLUSTER, root=ROOT)
    return Problem(
        model=read.model,
        job=job_of(
            JobRequest(world_size=WORLD, seq_len=seq_len, global_batch_tokens=16 * WORLD * seq_len, framework=framework)
        ),
        cluster=cluster,
        op_timer=OpTimer.on(cluster, ModelledCostModel(cluster=cluster)),
    )


def possible_plans(problem: Problem) -> Iterator[Plan]:
    """Those of PLANS that break no rule of the framework."""
    for words in PLANS:
        try:
            plan = plan_of(parse_plan(words), problem, words)
        except ConfigError:
            continue
        if not broken_rules(problem, plan):
            yield plan


def exports_of(config: Path, exporter: str, framework: str) -> list[Export] | str:
    """The exports of a config, or the reason why it has none."""
    problem = problem_of(config, framework)
    exports, reason = [], "no plan of the table runs it"
    for plan in possible_plans(problem):
        try:
            text = EXPORTERS[exporter].compose[framework](problem, plan).text
        except ExportError as error:
            reason = str(error)
            continue
        exports.append(Export(name=f"{config.stem}: {plan.label()}", world=plan.world_size, text=text))
    return exports or reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A check: ``exporter`` writes plans of ``framework``, and the parser of its name (handover_parsers.py) reads them with
    a checkout that contains the file ``mark``."""

    exporter: str
    framework: str
    mark: str


HANDOVERS = {
    "megatron": Handover(exporter="megatron", framework="megatron", mark="megatron/training/arguments.py"),
    "zero_bubble": Handover(exporter="megatron", framework="zero-bubble", mark="megatron/core/zbpp_utils.py"),
    "internevo": Handover(exporter="internevo", framework="internevo", mark="internlm/initialize/launch.py"),
    "accelerate": Handover(exporter="accelerate", framework="fsdp", mark="src/accelerate/commands/launch.py"),
    "torchtitan": Handover(exporter="torchtitan", framework="torchtitan", mark="torchtitan/config/manager.py"),
}


def refusals(handover: Handover, checkout: Path, exports: list[Export]) -> dict[str, str]:
    """The errors of the checkout's parser, by the name of the export.

    Raises ConfigError for a checkout whose parser does not start.
    """
    process = subprocess.run(
        [sys.executable, str(PARSERS), handover.exporter, str(checkout)],
        input=json.dumps([asdict(export) for export in exports]),
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        last = process.stderr.strip().splitlines()[-1] if process.stderr.strip() else "no word"
        raise ConfigError(
            where=f"--{handover.exporter}",
            key="checkout",
            value=str(checkout),
            allowed=f"one whose parser runs ({last})",
        )
    results = json.loads(process.stdout.splitlines()[-1])
    return {case["name"]: case["refused"] for case in results if case["refused"]}


def hand_over(name: str, checkout: Path) -> int:
    """The number of refused exports, after exporting, parsing and printing."""
    handover = HANDOVERS[name]
    if not (checkout / handover.mark).is_file():
        raise ConfigError(
            where=f"--{name}", key="checkout", value=str(checkout), allowed=f"a folder that holds {handover.mark}"
        )
    exports: list[Export] = []
    for config in shipped_configs():
        result = exports_of(config, handover.exporter, handover.framework)
        if isinstance(result, str):
            print(f"{name}: {config.stem}: not exported: {result}")
        else:
            exports += result
    against = refusals(handover, checkout, exports)
    for export, reason in against.items():
        print(f"{name}: {export}: refused: {reason}")
    print(f"{name}: {len(exports) - len(against)} of {len(exports)} exports taken by {checkout}")
    return len(against)


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, handover in HANDOVERS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=f"a checkout with {handover.mark}")
    options = vars(parser.parse_args(arguments))
    checkouts = {name: options[name] for name in HANDOVERS if options[name] is not None}
    if not checkouts:
        raise ConfigError(
            where="command line", key="checkout", value=None, allowed=f"one of --{', --'.join(HANDOVERS)} DIR"
        )
    return int(sum(hand_over(name, checkout) for name, checkout in checkouts.items()) > 0)


if __name__ == "__main__":
    sys.exit(exit_status(main))
