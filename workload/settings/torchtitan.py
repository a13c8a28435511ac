"""The models that torchtitan has (torchtitan.toml), and a plan as its Python configuration.

Layers: torchtitan b5bcd76 (August 2026), models/common/decoder.py, models/gpt_oss (windows in every other layer).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.recompute import Recompute
from solver.pipeline.stages import pipeline_partition
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from solver.problem.problem import Problem
from spec.job import JobSpec, Precision
from spec.mixers.attention import QkNormWeights, attention_of
from spec.model import ModelSpec, NormKind, NormPlace, PositionKind
from spec.parameters import num_parameters
from workload.settings.frameworks import check_framework
from workload.settings.launch_file import (
    EXPANDABLE_SEGMENTS,
    LaunchText,
    launch_of,
    launch_text,
    refuse_other_keys,
    requirement,
    setting_omissions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """``module`` of torchtitan.models, the ``name`` that its model_registry takes, and the ``recipe`` of its
    config_registry whose data, tokenizer, optimizer and checkpoints a run starts from."""

    module: str
    name: str
    recipe: str
    layers: int
    hidden: int
    parameters: int

    @property
    def windowed(self) -> bool:
        """True where layers have windows."""
        return self.module == "gpt_oss"


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FLAVORS = tuple(
    Flavor(module=module, name=name, recipe=row["recipe"], layers=layers, hidden=hidden, parameters=count)
    for module, row in TABLE.items()
    for name, layers, hidden, count in row["models"]
)


def flavor_of(model: ModelSpec) -> Flavor | None:
    """The flavor with as many layers, columns and parameters as ``model``, multi-token prediction aside."""
    counted = num_parameters(model)
    corrected = any(run.block.moe and run.block.moe.score == "sigmoid" for run in model.blocks)
    same = (model.num_layers, model.hidden, counted.total - corrected * counted.router_bias)
    return next((one for one in FLAVORS if (one.layers, one.hidden, one.parameters) == same), None)


def differences(model: ModelSpec, flavor: Flavor) -> list[str]:
    """Returns what ``model`` has that the flavor has not, though it has as many parameters: no weight shows it."""
    attentions = [attention_of(run.block.mixer, "settings of torchtitan") for run in model.main_blocks]
    blocks = [run.block for run in model.main_blocks]
    norms = {model.norm, *(run.block.norm for run in model.blocks)}
    before = all(each.norm_place is NormPlace.BEFORE and not each.parallel_residual for each in blocks)
    windowed = any(each.window is not None for each in attentions)
    windows = "full attention in every layer" if flavor.windowed else "windows"
    plain = QkNormWeights.NONE
    unlike = {
        "norms other than RMSNorm": norms != {NormKind.RMS},
        "other than rotary positions": model.position is not PositionKind.ROTARY,
        "soft-capped logits": bool(model.logit_softcap),
        " or ".join(model.rare_parts): bool(model.rare_parts),
        "norms elsewhere than before each half": not before,
        "soft-capped or chunked attention": any(each.softcap or each.chunk for each in attentions),
        "ALiBi": any(each.alibi for each in attentions),
        "sparse attention": any(each.index_topk for each in attentions),
        f"{windows} of {flavor.module}": windowed != flavor.windowed,
        "norms of queries and keys without weights": any(
            each.qk_norm and each.qk_norm_weights is plain for each in attentions
        ),
    }
    return [what for what, differs in unlike.items() if differs]


# A plan as torchtitan's Python configuration: ``MODULE=FILE CONFIG=plan ./run_train.sh``, with FILE on the
# Python path.
#
# Names and refusals: torchtitan b5bcd76 (August 2026), config/configs.py (``TrainingConfig``, ``ParallelismConfig``,
# ``CompileConfig``), trainer.py (``Trainer.Config``), distributed/parallel_dims.py, distributed/pipeline_parallel.py,
# distributed/fsdp.py, distributed/activation_checkpoint.py, components/quantization, models/common/decoder.py. Data,
# tokenizer, optimizer and checkpoints are those of the recipe it starts from, and the user's to change.

NAME = "torchtitan"
require = requirement(NAME)
USAGE = "torchtitan of August 2026 (b5bcd76): NAME.py on the Python path, MODULE=NAME CONFIG=plan ./run_train.sh"
PLAN_KEYS = frozenset(
    {"tp", "pp", "vpp", "cp", "ep", "zero_stage", "zero_size", "micro_batch", "num_micro"}
    | {"recompute", "layout", "schedule"}
)
JOB_KEYS = frozenset(
    str.split(
        "precision.compute precision.gradient precision.reduce precision.master precision.moments precision.linear "
        "precision.scale_recipe precision.scaling precision.casts_every_forward context_parallel host.code loss.fused "
        "loss.chunked loss.plain tensor_parallel.overlap data_parallel.reduction moe_dispatcher cuda_graphs optimizer "
        "document_tokens expandable_segments"
    )
)
SCHEDULES = {
    (Schedule.ONE_F_ONE_B, False): "1F1B",
    (Schedule.ONE_F_ONE_B, True): "Interleaved1F1B",
    (Schedule.GPIPE, False): "GPipe",
    (Schedule.LOOPED_BFS, True): "LoopedBFS",
    (Schedule.ZB_INTERLEAVED, True): "InterleavedZeroBubble",
    (Schedule.ZB_V, True): "ZBVZeroBubble",
}
# components/quantization: what narrows linears, and what it leaves alone
CONVERTERS = {
    "row": ("Float8LinearConverter", "filter_fqns=['lm_head']"),
    "mx": ("MXFP8LinearConverter", "fqns=['layers']"),
}
DISPATCHERS = {"all_to_all": None, "deepep": "deepep", "hybridep": "hybridep"}
RECOMPUTED = {Recompute.NONE: "None", Recompute.SELECTIVE: "SelectiveAC.Config()", Recompute.FULL: "FullAC.Config()"}
Values = dict[str, object]


def torchtitan_settings(problem: Problem, plan: Plan) -> LaunchText:
    """The module. Raises ExportError for what torchtitan cannot run."""
    check_framework([NAME], plan.preset)
    check_torchtitan(problem.model, problem.job)
    refuse_other_keys(plan, PLAN_KEYS, NAME)
    flavor = _flavor(problem.model)
    notes = (*_notes(problem, plan, flavor), *setting_omissions(problem, JOB_KEYS))
    return launch_text(plan, USAGE, notes, ["", *_module(problem, plan, flavor)])


def check_torchtitan(model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for a model or a job that no plan makes torchtitan run."""
    _flavor(model)
    require(not any(run.block.mtp for run in model.blocks), "multi-token prediction that a plan prices")
    require(job.optimizer == "adamw", "whole matrices dealt to ranks, as Muon is priced")
    require(job.moe_dispatcher in DISPATCHERS, f"experts reached by {job.moe_dispatcher}")
    routed = any(run.block.moe for run in model.blocks)
    _precision(job.precision, routed=routed)
    compiled = job.preset.host.code == "compiled"
    overlap = job.preset.tensor_parallel.overlap
    require(compiled or not overlap, "asynchronous tensor parallelism without torch.compile")
    graphs = job.cuda_graphs <= {"full_iteration"}
    require(graphs, f"CUDA graphs of {', '.join(sorted(job.cuda_graphs))} alone")


def parallelism(problem: Problem, plan: Plan) -> Values:
    """ParallelismConfig. Raises ExportError for what torchtitan cannot run."""
    copies = plan.dp * plan.cp
    if plan.zero_stage == 0:
        require(plan.cp == 1, "cp without sharding: its shards lie over cp too")
    require(plan.zero_stage != 1, "ZeRO-1")
    shards = max(1, plan.zero_size)
    require(shards % plan.cp == 0, f"shards over {shards} ranks beside cp {plan.cp}")
    values: Values = {
        "data_parallel_replicate_degree": copies // shards,
        "data_parallel_shard_degree": shards // plan.cp,
        # "default" keeps gathered weights where there are pipeline stages (distributed/fsdp.py)
        "fsdp_reshard_after_forward": "default" if plan.zero_stage == 3 or plan.pp > 1 else "never",
        **launch_of(NAME, plan, NAME),
    }
    if plan.cp > 1:
        gathers = problem.job.context_parallel == "all_gather"
        require(gathers, f"context parallelism by {problem.job.context_parallel}")
        values |= {"context_parallel_degree": plan.cp, "context_parallel_load_balancer": "headtail"}
    if plan.ep > 1:
        sparse = shards * plan.tp
        require(sparse % plan.ep == 0, f"ep {plan.ep} over {sparse} sharding ranks")
        values["expert_parallel_degree"] = plan.ep
    return values | (_pipeline(problem.model, plan, problem.job.preset.pipeline.partition) if plan.pp > 1 else {})


def training(problem: Problem, plan: Plan) -> Values:
    """TrainingConfig; tokens of a micro-batch and of a step are those of a data-parallel rank and of the world."""
    job = problem.job
    graphs = "full_iteration" in job.cuda_graphs
    require(not graphs or plan.pp == 1, "CUDA graphs beside pipeline stages")
    return {
        "num_tokens_per_microbatch_per_dp_rank": plan.micro_batch * job.seq_len,
        "num_tokens_per_train_step": plan.micro_batch * plan.num_micro * plan.dp * job.seq_len,
        "max_context_length": job.seq_len,
        "disable_cuda_graphs": not graphs,
        **_precision(job.precision, routed=False),
    }


def _flavor(model: ModelSpec) -> Flavor:
    flavor = flavor_of(model)
    modules = dict.fromkeys(one.module for one in FLAVORS)
    known = "; ".join(f"{each} {', '.join(f.name for f in FLAVORS if f.module == each)}" for each in modules)
    require(flavor is not None, f"a model of these shapes (it has {known})")
    assert flavor is not None
    other = "; ".join(differences(model, flavor))
    require(not other, other)
    return flavor


def _pipeline(model: ModelSpec, plan: Plan, partition: str) -> Values:
    """Every module of every stage by its name, in the order a token passes them."""
    require(not model.tied_embeddings, "tied embeddings beside pipeline stages")
    counts = pipeline_partition(model, plan.pp * plan.vpp, partition, plan.stage_layout).layers
    named, first = [], 0
    for count in counts:
        named.append([f"layers.{index}" for index in range(first, first + count)])
        first += count
    named[0].insert(0, "tok_embeddings")
    named[-1] += ["norm", "lm_head"]
    return {
        "pipeline_parallel_degree": plan.pp,
        "pipeline_parallel_schedule": _schedule(plan),
        "module_fqns_per_model_part": named,
        "num_pp_microbatches": plan.num_micro,
    }


def _schedule(plan: Plan) -> str:
    """By its name in torch.distributed.pipelining (schedules.py, get_schedule_class)."""
    name = SCHEDULES.get((plan.schedule, plan.vpp > 1))
    require(name is not None, f"schedule {plan.schedule.value} of {plan.vpp} chunks a stage")
    return str(name)


def _precision(precision: Precision, *, routed: bool) -> Values:
    """fp32 parameters and states, or all in bf16; gradients always travel in fp32."""
    require(precision.compute == "bf16", f"products in {precision.compute}")
    require(
        precision.reduce == "fp32",
        f"gradients reduced in {precision.reduce}: they travel in fp32 (--framework torchtitan, or --job precision.reduce=fp32)",
    )
    states = (precision.master, precision.moments)
    require(
        states in (("fp32", "fp32"), ("", "bf16")),
        f"{precision.master or 'no'} master weights beside moments in {precision.moments}",
    )
    if precision.linear != precision.compute:
        known = precision.linear == "fp8" and precision.scale_recipe in CONVERTERS
        require(known, f"{precision.linear} products scaled by {precision.scale_recipe}")
        require(not routed, f"{precision.linear} linears beside experts")
    return {
        "dtype": "float32" if precision.master else "bfloat16",
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
    }


def _module(problem: Problem, plan: Plan, flavor: Flavor) -> list[str]:
    """A function that changes the recipe's data, tokenizer and optimizer in nothing."""
    job = problem.job
    converter = CONVERTERS[job.precision.scale_recipe] if job.precision.linear == "fp8" else None
    chunked = ["ChunkedLossWrapper"] if job.preset.loss.chunked else []
    recomputed = RECOMPUTED.get(plan.recompute)
    require(recomputed is not None, f"{plan.recompute.value} recomputation")
    wrapper = str(recomputed).partition(".")[0]
    imported = {
        "torchtitan.components.loss": [*chunked, "CrossEntropyLoss"],
        "torchtitan.components.quantization": [converter[0]] if converter else [],
        "torchtitan.config": ["CompileConfig", "ParallelismConfig", "TrainingConfig"],
        "torchtitan.distributed.activation_checkpoint": [] if wrapper == "None" else [wrapper],
        f"torchtitan.models.{flavor.module}": ["model_registry"],
        f"torchtitan.models.{flavor.module}.config_registry": [flavor.recipe],
        "torchtitan.trainer": ["Trainer"],
    }
    spec, loss = _spec(problem, plan, flavor, converter), _loss(problem)
    return [
        *(f"from {module} import {', '.join(names)}" for module, names in imported.items() if names),
        "",
        "",
        "def plan() -> Trainer.Config:",
        f"    config = {flavor.recipe}()",
        f"    config.model_spec = {spec}",
        f"    config.loss = {loss}",
        *_call("config.training", "TrainingConfig", training(problem, plan)),
        *_call("config.parallelism", "ParallelismConfig", parallelism(problem, plan)),
        f"    config.activation_checkpoint = {recomputed}",
        *_call("config.compile", "CompileConfig", _compiled(job)),
        "    return config",
    ]


def _call(target: str, made: str, values: Mapping[str, object]) -> list[str]:
    return [f"    {target} = {made}(", *(f"        {key}={value!r}," for key, value in values.items()), "    )"]


def _spec(problem: Problem, plan: Plan, flavor: Flavor, converter: tuple[str, str] | None) -> str:
    """Sequences cut over cp are flex attention's alone (models/common/decoder.py)."""
    job = problem.job
    words = [repr(flavor.name), f"attn_backend={'flex' if plan.cp > 1 else 'varlen'!r}"]
    backend = DISPATCHERS[job.moe_dispatcher]
    if backend and plan.ep > 1:
        words.append(f"moe_comm_backend={backend!r}")
    if converter:
        compiled = job.preset.host.code == "compiled"
        words.append(f"converters=[{converter[0]}.Config({converter[1]}, model_compile_enabled={compiled})]")
    return f"model_registry({', '.join(words)})"


def _loss(problem: Problem) -> str:
    plain = f"CrossEntropyLoss.Config(global_vocab_size={problem.model.vocab})"
    return f"ChunkedLossWrapper.Config(loss_fn={plain})" if problem.job.preset.loss.chunked else plain


def _compiled(job: JobSpec) -> Values:
    compiled = job.preset.host.code == "compiled"
    parts = ["model", "loss"] if job.preset.loss.fused or job.preset.loss.chunked else ["model"]
    return {"enable": compiled, "components": parts, "enable_async_tensor_parallel": job.preset.tensor_parallel.overlap}


def _notes(problem: Problem, plan: Plan, flavor: Flavor) -> list[str]:
    """Notes on what the file takes from its recipe and what the environment has to set."""
    notes = [f"set data, tokenizer (hf_assets_path), optimizer and checkpoints: here {flavor.recipe}'s"]
    if plan.cp > 1:
        notes.append(f"left out: the {problem.job.attention_kernel} kernel: beside cp it is flex attention")
    if problem.job.expandable_segments:
        notes.append(f"set {EXPANDABLE_SEGMENTS.replace('CUDA_ALLOC', 'ALLOC')}")
    return notes
