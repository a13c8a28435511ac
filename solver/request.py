"""From what a user typed to a question: read the files, check the numbers, open the book."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.strategies.registry import strategy_named
from profdb.cases import Family
from profdb.curvebook import Book, CurveBook
from profdb.on_demand import MeasuringDevice, OnDemand
from profdb.sample import ProfileDatabase
from profdb.store.data_file import load_profile
from solver.calibration_file import read_calibration
from solver.question import Question
from solver.schedules.registry import Schedule
from solver.times.op_times import Pricer
from solver.typed_plan import strategy_of
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.cluster.segment import segmented
from spec.errors import ConfigError
from spec.model_size import check_model_size, config_for_size
from spec.presets.preset import FrameworkPreset
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import read_config
from spec.settings.job import DEFAULT_FRAMEWORK, AskedJob, job_of
from spec.settings.plan import WrittenPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for, as typed: paths, sizes and names. None means not given.

    ``precision`` is a name of spec.settings.precision, ``job`` values of spec.settings.job by key, which beat it as
    it beats what a config says, and that the ``framework`` preset's choices; ``root`` is the project folder, where configs/ lies; ``missing`` is "error" or "modelled";
    ``device`` measures what no sample surrounds; ``calibration`` is a file of solver.calibrate.fit.
    """

    root: Path
    profile: Path
    config: Path | None = None
    model_size: str | None = None
    world_size: int | None = None
    global_batch_tokens: int | None = None
    seq_len: int | None = None
    cluster: str | None = None
    framework: str | None = None
    precision: str | None = None
    job: Mapping[str, object] = field(default_factory=dict)
    missing: str = "error"
    device: MeasuringDevice | None = None
    calibration: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A question with the files it came from, and what is measured while it is answered."""

    question: Question
    config: ConfigFile
    profile: ProfileDatabase
    on_demand: OnDemand | None = None
    assumed_framework: bool = False
    """Neither the request nor the config named a framework."""


def open_question(request: Request) -> Opened:
    """Read everything the request names and check that it fits together.

    Raises ConfigError or ProfileError with one clear line for anything that does not.
    """
    config = _config(request)
    profile = load_profile(request.profile)
    cluster = _cluster(request, profile)
    job = job_of(asked_job(request, config, cluster), cluster.gpu.architecture)
    check_names(job.preset)
    cluster = segmented(cluster, job.world_size)
    on_demand = request.device.on_demand(profile, str(request.profile)) if request.device else None
    book = CurveBook(
        profile, missing=request.missing, modelled=_modelled(request, cluster), on_demand=on_demand
    )
    pricer = Pricer.on(cluster, book)
    return Opened(
        question=Question(
            model=config.model,
            job=job,
            cluster=cluster,
            pricer=pricer,
            calibration=read_calibration(request.calibration, cluster) if request.calibration else None,
        ),
        config=config,
        profile=profile,
        on_demand=on_demand,
        assumed_framework=request.framework is None and config.framework is None,
    )


def _modelled(request: Request, cluster: ClusterSpec) -> Book | None:
    if request.missing != "modelled":
        return None
    from profdb.modelled.book import ModelledBook

    return ModelledBook(cluster=cluster)


def _config(request: Request) -> ConfigFile:
    if request.config is None and request.model_size is None:
        raise ConfigError(
            where="command line",
            key="--config",
            value=None,
            allowed="a model config (configs/*.py, .json or .toml), or a --model_size",
        )
    path = request.config
    if path is None:
        path = config_for_size(str(request.model_size), request.root / "configs")
    config = read_config(path)
    if config.plan:
        strategy_of(config.plan, config.path, sequence_parallel=config.sequence_parallel)
    if request.config is not None and request.model_size is not None:
        check_model_size(config.model, request.model_size)
    return config


def _cluster(request: Request, profile: ProfileDatabase) -> ClusterSpec:
    """The cluster asked for, or the one the profile was taken on: of the same GPU, and of the same network
    where the profile holds collectives (one taken on a single GPU suits any network)."""
    taken_on = profile.machine.cluster
    if not taken_on and request.cluster is None:
        raise ConfigError(
            where=str(request.profile),
            key="machine.cluster",
            value=taken_on,
            allowed="the profile names no cluster sheet: choose one with --cluster",
        )
    cluster = read_cluster(request.cluster or taken_on, root=request.root)
    # A sheet of the profile's own name may lie anywhere.
    if request.cluster is not None and taken_on and cluster.name != taken_on:
        measured = read_cluster(taken_on, root=request.root)
        holds_network = Family.COLLECTIVE in profile.tables
        if holds_network and measured.gpu.name == cluster.gpu.name and measured.domains != cluster.domains:
            raise ConfigError(
                where="--cluster",
                key="cluster",
                value=request.cluster,
                allowed=f"a cluster with the network of {taken_on}, whose collectives {request.profile} holds; "
                f"for another network make a profile of it (gen_profiler_data.py --from_cluster)",
            )
        if measured.gpu.name != cluster.gpu.name:
            raise ConfigError(
                where="--cluster",
                key="cluster",
                value=request.cluster,
                allowed=f"a cluster of {measured.gpu.name}, the GPU that {request.profile} was taken on",
            )
    return cluster


def checked_world_size(world_size: int | None, cluster: ClusterSpec) -> int:
    """A world that the cluster can hold; raises ConfigError."""
    where, key = "--world_size", "world_size"
    if world_size is None or world_size < 1:
        raise ConfigError(where=where, key=key, value=world_size, allowed="a number of GPUs, 1 or more")
    per_node = cluster.gpus_per_node
    if world_size > per_node and world_size % per_node:
        raise ConfigError(
            where=where,
            key=key,
            value=world_size,
            allowed=f"less than one node or a multiple of {per_node} ({cluster.name} has {per_node} GPUs a node)",
        )
    if cluster.nodes_for(world_size) > cluster.max_nodes:
        raise ConfigError(
            where=where,
            key=key,
            value=world_size,
            allowed=f"at most {cluster.max_nodes} nodes of {per_node} GPUs ({cluster.name})",
        )
    return world_size


def asked_job(request: Request, config: ConfigFile, cluster: ClusterSpec) -> AskedJob:
    """The job that the request and the config ask for; raises ConfigError for sizes that do not fit together."""
    world_size = checked_world_size(request.world_size, cluster)
    seq_len = config.seq_len if request.seq_len is None else request.seq_len
    if seq_len is None or seq_len < 1:
        raise ConfigError(
            where=config.path, key="seq_len", value=seq_len, allowed="tokens per sequence: give --seq_len"
        )
    written = config.plan or WrittenPlan()
    tokens = request.global_batch_tokens
    if tokens is None:
        tokens = _written_batch(written, world_size, seq_len)
    if tokens is None or tokens < 1 or tokens % seq_len:
        raise ConfigError(
            where="--global_batch_size",
            key="global_batch_size",
            value=tokens,
            allowed=f"tokens per step, a positive multiple of the sequence length {seq_len}",
        )
    framework = request.framework or config.framework or DEFAULT_FRAMEWORK
    return AskedJob(
        world_size=world_size,
        seq_len=seq_len,
        global_batch_tokens=tokens,
        framework=framework,
        settings=said_of_job(request, config, framework),
    )


def said_of_job(request: Request, config: ConfigFile, framework: str) -> dict[str, object]:
    """Values of the job's settings: the config's, its framework's own under that framework alone, a typed precision
    in the place of the config's, and what was typed."""
    said = dict(config.job)
    if framework == config.framework:
        said |= config.framework_job
    if request.precision is not None:
        said = {key: value for key, value in said.items() if not key.startswith("precision.")}
        said["precision.recipe"] = request.precision
    return said | dict(request.job)


def check_names(preset: FrameworkPreset) -> None:
    """Raise ConfigError for a strategy or schedule that a user gives a framework and that nobody knows."""
    for name in preset.tensor_parallel.strategies:
        strategy_named(name, where="--job")
    for name in preset.pipeline.schedules:
        if name not in set(Schedule):
            allowed = f"of {', '.join(Schedule)}"
            raise ConfigError(where="--job", key="pipeline.schedules", value=name, allowed=allowed)


def _written_batch(written: WrittenPlan, world_size: int, seq_len: int) -> int | None:
    """Tokens per step of the plan in the config, when it says enough."""
    if written.micro_batch is None or written.num_micro is None:
        return None
    split = (written.tp or 1) * (written.pp or 1) * written.cp
    return max(world_size // split, 1) * written.micro_batch * written.num_micro * seq_len
