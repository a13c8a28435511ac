"""The plan and job of a generator command: AICB's flags as a question and a plan of the solver."""

from dataclasses import dataclass

from ops.recompute.layers import Recompute
from profdb.curvebook import Book
from solver.plans.plan_table import Plan
from solver.question import Question
from solver.request import checked_world_size
from solver.schedules.registry import Schedule
from solver.times.op_times import Pricer
from solver.typed_plan import broken_rules
from spec.cluster.cluster import ClusterSpec
from spec.cluster.segment import segmented
from spec.job import JobSpec, precision_of
from spec.model import ModelSpec
from spec.presets.preset import FrameworkPreset
from spec.presets.registry import preset_named
from workload.aicb.generate.fixed_book import FixedBook
from workload.aicb.generate.shape_flags import DEEPSPEED, FSDP, refuse

DEFAULT_SEQUENCE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags:
    """What was typed about the training. ``global_batch`` and ``micro_batch`` count sequences, bucket
    sizes count elements (DeepSpeed's own unit); None is the framework's default."""

    frame: str
    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    vpp: int = 1
    global_batch: int | None = None
    micro_batch: int = 1
    seq_length: int | None = None
    sequence_parallel: bool = False
    flash_attention: bool = False
    distributed_optimizer: bool = False
    recompute: Recompute = Recompute.NONE
    zero_stage: int | None = None
    reduce_bucket_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question and the one plan that the flags describe."""

    question: Question
    plan: Plan


def asked(flags: TrainingFlags, model: ModelSpec, cluster: ClusterSpec, book: Book) -> Asked:
    """The solver's question and plan for the flags.

    Raises ConfigError for degrees that do not divide, and for plans the framework cannot run.
    """
    dp = _data_parallel(flags, cluster)
    cluster = segmented(cluster, flags.world_size)
    batch = flags.global_batch if flags.global_batch is not None else dp * flags.micro_batch
    if flags.micro_batch < 1 or batch < 1 or batch % (dp * flags.micro_batch):
        raise refuse(
            "global_batch", batch, f"a positive multiple of dp {dp} x micro_batch {flags.micro_batch}"
        )
    seq_length = flags.seq_length or DEFAULT_SEQUENCE
    preset = _preset(flags)
    job = JobSpec(
        world_size=flags.world_size,
        seq_len=seq_length,
        global_batch_tokens=batch * seq_length,
        preset=preset,
        precision=precision_of(preset),
        flash_attention=flags.flash_attention,
    ).on(cluster.gpu.architecture)
    plan = _plan(flags, model, preset, (dp, batch // (dp * flags.micro_batch)))
    # A fixed time is what was asked for: no clock under load changes it.
    fixed = isinstance(book, FixedBook)
    pricer = Pricer(book=book, domain_ranks=cluster.scale_up_ranks) if fixed else Pricer.on(cluster, book)
    question = Question(model=model, job=job, cluster=cluster, pricer=pricer)
    broken = broken_rules(question, plan)
    if broken:
        raise refuse("frame", flags.frame, f"cannot run {plan.label()}: {'; '.join(broken)}")
    return Asked(question=question, plan=plan)


def _data_parallel(flags: TrainingFlags, cluster: ClusterSpec) -> int:
    """Ranks left for data parallelism, once every degree divides what it must divide."""
    named = {
        "tensor_model_parallel_size": flags.tp,
        "pipeline_model_parallel": flags.pp,
        "context_parallel_size": flags.cp,
        "expert_model_parallel_size": flags.ep,
        "virtual_pipeline_model_parallel_size": flags.vpp,
    }
    for name, value in named.items():
        if value < 1:
            raise refuse(name, value, "1 or more")
    world = checked_world_size(flags.world_size, cluster)
    split = flags.tp * flags.pp * flags.cp
    if world % split:
        raise refuse("world_size", world, f"a multiple of tp {flags.tp} x pp {flags.pp} x cp {flags.cp}")
    if flags.vpp > 1 and flags.pp == 1:
        raise refuse("virtual_pipeline_model_parallel_size", flags.vpp, "1 without a pipeline")
    return world // split


def _preset(flags: TrainingFlags) -> FrameworkPreset:
    name = {DEEPSPEED: "deepspeed", FSDP: "fsdp"}.get(flags.frame, "megatron")
    preset = preset_named(name, where="--frame")
    if flags.reduce_bucket_size is not None:
        if flags.reduce_bucket_size < 1:
            raise refuse("reduce_bucket_size", flags.reduce_bucket_size, "elements, 1 or more")
        preset = preset.changed(
            {
                "data_parallel.bucket_elements": flags.reduce_bucket_size,
                "data_parallel.bucket_elements_per_rank": 0,
            }
        )
    return preset


def _plan(flags: TrainingFlags, model: ModelSpec, preset: FrameworkPreset, batch: tuple[int, int]) -> Plan:
    dp, num_micro = batch
    has_experts = any(run.block.moe is not None for run in model.blocks)
    # Megatron-LM cuts experts by tp too unless --expert-tensor-parallel-size says otherwise.
    etp = flags.etp if flags.etp is not None else (flags.tp if has_experts else 1)
    if flags.ep > 1 and not has_experts:
        raise refuse("expert_model_parallel_size", flags.ep, "1 for a model without experts")
    if (flags.tp * flags.cp * dp) % (flags.ep * max(etp, 1)) or etp < 1:
        raise refuse(
            "expert_model_parallel_size",
            flags.ep,
            f"ep x expert tp {etp} must divide tp {flags.tp} x cp {flags.cp} x dp {dp}",
        )
    stage = flags.zero_stage
    if stage is None:
        stage = int(flags.distributed_optimizer) if preset.name == "megatron" else 3
    if stage not in (0, 1, 2, 3):
        raise refuse("stage", stage, "1, 2 or 3")
    copies = dp * flags.cp
    if flags.vpp > 1 and num_micro % flags.pp:
        raise refuse(
            "global_batch",
            num_micro * dp * flags.micro_batch,
            f"interleaving wants micro-batches ({num_micro}) in multiples of pp {flags.pp}",
        )
    return Plan(
        strategy="fsp" if flags.sequence_parallel and flags.tp > 1 else "mtp",
        preset=preset.name,
        recompute=flags.recompute,
        schedule=Schedule.ONE_F_ONE_B,
        tp=flags.tp,
        cp=flags.cp,
        pp=flags.pp,
        vpp=flags.vpp,
        ep=flags.ep,
        etp=etp,
        dp=dp,
        zero_stage=stage if copies > 1 else 0,
        zero_size=copies if stage and copies > 1 else 1,
        micro_batch=flags.micro_batch,
        num_micro=num_micro,
    )
