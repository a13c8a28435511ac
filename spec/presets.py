"""How each framework trains: the choices that change bytes and seconds but not the plan.

Sources, read 2026-11: Megatron-LM core 0.12 ``megatron/training/arguments.py`` and
``core/distributed/distributed_data_parallel_config.py``; DeepSpeed documentation, "ZeRO
optimizations for FP16 training"; PyTorch FSDP documentation; InternEvo 0.4 ``configs/`` and
``internlm/solver/optimizer/hybrid_zero_optim.py``.
"""

from dataclasses import dataclass

from spec.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkPreset:
    """One framework's defaults.

    ``strategies`` are the tensor-parallel modes it can run; ``zero_stages`` the sharding stages;
    ``hybrid_zero`` whether zero_size may be smaller than the data-parallel group;
    ``gradient_dtype`` in which gradients accumulate and travel; ``bucket_elements`` of one gradient
    reduction, at least ``bucket_elements_per_rank`` times dp; ``parameter_sync`` how updated shards return ("all_gather" or "broadcast");
    ``gathers_every_forward`` whether sharded gradients (stage 2) come with parameters gathered in every
    forward instead of once a step; ``vocab_pad_multiple`` and ``vocab_pad_times_tp`` the vocabulary padding rule;
    ``kv_replication`` whether kv heads fewer than tp are replicated instead of refused;
    ``uneven_layers`` whether layers need not divide pp, ``fills_pipeline`` whether it wants at least pp
    micro-batches, ``interleaves`` whether a stage may hold several
    virtual chunks, ``scattered_hops`` whether tp ranks send a slice each to the next stage and gather there
    (arXiv 2104.04473 sec. 4.1); ``fused_loss`` whether the loss keeps one
    copy of the logits instead of an fp32 copy beside them; ``overlap_*`` the default overlaps
    (``overlap_weights``: sharded weights gathered ahead; ``overlap_tp``: every tp collective inside its GEMM; ``overlap_tp_backward``: the backward's beside
    the other gradient GEMM, 2205.05198 sec. 4.2.2); ``fused_activation`` whether the gated activation
    keeps only its two inputs; ``joined_gate`` whether gate and up are one matrix; ``gradient_sync`` how gradients of sharded optimizers are reduced
    ("reduce_scatter" or "all_reduce"); ``contiguous_gradients`` whether they lie in one buffer and
    travel from there instead of through a bucket; ``accumulation`` the kernel of ops.kernels that adds
    a micro-batch's weight gradients to the sum ("" where sharded gradients are added in small pieces);
    ``prefetch`` the unit of weight prefetch ("module" or "layer").
    """

    name: str
    strategies: tuple[str, ...]
    zero_stages: tuple[int, ...]
    hybrid_zero: bool
    gradient_dtype: str
    bucket_elements: int
    bucket_elements_per_rank: int
    parameter_sync: str
    gathers_every_forward: bool
    vocab_pad_multiple: int
    vocab_pad_times_tp: bool
    kv_replication: bool
    uneven_layers: bool
    fills_pipeline: bool
    scattered_hops: bool
    interleaves: bool
    fused_loss: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    overlap_weights: bool
    overlap_tp: bool
    overlap_tp_backward: bool
    fused_activation: bool
    joined_gate: bool
    gradient_sync: str
    contiguous_gradients: bool
    accumulation: str
    prefetch: str
    source: str


MEGATRON = FrameworkPreset(
    name="megatron",
    strategies=("mtp", "fsp"),
    zero_stages=(0, 1),
    hybrid_zero=True,
    gradient_dtype="fp32",
    bucket_elements=40_000_000,
    bucket_elements_per_rank=1_000_000,
    parameter_sync="all_gather",
    gathers_every_forward=False,
    vocab_pad_multiple=128,
    vocab_pad_times_tp=True,
    kv_replication=False,
    uneven_layers=True,
    fills_pipeline=False,
    scattered_hops=True,
    interleaves=True,
    fused_loss=False,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    overlap_weights=True,
    overlap_tp=False,
    overlap_tp_backward=True,
    fused_activation=True,
    joined_gate=True,
    gradient_sync="reduce_scatter",
    contiguous_gradients=True,
    accumulation="accumulate_fp32",
    prefetch="layer",
    source="Megatron-LM core 0.12: --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather, "
    "make_vocab_size_divisible_by 128, accumulate_allreduce_grads_in_fp32 with bf16, bucket max(40e6, 1e6 dp), "
    "num_distributed_optimizer_instances for partial sharding",
)

INTERNEVO = FrameworkPreset(
    name="internevo",
    strategies=("mtp", "msp", "fsp", "isp"),
    zero_stages=(0, 1),
    hybrid_zero=True,
    gradient_dtype="bf16",
    bucket_elements=512 * 1024**2,
    bucket_elements_per_rank=0,
    parameter_sync="broadcast",
    gathers_every_forward=False,
    vocab_pad_multiple=1,
    vocab_pad_times_tp=True,
    kv_replication=False,
    uneven_layers=True,
    fills_pipeline=True,
    scattered_hops=False,
    interleaves=False,
    fused_loss=False,
    overlap_grad_reduce=True,
    overlap_param_gather=False,
    overlap_weights=True,
    overlap_tp=False,
    overlap_tp_backward=True,
    fused_activation=False,
    joined_gate=True,
    gradient_sync="all_reduce",
    contiguous_gradients=False,
    accumulation="accumulate",
    prefetch="layer",
    source="InternEvo 0.4 configs/7B_internlm2.py: overlap_sync_grad True, overlap_sync_param False, "
    "reduce_bucket_size 512 Mi elements, zero1 broadcast of updated parameters",
)

DEEPSPEED = FrameworkPreset(
    name="deepspeed",
    strategies=("mtp",),
    zero_stages=(0, 1, 2, 3),
    hybrid_zero=False,
    gradient_dtype="bf16",
    bucket_elements=500_000_000,
    bucket_elements_per_rank=0,
    parameter_sync="all_gather",
    gathers_every_forward=False,
    vocab_pad_multiple=128,
    vocab_pad_times_tp=True,
    kv_replication=False,
    uneven_layers=True,
    fills_pipeline=False,
    scattered_hops=False,
    interleaves=False,
    fused_loss=False,
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    overlap_weights=True,
    overlap_tp=False,
    overlap_tp_backward=True,
    fused_activation=True,
    joined_gate=True,
    gradient_sync="reduce_scatter",
    contiguous_gradients=False,
    accumulation="accumulate_fp32",
    prefetch="module",
    source="DeepSpeed configuration: reduce_bucket_size 5e8, overlap_comm true for stage 3, allgather_partitions",
)

FSDP = FrameworkPreset(
    name="fsdp",
    strategies=("mtp", "fsp"),
    zero_stages=(0, 2, 3),
    hybrid_zero=True,
    gradient_dtype="bf16",
    bucket_elements=0,
    bucket_elements_per_rank=0,
    parameter_sync="all_gather",
    gathers_every_forward=True,
    vocab_pad_multiple=1,
    vocab_pad_times_tp=True,
    kv_replication=False,
    uneven_layers=True,
    fills_pipeline=False,
    scattered_hops=False,
    interleaves=False,
    fused_loss=False,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    overlap_weights=True,
    overlap_tp=False,
    overlap_tp_backward=False,
    fused_activation=True,
    joined_gate=True,
    gradient_sync="reduce_scatter",
    contiguous_gradients=False,
    accumulation="",
    prefetch="layer",
    source="PyTorch FSDP: NO_SHARD, FULL_SHARD, SHARD_GRAD_OP and HYBRID_SHARD with backward prefetch; one unit per layer",
)

PRESETS: dict[str, FrameworkPreset] = {
    preset.name: preset for preset in (MEGATRON, INTERNEVO, DEEPSPEED, FSDP)
}


def preset_named(name: str, *, where: str = "--framework") -> FrameworkPreset:
    """The preset of that name; raises ConfigError naming the known ones."""
    if name not in PRESETS:
        raise ConfigError(where=where, key="framework", value=name, allowed=f"one of {', '.join(PRESETS)}")
    return PRESETS[name]
