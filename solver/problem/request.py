"""A user's request, read and checked: model, framework, cluster, job, constraints."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ops.adapters import ADAPTED
from ops.block import model_ops
from ops.layout import Layout
from ops.recompute import Recompute
from ops.roles import OpKey, Role
from ops.strategies import strategy_named
from profdb.sample import ProfileDatabase
from profdb.store.data_file import load_profile
from solver.memory.device import limit_bytes
from solver.plans.constraints import check_schedules
from solver.plans.schedules import Schedule
from solver.problem.requested_plan import strategy_of
from spec.cluster.cluster import ClusterSpec, segmented
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError, ProfileError
from spec.job import JobSpec, Precision
from spec.model import ModelSpec
from spec.program.kinds import MOST_STEP_TOKENS, Sequences
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import check_model_size, config_for_size, read_config
from spec.settings.constraints import DEFAULT_CONSTRAINTS, Constraints, merged, requested_constraints
from spec.settings.job import DEFAULT_FRAMEWORK, JobRequest, job_of
from spec.settings.plan import PlanSettings

DEFAULT_PROFILE = Path("prof_data") / "data.pt"
MOST_ASSUMED_TOKENS = 8192
"""Of a sequence whose length nothing names. Assumption: a model of more positions was trained at that length for most of
its tokens, as Llama 3 was (arXiv 2407.21783 sec. 3.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The words of a request: paths, sizes and names; None where there is none.

    ``job`` are values of spec.settings.job by key. They override the ``precision``, a name of spec.settings.job, which
    overrides the config, which overrides the preset of the ``framework``. ``root`` is the project folder with configs/;
    ``missing`` is "error" or "modelled"; ``calibration`` is a file of solver.calibrate.fit; ``assume`` is the type that
    a config.json of an unknown type is read as; ``transfer`` scales a measured profile of another GPU; ``constraints``
    as in spec.settings.constraints. The default of ``profile`` is profile_path, if that file exists.
    """

    root: Path
    profile: Path | None = None
    config: Path | None = None
    assume: str | None = None
    model_size: str | None = None
    world_size: int | None = None
    global_batch_tokens: int | None = None
    seq_len: int | None = None
    cluster: str | None = None
    framework: str | None = None
    precision: str | None = None
    job: Mapping[str, object] = field(default_factory=dict)
    missing: str = "error"
    calibration: Path | None = None
    transfer: bool = False
    constraints: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """A profile and its file; None where there is no file and none was requested."""

    profile: ProfileDatabase | None
    path: Path

    @property
    def measured(self) -> bool:
        """Returns whether anything in it was measured."""
        return self.profile is not None and self.profile.is_measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """The config, job and constraints of a request; the whole cluster of the ``hardware_spec``, and the part of it that
    the job gets (``cluster``); ``assumed_framework``: neither the request nor the config names one; ``file`` is the
    profile if the cluster's name was read from it."""

    config: ConfigFile
    hardware_spec: ClusterSpec
    cluster: ClusterSpec
    job: JobSpec
    assumed_framework: bool
    constraints: Constraints = DEFAULT_CONSTRAINTS
    file: ProfileFile | None = None


def read_request(request: Request, file: ProfileFile | None = None) -> ParsedRequest:
    """Reads the config and the hardware spec, and checks the job's numbers against them; ``file`` is the profile where
    it is loaded already.

    Raises ConfigError or ProfileError with one clear line for anything that does not fit together.
    """
    config = _config(request)
    if request.cluster is None:
        file = file or find_profile(request)
        whole_cluster = _profiled_cluster(file, request.root)
    else:
        whole_cluster = read_cluster(request.cluster, root=request.root)
    job = job_of(job_request(request, config, whole_cluster), whole_cluster.gpu.architecture)
    check_job(config.model, job)
    check_precision(config.model, job.precision, whole_cluster)
    ends = job.precision.high_precision_first_layers, job.precision.high_precision_last_layers
    if any(ends):
        config = replace(config, model=config.model.with_high_precision_ends(*ends))
    constraints = DEFAULT_CONSTRAINTS
    if config.constraints or request.constraints:
        constraints = requested_constraints(merged(config.constraints, request.constraints))
        check_schedules(constraints)
        limit_bytes(whole_cluster, constraints)
    # Of an NVLink domain of several nodes the job gets a part.
    cluster = whole_cluster
    if job.nvlink_segment or cluster.scale_up_ranks > cluster.gpus_per_node:
        cluster = segmented(whole_cluster, job.world_size, job.nvlink_segment)
    return ParsedRequest(
        config=config,
        hardware_spec=whole_cluster,
        cluster=cluster,
        job=job,
        assumed_framework=request.framework is None and config.framework is None,
        constraints=constraints,
        file=file,
    )


def profile_path(request: Request) -> Path:
    """Returns the path of the profile requested; else, in prof_data/ of the working folder or of the project, of the one
    named after the cluster or of another one of its GPU; else the default one."""
    if request.profile is not None:
        return request.profile
    shipped = request.root / DEFAULT_PROFILE
    if request.cluster is not None:
        cluster = read_cluster(request.cluster, root=request.root)
        for folder in (DEFAULT_PROFILE.parent, shipped.parent):
            named, others = folder / f"{cluster.name}.pt", sorted(folder.glob("*.pt"))
            for path in [named] if named.exists() else others:
                if path == named or _gpu_of_profile(path, request.root) == cluster.gpu.name:
                    return path
    return DEFAULT_PROFILE if DEFAULT_PROFILE.exists() else shipped


def _gpu_of_profile(path: Path, root: Path) -> str:
    """Returns the GPU of a profile by the hardware spec that it is named after, of data.pt by its content; "" for
    another name."""
    if path.name == DEFAULT_PROFILE.name:
        return load_profile(path).machine.gpu
    try:
        return read_cluster(path.stem, root=root).gpu.name
    except ConfigError:
        return ""


def _config(request: Request) -> ConfigFile:
    if request.config is None and request.model_size is None:
        raise ConfigError(
            "command line", "--config", None, "a model config (configs/*.py, .json or .toml), or a --model_size"
        )
    path = request.config
    if path is None:
        path = config_for_size(str(request.model_size), request.root / "configs")
    config = read_config(path, assume=request.assume)
    if config.plan:
        strategy_of(config.plan, config.path, sequence_parallel=config.sequence_parallel)
    if request.config is not None and request.model_size is not None:
        check_model_size(config.model, request.model_size)
    if config.seq_len is None and request.seq_len is None and config.max_seq_len:
        seq_len = min(config.max_seq_len, MOST_ASSUMED_TOKENS)
        words = f"sequences of {seq_len:,} tokens, of max_position_embeddings = {config.max_seq_len:,} (--seq_len)"
        model = replace(config.model, assumptions=(*config.model.assumptions, words))
        config = replace(config, seq_len=seq_len, model=model)
    return config


def find_profile(request: Request) -> ProfileFile:
    """Returns the profile requested, or the default one if that is there; ProfileError as load_profile."""
    path = profile_path(request)
    if request.profile is None and not path.exists():
        return ProfileFile(profile=None, path=path)
    return ProfileFile(profile=load_profile(path), path=path)


def _profiled_cluster(file: ProfileFile, root: Path) -> ClusterSpec:
    """Returns the cluster that a profile was measured on."""
    if file.profile is None:
        raise ProfileError(
            f"{file.path}: no such profile; answer from a hardware spec with --cluster, or make a profile with: "
            "torchrun --nproc-per-node=8 gen_profiler_data.py"
        )
    name = file.profile.machine.cluster
    if not name:
        allowed = "the profile names no cluster: choose one with --cluster"
        raise ConfigError(str(file.path), "machine.cluster", name, allowed)
    return read_cluster(name, root=root)


def valid_world_size(world_size: int | None, cluster: ClusterSpec) -> int:
    """Returns the world size if it fits the cluster's nodes; raises ConfigError otherwise."""
    where, key = "--world_size", "world_size"
    if world_size is None or world_size < 1:
        raise ConfigError(where, key, world_size, "a number of GPUs, 1 or more")
    per_node = cluster.gpus_per_node
    if world_size > per_node and world_size % per_node:
        raise ConfigError(
            where,
            key,
            world_size,
            f"less than one node or a multiple of {per_node} ({cluster.name} has {per_node} GPUs a node; of N: "
            f"--cluster {cluster.name}:node.gpus=N)",
        )
    if cluster.nodes_for(world_size) > cluster.max_nodes:
        raise ConfigError(
            where, key, world_size, f"at most {cluster.max_nodes} nodes of {per_node} GPUs ({cluster.name})"
        )
    return world_size


def job_request(request: Request, config: ConfigFile, cluster: ClusterSpec) -> JobRequest:
    """Returns the job of the request and the config; raises ConfigError for sizes that do not fit together."""
    world_size = valid_world_size(request.world_size, cluster)
    seq_len = config.seq_len if request.seq_len is None else request.seq_len
    if seq_len is None or seq_len < 1:
        raise ConfigError(config.path, "seq_len", seq_len, "tokens per sequence: give --seq_len")
    tokens = request.global_batch_tokens
    if isinstance(tokens, Sequences):
        tokens = tokens * seq_len
    if tokens is None:
        tokens = _batch_of_plan(config.plan or PlanSettings(), world_size, seq_len)
    if tokens is None or not 1 <= tokens <= MOST_STEP_TOKENS or tokens % seq_len:
        raise ConfigError(
            "--global_batch_size",
            "global_batch_size",
            tokens,
            f"tokens per step, a positive multiple of the sequence length {seq_len}",
        )
    framework = request.framework or config.framework or DEFAULT_FRAMEWORK
    # The request overrides the config, and the config the framework's preset. A config's settings for its own framework
    # do not apply to another one, and a precision by name replaces all formats of the config.
    settings = dict(config.job)
    if framework == config.framework:
        settings |= config.framework_job
    if request.precision is not None:
        settings = {key: value for key, value in settings.items() if not key.startswith("precision.")}
        settings["precision.recipe"] = request.precision
    settings |= dict(request.job)
    return JobRequest(
        world_size=world_size,
        seq_len=seq_len,
        global_batch_tokens=tokens,
        framework=framework,
        settings=task_settings(str(settings.get("task", "")), config.model, seq_len) | settings,
    )


# Assumption: samples of instruction tuning are a few hundred tokens long.
SAMPLE_TOKENS = 512
# Megatron-Bridge recipes/common.py, _peft_common: LoRA of rank 32 on all linear layers. Experts have none here.
LORA_RANK = 32


def task_settings(task: str, model: ModelSpec, seq_len: int) -> dict[str, object]:
    """Returns the settings of a job that its task brings (JobSpec.task)."""
    if task not in ("sft", "lora"):
        return {}
    packed: dict[str, object] = {"document_tokens": SAMPLE_TOKENS} if seq_len > SAMPLE_TOKENS else {}
    if task == "sft":
        return packed
    has_experts = any(run.block.moe for run in model.blocks)
    linears = ("qkv", "out") if has_experts else ("qkv", "out", "up", "down")
    return packed | {"adapter_rank": LORA_RANK, "adapted": frozenset(linears)}


def _batch_of_plan(plan: PlanSettings, world_size: int, seq_len: int) -> int | None:
    """Returns the tokens per step of the config's plan, None if it does not fix them."""
    if plan.micro_batch is None or plan.num_micro is None:
        return None
    split = (plan.tp or 1) * (plan.pp or 1) * plan.cp
    return max(world_size // split, 1) * plan.micro_batch * plan.num_micro * seq_len


ADAPTER_SETTINGS = ("adapted", "adapter_dropout", "adapter_dtype", "adapter_code")


def check_job(model: ModelSpec, job: JobSpec) -> None:
    """Raises ConfigError for a framework's strategy or schedule that does not exist, and for settings without another
    that they need."""
    for name in job.preset.tensor_parallel.strategies:
        strategy_named(name, where="--job")
    for name in job.preset.pipeline.schedules:
        if name not in set(Schedule):
            allowed = f"of {', '.join(Schedule)}"
            raise ConfigError("--job", "pipeline.schedules", name, allowed)
    if job.preset.layers.transformer_engine and job.precision.scaling in ("dynamic", "row"):
        # Transformer Engine common/recipe/__init__.py; scales of the tensor at hand and of rows are torchao's.
        allowed = f"of {job.preset.name} one of fp8-delayed, fp8-current, fp8-blockwise, mxfp8"
        raise ConfigError("--precision", "precision.scaling", job.precision.scaling, allowed)
    if job.delay_wgrad and not job.overlap_expert_a2a:
        # Megatron-LM transformer_config.py, __post_init__: without the overlap nothing else runs meanwhile.
        raise ConfigError("--job", "delay_wgrad", True, "true only with overlap_expert_a2a true")
    check_images(model, job)
    if job.adapter_rank:
        check_adapters(model, job)
        return
    if job.precision.frozen:
        allowed = "frozen weights need adapters: adapter_rank above 0"
        raise ConfigError("--job", "precision.frozen", job.precision.frozen, allowed)
    for setting in fields(JobSpec):
        value = getattr(job, setting.name)
        if setting.name in ADAPTER_SETTINGS and value != setting.default:
            text = "+".join(sorted(value)) if isinstance(value, frozenset) else str(value)
            raise ConfigError("--job", setting.name, text, "a setting of adapters: only with adapter_rank above 0")


def check_images(model: ModelSpec, job: JobSpec) -> None:
    """Raises ConfigError for images without a tower, without patches, or of more tokens than a sequence has."""
    if bool(job.images) != bool(job.image_patches):
        raise ConfigError("--job", "image_patches", job.image_patches, f"patches of each of images = {job.images}")
    if not job.images:
        return
    if model.vision is None:
        raise ConfigError("--job", "images", job.images, f"0: no vision tower of {model.name} is read")
    if job.adapter_rank:
        raise ConfigError("--job", "images", job.images, "0 beside adapters: a frozen vision tower is not priced")
    most = job.seq_len * model.vision.merged // job.images
    if job.image_patches > most:
        raise ConfigError(
            "--job", "image_patches", job.image_patches, f"at most {most}: {job.seq_len} tokens a sequence"
        )


def check_adapters(model: ModelSpec, job: JobSpec) -> None:
    """Raises ConfigError if no product gets an adapter, if one gets two, and for a name of which the model has no
    product."""
    if not job.adapted or {"qkv", "q_k_v"} <= job.adapted:
        names = "+".join(sorted(job.adapted)) or "none"
        raise ConfigError("--job", "adapted", names, f"one or more of {', '.join(ADAPTED)}, and of qkv and q_k_v one")
    blocks = model_ops(model, replace(job, adapted=frozenset(ADAPTED)), Layout.of(1), "mtp", Recompute.NONE).blocks
    products = {
        OpKey(op.module, op.serves)
        for block in blocks
        for op in block.forward
        if op.role is Role.ADAPTER_DOWN and op.serves is not None
    }
    for name in sorted(job.adapted):
        if products.isdisjoint(ADAPTED[name]):
            present = [product for product, keys in ADAPTED.items() if not products.isdisjoint(keys)]
            allowed = f"products that {model.name} has: {', '.join(present) or 'none'}"
            raise ConfigError("--job", "adapted", name, allowed)


def check_precision(model: ModelSpec, precision: Precision, cluster: ClusterSpec) -> None:
    """Raises ConfigError for formats and scales that the GPU has no products of, and for a low-precision head or
    high-precision layers that the model or the precision does not allow."""
    formats = cluster.gpu.peak_flops
    for key in ("compute", "linear", "attention"):
        dtype = getattr(precision, key)
        if dtype not in formats:
            allowed = f"a format that {cluster.gpu.name} computes in: {', '.join(formats)}"
            raise ConfigError("--precision", f"precision.{key}", dtype, allowed)
    if precision.router and "tf32" not in formats:
        allowed = f"none: {cluster.gpu.name} has no TF32, in which its gradients would multiply"
        raise ConfigError("--job", "precision.router", precision.router, allowed)
    # Transformer Engine, "Datatype and hardware support matrix"; blocks of 128 are emulated where MXFP8 is.
    fp8 = cluster.gpu.architecture.fp8
    scales = set(fp8.scales if fp8 else ())
    if "mx" in scales:
        scales.add("block")
    if precision.linear == "fp8" and precision.scale_recipe not in scales:
        allowed = f"scales of fp8 products that {cluster.gpu.name} has: {', '.join(sorted(scales))}"
        raise ConfigError("--precision", "precision.scale_recipe", precision.scale_recipe, allowed)
    if precision.low_precision_head and (model.tied_embeddings or not precision.low_precision_linear):
        # Megatron-LM d98e8a6 transformer_config.py, fp8_output_proj; extensions/transformer_engine.py: "does not
        # support skip_weight_param_allocation", which tied embeddings want.
        allowed = "true only with low-precision products, for a model with untied embeddings"
        raise ConfigError("--job", "precision.low_precision_head", True, allowed)
    # Megatron-LM d98e8a6 transformer_config.py, first_last_layers_bf16, which delayed scaling has not.
    for key in ("high_precision_first_layers", "high_precision_last_layers"):
        layers = getattr(precision, key)
        if layers and (not precision.low_precision_linear or precision.scaling == "delayed"):
            allowed = "0 unless linear layers multiply in 8 bits or fewer, by scales that are not delayed"
            raise ConfigError("--job", f"precision.{key}", layers, allowed)
    last = precision.high_precision_last_layers
    if precision.high_precision_first_layers + last > model.num_layers:
        allowed = f"with those at the start at most the model's {model.num_layers} layers"
        raise ConfigError("--job", "precision.high_precision_last_layers", last, allowed)
