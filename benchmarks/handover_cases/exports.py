"""What every shipped config becomes under a framework: an export, or the line that refuses it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from profdb.modelled.cost_model import ModelledCostModel
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from solver.problem.typed_plan import broken_rules, parse_plan, plan_of
from solver.times.op_times import Pricer
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError, ExportError
from spec.readers.read_config import read_config
from spec.settings.job import AskedJob, job_of
from workload.launch_files import EXPORTERS

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "h100-sxm"
WORLD = 192  # three stages divide it too
# plans that every part of an export stands in: those that a model cannot run are left out
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
    """``text`` of one plan of one config; ``name`` is both, ``world`` the ranks it is for."""

    name: str
    world: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a config has no export at all."""

    name: str
    reason: str


def shipped_configs() -> list[Path]:
    """Every model config of this project."""
    folder = ROOT / "configs"
    return sorted(path for path in folder.iterdir() if path.suffix in (".py", ".toml", ".json"))


def asked(config: Path, framework: str) -> Problem:
    """The config's model and job on WORLD GPUs, 16 sequences a rank."""
    read = read_config(config)
    seq_len = read.seq_len or 4096
    cluster = read_cluster(CLUSTER, root=ROOT)
    return Problem(
        model=read.model,
        job=job_of(
            AskedJob(
                world_size=WORLD,
                seq_len=seq_len,
                global_batch_tokens=16 * WORLD * seq_len,
                framework=framework,
            )
        ),
        cluster=cluster,
        pricer=Pricer.on(cluster, ModelledCostModel(cluster=cluster)),
    )


def possible_plans(question: Problem) -> Iterator[Plan]:
    """Those of PLANS that break no rule of the framework."""
    for words in PLANS:
        try:
            plan = plan_of(parse_plan(words), question, words)
        except ConfigError:
            continue
        if not broken_rules(question, plan):
            yield plan


def exports_of(config: Path, exporter: str, framework: str) -> list[Export] | Refusal:
    """The exports of a config, or why it has none."""
    question = asked(config, framework)
    written, reason = [], "no plan of the table runs it"
    for plan in possible_plans(question):
        try:
            text = EXPORTERS[exporter].compose[framework](question, plan).text
        except ExportError as error:
            reason = str(error)
            continue
        written.append(Export(name=f"{config.stem}: {plan.label()}", world=plan.world_size, text=text))
    return written or Refusal(name=config.stem, reason=reason)


def as_plain(export: Export) -> dict[str, object]:
    """For JSON."""
    return asdict(export)
