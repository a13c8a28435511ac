"""The plan an InternLM-style config is written with: its ``parallel``, ``data``, ``model`` and
``hybrid_zero_optimizer`` sections.

InternEvo's own defaults apply where it has one (``internlm/initialize/launch.py``,
args_sanity_check): zero1 over the whole data-parallel group, tensor, pipeline and weight 1, mtp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spec.dtypes import canonical_dtype
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.readers.internlm_keys import HYBRID_ZERO
from spec.section import MAX_LAYERS, Section
from spec.settings.plan import WrittenPlan

PRICED_DTYPES = ("bf16", "fp16")
# Key of a model -> which of its matrices are one (internlm/model/modules/mlp.py and mha.py).
JOINED = {"mlp_layer_fusion": "layers.joined_gate", "enable_qkv_fusion": "layers.joined_qkv"}
# parallel.pipeline.mode -> a schedule; InternEvo takes them in either case.
MODES = {"1F1B": "1f1b", "1f1b": "1f1b", "ZBH1": "zb-h1", "zbh1": "zb-h1"}


def chunk_sizes(num_layers: int, pp: int) -> frozenset[int]:
    """Layers of InternEvo's stages: the whole part of layers over stages, on some one more
    (internlm/core/parallel/shard.py, partition_uniform)."""
    return frozenset(size for size in (num_layers // pp, -(-num_layers // pp)) if size)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSections:
    """What a config says of its training: see ConfigFile."""

    plan: WrittenPlan | None = None
    job: Mapping[str, object] = field(default_factory=dict)
    framework_job: Mapping[str, object] = field(default_factory=dict)
    sequence_parallel: bool = False


def read_internlm_plan(parallel: Section, data: Section, model: Section, zero: Section) -> TrainingSections:
    """The written plan and job; raises ConfigError for settings that are wrong or not priced yet."""
    tensor = _entry(parallel, "tensor")
    tp = tensor.integer_or("size", 1)
    strategy = tensor.choice("mode", framework_preset("internevo").tensor_parallel.strategies, "mtp")
    tensor.close()
    pp, schedule, overlap_hops = _pipeline(parallel)
    vpp = _chunks(model, pp)
    weight = _entry(parallel, "weight")
    wp = weight.integer_or("size", 1)
    zero_stage, zero_size = _zero(parallel)
    ep, etp = _experts(parallel, tp)
    _refuse_unpriced(parallel)
    sequence_parallel = parallel.flag("sequence_parallel", False)
    parallel.close()
    if not model.flag("parallel_output", True) and tp > 1:
        model.fail("parallel_output", "True when tensor.size > 1: gathered logits are not priced")
    recompute, recompute_layers = _recompute(model, pp, vpp)
    plan = WrittenPlan(
        strategy=strategy,
        tp=tp,
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        wp=wp,
        ep=ep,
        etp=etp,
        zero_stage=zero_stage,
        zero_size=zero_size,
        micro_batch=data.maybe_integer("micro_bsz"),
        num_micro=data.maybe_integer("micro_num"),
        recompute=recompute,
        recompute_layers=recompute_layers,
        preset="internevo",
    )
    job = {
        "flash_attention": model.flag("use_flash_attn", True),
        "precision.recipe": _dtype(model),
    }
    framework_job: dict[str, object] = {
        "data_parallel.overlap_grad_reduce": _overlap_sync_grad(zero),
        "data_parallel.overlap_param_gather": zero.flag("overlap_sync_param", False),
        "data_parallel.overlap_weights": weight.flag("overlap", False),
    }
    for key, choice in JOINED.items():
        if model.has(key):
            framework_job[choice] = model.flag(key, False)
    if vpp > 1:
        framework_job["pipeline.overlap_hops"] = overlap_hops
    if zero.has("reduce_bucket_size"):
        framework_job["data_parallel.bucket_elements"] = zero.integer("reduce_bucket_size")
    weight.flag("memory_pool", False)
    weight.choice("forward_overlap_per", ("layer", "module"), "layer")
    weight.only("launch_allgather_before", ("wo",), "another prefetch point is not priced")
    weight.close()
    zero.close(HYBRID_ZERO)
    return TrainingSections(
        plan=plan, job=job, framework_job=framework_job, sequence_parallel=sequence_parallel
    )


def _entry(parallel: Section, key: str) -> Section:
    """A parallel entry, where a bare integer stands for dict(size=...)."""
    if type(parallel.values.get(key)) is int:
        parallel.has(key)
        return Section(
            where=parallel.where, name=f"{parallel.name}.{key}", values={"size": parallel.values[key]}
        )
    return parallel.section(key)


def _pipeline(parallel: Section) -> tuple[int, str, bool]:
    """Stages, their schedule, and whether interleaved ones compute beside their messages (False when absent)."""
    pipeline = _entry(parallel, "pipeline")
    size = pipeline.integer_or("size", 1)
    overlap = pipeline.flag("interleaved_overlap", False)
    schedule = MODES[pipeline.choice("mode", tuple(MODES), "1F1B")]
    pipeline.only("zero_bubble", (False,), 'say mode = "ZBH1"')
    pipeline.only("use_zeropp", (False,), "ZeroPP schedules are not priced")
    pipeline.only("decouple_grad", (False,), "zero-bubble schedules are not priced yet")
    pipeline.close()
    return size, schedule, overlap


def _chunks(model: Section, pp: int) -> int:
    """Virtual chunks of a stage; layers divide over them (internlm/solver/pipeline_utils.py, partition_uniform)."""
    chunks = model.integer_or("num_chunks", 1)
    layers = model.integer("num_layers")
    if chunks > 1 and (pp == 1 or layers % chunks):
        model.fail("num_chunks", f"1, or with pipeline.size > 1 a divisor of num_layers = {layers}")
    return chunks


def _zero(parallel: Section) -> tuple[int, int]:
    """(stage, size): size <= 0 is the whole data-parallel group, 1 no sharding, else a part of it."""
    zero1 = _entry(parallel, "zero1")
    size = zero1.integer_or("size", -1, minimum=-(2**31))
    zero1.only("fsdp", (False,), "InternEvo under torch FSDP is not priced")
    zero1.close()
    return (0, 1) if size == 1 else (1, max(size, 0))


def _experts(parallel: Section, tp: int) -> tuple[int | None, int | None]:
    """(ep, etp); expert.size <= 0 lets InternEvo choose, no_tp keeps experts whole."""
    parallel.has("expert")
    if parallel.values.get("expert") is None:
        ep, etp = None, None
    else:
        expert = _entry(parallel, "expert")
        ep = max(expert.integer_or("size", -1, minimum=-(2**31)), 0)
        etp = 1 if expert.flag("no_tp", False) else tp
        expert.close()
    for key, accepted in (("expert_weight", (0, 1)), ("expert_zero1", (-1, 0))):
        entry = _entry(parallel, key)
        entry.only("size", accepted, f"{key} is not priced")
        entry.close(("overlap", "memory_pool", "fsdp", "launch_allgather_before", "forward_overlap_per"))
    return ep, etp


def _refuse_unpriced(parallel: Section) -> None:
    sequence_2d = parallel.section("sequence_2D")
    sequence_2d.only("enable", (False,), "2D sequence parallelism is not priced yet")
    sequence_2d.close(("head_size", "context_size", "window_size", "device_placement_strategy"))


def _recompute(model: Section, pp: int, vpp: int) -> tuple[Literal["none", "full"], int | None]:
    """``checkpoint``, a bool or the share of each chunk's layers, as WrittenPlan's recompute and
    recompute_layers: the first int(share x layers) of a chunk run again (internlm/model/modeling_*.py,
    checkpoint_layer_num)."""
    value = model.values.get("checkpoint") if model.has("checkpoint") else False
    if not isinstance(value, (bool, int, float)) or not 0 <= value <= 1:
        model.fail("checkpoint", "True, False or the share of layers to recompute, 0 to 1")
    if value in (0, 1):
        return ("full" if value else "none"), None
    sizes = chunk_sizes(model.integer("num_layers", maximum=MAX_LAYERS) // vpp, pp)
    recomputed = {int(size * value) for size in sizes}
    if len(recomputed) > 1:
        counts = " or ".join(str(count) for count in sorted(recomputed))
        model.fail("checkpoint", f"a share of equally many layers on every stage, not {counts} of them")
    count = recomputed.pop()
    return ("full", count) if count else ("none", None)


def _overlap_sync_grad(zero: Section) -> bool:
    """overlap_sync_grad, or its older name zero_overlap_communication."""
    older = zero.flag("zero_overlap_communication", False)
    return zero.flag("overlap_sync_grad", older)


def _dtype(model: Section) -> str:
    """The compute format: bf16 or fp16 (InternEvo's default)."""
    written = model.text("dtype", "torch.float16")
    short = canonical_dtype(written, where=model.where, key="model.dtype")
    if short not in PRICED_DTYPES:
        raise ConfigError(
            where=model.where,
            key="model.dtype",
            value=written,
            allowed="torch.bfloat16 or torch.float16: other formats are not priced yet",
        )
    return short
