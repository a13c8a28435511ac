"""A plan as Megatron-LM's command line: ``torchrun ... pretrain_gpt.py $(cat FILE)``.

Flags: Megatron-LM core 0.14, megatron/training/arguments.py; the split of layers over stages as
core/transformer/pipeline_parallel_layer_layout.py reads it. Data, tokenizer, learning rate and checkpoints
are the user's.
"""

from ops.recompute.layers import Recompute
from solver.pipeline.stages import layers_per_stage
from solver.plans.plan_table import Plan
from solver.question import Question
from spec.errors import ExportError
from spec.model import ModelSpec
from workload.settings.launch_error import launch_of, refuse_unless, refuse_unsaid, same_framework
from workload.settings.megatron_model import NAME, model_flags

Flags = dict[str, str | int | None]
# The keys of a plan that its flags say.
SAYS = frozenset(
    {"tp", "pp", "cp", "vpp", "ep", "etp", "zero_stage", "zero_size", "micro_batch", "num_micro", "layout"}
    | {"recompute", "recompute_layers", "recompute_modules", "optimizer_offload", "offloaded_layers"}
)


def megatron_settings(question: Question, plan: Plan) -> Flags:
    """Flags and their values (None: a switch). Raises ExportError for what Megatron-LM cannot run."""
    same_framework("megatron", plan)
    launch = launch_of("megatron", plan, NAME)
    refuse_unsaid(plan, SAYS, NAME)
    refuse_unless(plan.zero_stage < 2, NAME, f"ZeRO stage {plan.zero_stage}")
    flags: Flags = {
        **launch.settings,
        "--pipeline-model-parallel-size": plan.pp,
        "--context-parallel-size": plan.cp,
    }
    if plan.cp > 1:
        kinds = {"ring": "p2p", "all_to_all": "a2a"}
        flags["--cp-comm-type"] = kinds[question.job.context_parallel]
    if any(run.block.moe for run in question.model.blocks):
        flags |= {"--expert-model-parallel-size": plan.ep, "--expert-tensor-parallel-size": plan.etp}
    flags |= _split(question.model, plan)
    flags |= _data_parallel(question, plan)
    flags |= {
        "--micro-batch-size": plan.micro_batch,
        "--global-batch-size": plan.micro_batch * plan.num_micro * plan.dp,
        "--seq-length": question.job.seq_len,
    }
    flags |= _kernels(question, plan)
    return flags | model_flags(question)


def _split(model: ModelSpec, plan: Plan) -> Flags:
    """Layers over stages and chunks, where they do not divide evenly."""
    if plan.stage_layout:
        return {"--pipeline-model-parallel-layout": plan.stage_layout}
    layers, stages = model.num_layers, plan.pp * plan.vpp
    flags: Flags = {"--num-virtual-stages-per-pipeline-rank": plan.vpp} if plan.vpp > 1 else {}
    if layers % stages == 0:
        return flags
    if plan.vpp > 1:
        refuse_unless((layers + 2) % stages == 0, NAME, f"{layers} layers on {stages} chunks")
        edges = ("embedding", "loss")
        return flags | {f"--account-for-{edge}-in-pipeline-split": None for edge in edges}
    predicted = sum(run.count for run in model.blocks if run.block.mtp)
    counts = layers_per_stage(layers, plan.pp, predicts=predicted > 0).tolist()
    rows = [{0: "", 1: "t"}.get(count, f"t*{count}") for count in counts]
    last = {0: "", 1: "m"}.get(predicted, f"m*{predicted}")
    return {"--pipeline-model-parallel-layout": f"E{'|'.join(rows)}{last}L"}


def _data_parallel(question: Question, plan: Plan) -> Flags:
    preset = question.job.preset
    copies = plan.dp * plan.cp
    flags: Flags = {}
    if copies > 1 and preset.data_parallel.overlap_grad_reduce:
        flags["--overlap-grad-reduce"] = None
    if plan.zero_size > 1:
        flags["--use-distributed-optimizer"] = None
        if plan.zero_size < copies:
            flags["--num-distributed-optimizer-instances"] = copies // plan.zero_size
        if preset.data_parallel.overlap_param_gather and preset.data_parallel.overlap_grad_reduce:
            flags["--overlap-param-gather"] = None
    return flags | _offload(question, plan)


def _offload(question: Question, plan: Plan) -> Flags:
    """--optimizer-cpu-offload wants the precision-aware optimizer, and that the distributed one."""
    flags: Flags = {}
    if plan.optimizer_offload:
        refuse_unless(plan.zero_size > 1, NAME, "an offloaded optimizer that is not distributed")
        flags |= {
            "--optimizer-cpu-offload": None,
            "--optimizer-offload-fraction": f"{plan.optimizer_offload:g}",
            "--use-precision-aware-optimizer": None,
        }
    if plan.offloaded_layers:
        alone = plan.pp == 1 and plan.recompute is Recompute.NONE and not plan.recompute_modules
        refuse_unless(alone, NAME, "offloaded activations beside pipeline stages or recomputation")
        flags |= {"--cpu-offloading-num-layers": plan.offloaded_layers}
    return flags


def _kernels(question: Question, plan: Plan) -> Flags:
    """Formats, attention and recomputation."""
    job = question.job
    formats = {"bf16": "--bf16", "fp16": "--fp16"}
    if job.precision.compute not in formats or job.precision.linear != job.precision.compute:
        raise ExportError(
            f"{NAME} settings are written for bf16 and fp16 products, not {job.precision.linear}"
        )
    flags: Flags = {formats[job.precision.compute]: None}
    flags["--attention-backend"] = "flash" if job.flash_attention else "unfused"
    if plan.recompute is Recompute.FULL:
        flags |= {
            "--recompute-granularity": "full",
            "--recompute-method": "uniform",
            "--recompute-num-layers": 1,
        }
    elif plan.recompute is Recompute.BLOCK:
        flags |= {
            "--recompute-granularity": "full",
            "--recompute-method": "block",
            "--recompute-num-layers": plan.num_recompute_layers,
        }
    else:
        core = {"core_attn"} if plan.recompute is Recompute.SELECTIVE else set()
        modules = sorted(core.union(plan.recompute_modules))
        if modules:
            flags |= {"--recompute-granularity": "selective", "--recompute-modules": " ".join(modules)}
    return flags
