"""Check exports of drawn plans and models with a framework's own code.

    python benchmarks/handover.py --framework NAME CHECKOUT [--draws 300] [--seed 0]

Draws plans, job settings and shipped configs that break no rule of the framework, writes what its exporter writes of them, and
hands every file to the parser of the checkout, which runs in a process of its own with stubs for CUDA and for missing packages
(handover_parsers.py). Prints what the exporter refuses, by reason, what its files leave out of what was priced, and what the
parser refuses. Exits with 1 when it refuses a file, with 2 for a folder that is not such a checkout.
"""

import argparse
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.handover_parsers import Case  # noqa: E402
from profdb.modelled.cost_model import ModelledCostModel  # noqa: E402
from solver.plans.plan_table import Plan  # noqa: E402
from solver.problem.problem import Problem  # noqa: E402
from solver.problem.request import check_job  # noqa: E402
from solver.problem.requested_plan import broken_rules, parse_plan, plan_of  # noqa: E402
from solver.times.op_times import OpTimer  # noqa: E402
from spec.cluster.cluster import ClusterSpec  # noqa: E402
from spec.cluster.reader import read_cluster  # noqa: E402
from spec.errors import ConfigError, ExportError  # noqa: E402
from spec.frameworks import FrameworkPreset, framework_preset  # noqa: E402
from spec.parameters import num_parameters  # noqa: E402
from spec.program.command import exit_status  # noqa: E402
from spec.readers.config_file import ConfigFile  # noqa: E402
from spec.readers.read_config import read_config  # noqa: E402
from spec.settings.job import JobRequest, job_of, job_settings  # noqa: E402
from spec.settings.setting import parse_settings  # noqa: E402
from workload.launch_files import EXPORTERS, check_exports  # noqa: E402
from workload.settings.megatron import extra_query_norms  # noqa: E402

PARSERS = Path(__file__).resolve().parent / "handover_parsers.py"
CLUSTER = "h100-sxm"
WORLD = 192  # three stages divide it too
# Values of a plan's keys that are drawn, the usual ones more often; strategies and ZeRO stages are the framework's own.
PLAN_VALUES: dict[str, tuple[object, ...]] = {
    "tp": (1, 1, 2, 4, 8),
    "pp": (1, 1, 1, 2, 3, 4, 8),
    "vpp": (1, 1, 1, 2),
    "cp": (1, 1, 1, 2),
    "ep": (1, 1, 2, 8),
    "zero_size": (0, 0, 0, 16),
    "micro_batch": (1, 1, 2),
    "recompute": ("none", "none", "selective", "full"),
    "recompute_layers": (None, None, None, 1),
    "recompute_modules": (None, None, None, "moe_act", "layernorm+mlp", "mla_up_proj", "shared_experts"),
    "optimizer_offload": (0, 0, 0, 0, 0, 1),
    "offload_modules": (None, None, None, None, "core_attn", "moe_act"),
}
# Up to two of these settings of a job, as of --job, are drawn: those that every framework has, and Megatron-Core's.
COMMON = (
    *("data_parallel.overlap_grad_reduce=false,data_parallel.overlap_param_gather=false", "expandable_segments=true"),
    *("flash_attention=false", "host.checks_numbers=false", "moe_capacity_factor=1.5"),
)
RECIPES = ("fp8-current", "fp8-blockwise", "mxfp8", "nvfp4", "mxfp8,precision.low_precision_head=true")
CORE = (
    *(f"precision.recipe={words}" for words in RECIPES),
    *(
        "precision.moments=bf16",
        "precision.router=fp32",
        "unfused=rotary",
        "task=sft",
        "optimizer=muon",
        "dropout=true",
    ),
    *(
        "data_parallel.overlap_param_gather=false",
        "tensor_parallel.overlap=true",
        "loss.fused=true",
        *("cuda_graphs=attn", "cuda_graphs=attn+mlp", "cuda_graphs=attn+moe_router+moe_preprocess"),
        "cuda_graphs=full_iteration,host.checks_numbers=false",
    ),
    *("moe_dispatcher=deepep", "moe_dispatcher=hybridep", "moe_router_fusion=true", "overlap_expert_a2a=true"),
    *("overlap_shared_experts=true", "context_parallel=all_to_all"),
)
JOB_WORDS = {
    **dict.fromkeys(("megatron", "megatron-bridge"), (*COMMON, *CORE)),
    "megatron-fsdp": (*COMMON, *(words for words in CORE if words != "optimizer=muon")),
    **dict.fromkeys(("accelerate", "torchtitan"), (*COMMON, "context_parallel=all_gather")),
}


def shipped_configs() -> list[Path]:
    """Every model config of this project."""
    folder = ROOT / "configs"
    return sorted(path for path in folder.iterdir() if path.suffix in (".py", ".toml", ".json"))


@cache
def machines() -> tuple[ClusterSpec, OpTimer]:
    """CLUSTER and its modelled times."""
    cluster = read_cluster(CLUSTER, root=ROOT)
    return cluster, OpTimer.on(cluster, ModelledCostModel(cluster=cluster))


def problem_of(read: ConfigFile, framework: str, settings: Mapping[str, object] | None = None) -> Problem:
    """The config's model and job on WORLD GPUs, 16 sequences a rank."""
    seq_len = read.seq_len or 4096
    cluster, op_timer = machines()
    request = JobRequest(
        world_size=WORLD,
        seq_len=seq_len,
        global_batch_tokens=16 * WORLD * seq_len,
        framework=framework,
        settings=settings or {},
    )
    job = job_of(request, cluster.gpu.architecture)
    check_job(read.model, job)
    return Problem(model=read.model, job=job, cluster=cluster, op_timer=op_timer)


def plan_words(rng: random.Random, preset: FrameworkPreset) -> str:
    """A drawn plan, as of --plan."""
    drawn = {key: rng.choice(values) for key, values in PLAN_VALUES.items()}
    drawn["zero_stage"] = rng.choice(preset.data_parallel.zero_stages)
    if drawn["tp"] != 1 and "strategy" not in drawn:
        drawn["strategy"] = rng.choice(preset.tensor_parallel.strategies)
    if drawn["pp"] != 1 and rng.random() < 0.3:
        drawn["schedule"] = rng.choice(preset.pipeline.schedules)
    defaults = {None, 0, "none"}
    return ",".join(f"{key}={value}" for key, value in drawn.items() if value not in defaults or key == "zero_stage")


def drawn_plans(read: ConfigFile, framework: str, seed: str) -> Iterator[tuple[Problem, Plan]]:
    """Plans of the config, each with its job, that break no rule of the framework."""
    rng = random.Random(f"{read.model.name} {framework} {seed}")
    preset, table = framework_preset(framework), job_settings()
    for _ in range(2000):
        words, job = plan_words(rng, preset), rng.sample(JOB_WORDS.get(framework, COMMON), rng.choice((0, 1, 1, 2)))
        try:
            problem = problem_of(read, framework, parse_settings(",".join(job), table, "--job") if job else {})
            plan = plan_of(parse_plan(words), problem, words)
        except ConfigError:
            continue
        if not broken_rules(problem, plan):
            yield problem, plan


@dataclass(slots=True, kw_only=True)
class Exports:
    """``cases`` are the files written, ``refused`` the reasons of those that were not, ``left_out`` what the files say that
    they leave out."""

    cases: list[Case] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: "Exports") -> "Exports":
        self.cases += other.cases
        self.refused += other.refused
        self.left_out += other.left_out
        return self


def exports_of(config: Path, exporter: str, framework: str, count: int, seed: str = "0") -> Exports:
    """The exports of ``count`` drawn plans of a config."""
    read, exports = read_config(config), Exports()
    biases = sum(
        run.count * run.block.moe.num_experts
        for run in read.model.blocks
        if run.block.moe and run.block.moe.router_bias and not run.block.moe.bias
    )
    parameters = num_parameters(read.model)
    for (problem, plan), _ in zip(drawn_plans(read, framework, seed), range(count), strict=False):
        try:
            check_exports([exporter], problem.model, problem.job)
            text = EXPORTERS[exporter].compose[framework](problem, plan)
        except ExportError as error:
            exports.refused[re.sub(r"^--export_\w+: ", "", str(error))] += 1
            continue
        exports.left_out.update(note for note in text.notes if note.startswith("left out"))
        exports.cases.append(
            Case(
                name=f"{config.stem}: {plan.label()}",
                world=plan.world_size,
                dp=plan.dp,
                text=text.text,
                hub=str(config),
                parameters=parameters.total + parameters.mtp - biases + extra_query_norms(read.model),
            )
        )
    return exports


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A check: ``exporter`` writes plans of ``framework``, and the parser of its name (handover_parsers.py) reads them with
    a checkout that contains the file ``mark``."""

    exporter: str
    framework: str
    mark: str


HANDOVERS = {
    "megatron": Handover(exporter="megatron", framework="megatron", mark="megatron/training/arguments.py"),
    "megatron-fsdp": Handover(exporter="megatron", framework="megatron-fsdp", mark="megatron/training/arguments.py"),
    "zero-bubble": Handover(exporter="megatron", framework="zero-bubble", mark="megatron/core/zbpp_utils.py"),
    "megatron-bridge": Handover(exporter="bridge", framework="megatron-bridge", mark="src/megatron/bridge/__init__.py"),
    "deepspeed": Handover(exporter="deepspeed", framework="deepspeed", mark="deepspeed/runtime/config.py"),
    "internevo": Handover(exporter="internevo", framework="internevo", mark="internlm/initialize/launch.py"),
    "accelerate": Handover(exporter="accelerate", framework="accelerate", mark="src/accelerate/commands/launch.py"),
    "torchtitan": Handover(exporter="torchtitan", framework="torchtitan", mark="torchtitan/config/manager.py"),
}


def no_words(config: Path, handover: Handover) -> str:
    """Why no plan of the config's model has a file; "" where some have. Bridge takes models as the Hub has them."""
    if handover.exporter == "bridge" and config.suffix != ".json":
        return "no config of the Hub"
    problem = problem_of(read_config(config), handover.framework)
    try:
        check_exports([handover.exporter], problem.model, problem.job)
    except ExportError as error:
        return str(error)
    return ""


def refusals(handover: Handover, checkout: Path, cases: list[Case]) -> dict[str, str]:
    """The errors of the checkout's parser, by the name of the export.

    Raises ConfigError for a checkout whose parser does not start.
    """
    process = subprocess.run(
        [sys.executable, str(PARSERS), handover.exporter, str(checkout)],
        input=json.dumps([asdict(case) for case in cases]),
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        last = process.stderr.strip().splitlines()[-1] if process.stderr.strip() else "no word"
        raise ConfigError(
            where=f"--framework {handover.framework}",
            key="checkout",
            value=str(checkout),
            allowed=f"one whose parser runs ({last})",
        )
    results = json.loads(process.stdout.splitlines()[-1])
    return {case["name"]: case["refused"] for case in results if case["refused"]}


def hand_over(name: str, checkout: Path, draws: int, seed: str) -> int:
    """The number of refused files, after exporting, parsing and printing."""
    handover = HANDOVERS[name]
    if not (checkout / handover.mark).is_file():
        raise ConfigError(
            where=f"--framework {name}",
            key="checkout",
            value=str(checkout),
            allowed=f"a folder that holds {handover.mark}",
        )
    exports, reasons = Exports(), {config: no_words(config, handover) for config in shipped_configs()}
    for config, reason in reasons.items():
        if reason:
            print(f"no file of a model: {config.stem}: {reason}")
        else:
            count = -(-draws // list(reasons.values()).count(""))
            exports += exports_of(config, handover.exporter, handover.framework, count, seed)
    against = refusals(handover, checkout, exports.cases)
    for title, lines in (("not written", exports.refused), ("in a file's notes", exports.left_out)):
        for line, count in lines.most_common():
            print(f"{title}: {count} x {line}")
    for export, reason in against.items():
        print(f"refused: {export}: {reason}")
    written, missing = len(exports.cases), exports.refused.total()
    models = len({case.name.partition(":")[0] for case in exports.cases})
    print(
        f"{name}: {written + missing} plans drawn, {missing} without a file ({missing / (written + missing):.1%}); "
        f"{written - len(against)} of {written} files of {models} models taken"
    )
    return len(against)


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=tuple(HANDOVERS), required=True)
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT", help="a folder with the framework's code")
    parser.add_argument("--draws", type=int, default=300, help="plans, over all shipped configs")
    parser.add_argument("--seed", default="0")
    options = parser.parse_args(arguments)
    return int(hand_over(options.framework, options.checkout, options.draws, options.seed) > 0)


if __name__ == "__main__":
    sys.exit(exit_status(main))
