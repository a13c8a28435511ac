"""Operations are told by module and role: under other labels no second and no byte changes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import count

import pytest

from ops.recompute import Recompute
from ops.roles import Identity
from profdb.modelled.cost_model import ModelledCostModel
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.times.op_times import OpTimer
from spec.cluster.reader import read_cluster
from spec.frameworks import FrameworkPreset, framework_preset
from spec.job import JobSpec, precision_of
from spec.model import BlockRun, MlpSpec, ModelSpec
from tests.solver.questions import ROOT, small_model
from tests.workload.random_plans import EXPERTS, LATENT
from workload.aicb.aiob import MODULE_SECTIONS, aiob_of, aiob_times_ns, with_aiob_times
from workload.aicb.plan_rows import GeneralOptions, general_items
from workload.simai.export import beyond_of, header_of, rows_of
from workload.stage_work import StageWork, stage_works

SEQUENCES = 32
H100 = read_cluster("h100-sxm", root=ROOT)
COST_MODEL = ModelledCostModel(cluster=H100)
DENSE = small_model(layers=4)
BLOCK = DENSE.blocks[0].block
MIXED = replace(
    DENSE,
    blocks=(
        BlockRun(block=BLOCK, count=1),
        BlockRun(block=replace(BLOCK, mixer=LATENT, mlp=None, moe=EXPERTS), count=3),
    ),
)
OPEN_EXPERTS = replace(EXPERTS, bias=True, clamped=True, shared_gate=True)
PLAIN = replace(
    DENSE,
    blocks=(BlockRun(block=replace(BLOCK, mlp=MlpSpec(ffn_hidden=2048, gated=False, bias=True)), count=4),),
    tied_embeddings=True,
)


def asked(model: ModelSpec, preset: FrameworkPreset, world_size: int, **changes: object) -> Problem:
    """A question whose host holds up every operation, on the sheet of a DGX H100."""
    job = JobSpec(
        world_size=world_size,
        seq_len=512,
        global_batch_tokens=SEQUENCES * 512,
        preset=preset,
        precision=precision_of(preset),
    )
    job = replace(job, **changes)
    return Problem(model=model, job=job, cluster=H100, op_timer=OpTimer.on(H100, COST_MODEL))


@dataclass(frozen=True)
class Case:
    """A model under a preset, and the plan for it."""

    model: ModelSpec
    preset: FrameworkPreset
    plan: dict[str, object]
    job: dict[str, object]


MEGATRON, FSDP, DEEPSPEED = (framework_preset("megatron"), framework_preset("fsdp"), framework_preset("deepspeed"))
FP8 = replace(precision_of(MEGATRON), linear="fp8", scale_recipe="tensor", scaling="delayed")
GRAPHS = frozenset({"attn", "mlp", "moe_router", "moe_preprocess"})
MODULES = ("layernorm", "mla_up_proj", "mlp", "moe_act", "shared_experts")
SLICED = DEEPSPEED.changed({"data_parallel.sliced_collectives": True})
CASES = {
    "selective, unfused": Case(
        DENSE,
        MEGATRON,
        {"strategy": "msp", "tp": 2, "dp": 4, "recompute": Recompute.SELECTIVE},
        {"flash_attention": False, "dropout": True, "unfused": frozenset({"norm", "softmax", "rotary"})},
    ),
    "tied, stages": Case(PLAIN, MEGATRON, {"strategy": "fsp", "tp": 2, "pp": 2, "dp": 2}, {"fp32_norms": True}),
    "experts, CUDA graphs": Case(
        MIXED,
        MEGATRON,
        {"strategy": "fsp", "tp": 2, "dp": 4, "ep": 4, "etp": 2},
        {"cuda_graphs": GRAPHS, "overlap_shared_experts": True},
    ),
    "latents, modules again": Case(
        MIXED,
        MEGATRON,
        {"strategy": "fsp", "tp": 2, "dp": 4, "ep": 4, "recompute_modules": MODULES},
        {"moe_dispatcher": "deepep", "precision": FP8},
    ),
    "gpt-oss's experts again": Case(
        replace(MIXED, blocks=(BlockRun(block=replace(BLOCK, mlp=None, moe=OPEN_EXPERTS), count=4),)),
        MEGATRON,
        {"strategy": "mtp", "dp": 8, "ep": 2, "recompute_modules": ("moe", "moe_act")},
        {"overlap_expert_a2a": True},
    ),
    "isp": Case(
        DENSE,
        framework_preset("internevo"),
        {"strategy": "isp", "tp": 2, "pp": 2, "dp": 2, "wp": 4, "recompute_modules": ("dropout_norm",)},
        {},
    ),
    "isp again": Case(
        DENSE, framework_preset("internevo"), {"strategy": "isp", "tp": 2, "dp": 4, "recompute": Recompute.FULL}, {}
    ),
    "FSDP, every second product": Case(
        DENSE,
        FSDP.changed({"layers.joined_gate": False}),
        {"strategy": "mtp", "cp": 2, "dp": 4, "zero_stage": 3, "zero_size": 8, "recompute": Recompute.SELECTIVE},
        {},
    ),
    "ZeRO-3 in slices": Case(
        DENSE, SLICED, {"strategy": "mtp", "dp": 8, "zero_stage": 3, "zero_size": 8, "recompute": Recompute.FULL}, {}
    ),
    "offload": Case(
        DENSE, DEEPSPEED, {"strategy": "mtp", "dp": 8, "zero_stage": 2, "zero_size": 8, "optimizer_offload": 1.0}, {}
    ),
    "offloaded layers": Case(
        DENSE, MEGATRON, {"strategy": "mtp", "dp": 8, "offloaded_layers": 2, "optimizer_offload": 0.5}, {}
    ),
}

CASES |= {
    strategy: Case(DENSE, framework_preset(framework), {"strategy": strategy, "tp": 2, "dp": 4}, {})
    for strategy, framework in zip(
        ("mtp", "fsp", "msp", "isp", "ulysses"),
        ("megatron", "megatron", "internevo", "internevo", "deepspeed"),
        strict=True,
    )
}

# Strategies that other cases run with more beside them.
BY_NIGHT = frozenset({"mtp", "fsp", "msp"})


def told(case: Case) -> dict[str, object]:
    """All numbers of a case: price, memory and what is exported; no label."""
    sizes = {"micro_batch": 1, **case.plan}
    dp = int(str(sizes["dp"]))
    plan = Plan(preset=case.preset.name, num_micro=SEQUENCES // dp, **sizes)
    question = asked(case.model, case.preset, plan.world_size, **case.job)
    (answer,) = price_plan(question, PlanTable.of(plan))
    works = stage_works(question, plan)
    numbers: dict[str, object] = asdict(answer)
    for work in works:
        numbers[f"stage {work.position}"] = exported(plan, work)
    if not any(item.module not in MODULE_SECTIONS for work in works for item in compute_of(work)):
        file = aiob_of(works)
        timed = with_aiob_times(works[0], aiob_times_ns(file))
        numbers["aiob"] = [file, [item.seconds for item in compute_of(timed)]]
    return numbers


@cache
def told_by_itself(name: str) -> dict[str, object]:
    """A case under its own labels."""
    return told(CASES[name])


def compute_of(work: StageWork) -> list[object]:
    """Compute items of the forward and the step."""
    items = [item for piece in work.pieces for item in piece.forward] + list(work.step)
    return [item for item in items if item.collective is None]


def exported(plan: Plan, work: StageWork) -> list[object]:
    """Rows of the SimAI file and what stays beyond it, rows of the general workload; labels left out."""
    header = header_of(plan, work)
    rows = [
        tuple(getattr(row, each.name) for each in fields(row) if each.name != "name")
        for row in rows_of(work, header, plan)
    ]
    beyond: Counter[tuple[str, str]] = Counter()
    for one in beyond_of(work, header, plan):
        beyond[(one.collective, one.axis)] += one.total_bytes
    general = [
        (item.comm_type, item.comm_group, item.msg_size, item.shapes, item.elapsed_ms)
        for item in general_items(plan, work, GeneralOptions(computation=True, timed=True))
    ]
    return [rows, beyond, general]


def all_alike() -> Callable[[], str]:
    """One label for everything."""
    return lambda: "operation"


def all_different() -> Callable[[], str]:
    """A label of its own for everything that is made, a copy of an operation included."""
    numbers = count()
    return lambda: f"operation {next(numbers)}"


@pytest.mark.parametrize("labels", [all_alike, pytest.param(all_different, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in BY_NIGHT else []) for name in CASES]
)
def test_no_second_and_no_byte_is_told_by_a_label(
    name: str, labels: Callable[[], Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = told_by_itself(name)
    label = labels()
    monkeypatch.setattr(Identity, "__post_init__", lambda self: object.__setattr__(self, "name", label()))
    assert told(CASES[name]) == before
