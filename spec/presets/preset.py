"""What a framework decides about training: the choices that change bytes and seconds but not the plan."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkPreset:
    """One framework's defaults; fields left out hold for most frameworks.

    strategies, zero_stages: tensor-parallel modes and sharding stages it can run.
    hybrid_zero: zero_size may be smaller than the data-parallel group.
    gradient_dtype: format in which gradients accumulate and travel.
    bucket_elements: of one gradient reduction, at least bucket_elements_per_rank times dp.
    parameter_sync: how updated shards return, "all_gather" or "broadcast".
    gathers_every_forward: stage 2 gathers parameters in every forward instead of once a step.
    vocab_pad_multiple, vocab_pad_times_tp: the vocabulary padding rule.
    kv_replication: kv heads fewer than tp are replicated instead of refused.
    uneven_layers: layers need not divide pp.
    deals_edges: embedding, final norm and head count as a layer each where stages get equally many.
    fills_pipeline: at least pp micro-batches are wanted.
    scattered_hops: tp ranks send a slice each to the next stage and gather there (2104.04473 sec. 4.1).
    interleaves: a stage may hold several virtual chunks.
    overlap_hops: interleaved stages compute beside their messages (Megatron-LM overlap_p2p_comm, the default
        where stages are interleaved since it exists).
    fused_loss: the loss keeps one copy of the logits instead of an fp32 copy beside them.
    plain_loss: unfused, it is PyTorch's own cross-entropy on an fp32 copy of the logits.
    gathers_logits: every tensor rank gathers the whole vocabulary's logits and computes the whole loss.
    selective: what selective recomputation repeats, "core_attn" (the attention core), "every_second_product"
        (ops.recompute.every_second_product) or "" where there is none.
    partial_recompute: some layers of a stage may be recomputed and others not.
    schedules: pipeline schedules it can run, by solver.plans.schedules' names.
    context_parallel: sequences may be cut over cp.
    recomputes_edges: full recomputation repeats embedding and head as it does layers.
    keeps_stage_outputs: a stage's output stays from its forward to its backward, and the last stage's
        logits until the next ones take their place.
    overlap_grad_reduce, overlap_param_gather: beside the last backward and the first forward.
    overlap_weights: sharded weights are gathered ahead.
    overlap_tp, overlap_tp_backward: tp collectives of the backward beside the other gradient GEMM
        (2205.05198 sec. 4.2.2).
    fused_activation: a gated activation keeps only its two inputs.
    joined_gate: gate and up are one matrix.
    gradient_sync: of sharded optimizers, "reduce_scatter" or "all_reduce".
    copies_parameters: sharded parameters stay tensors of their own, copied out of a gather and into a
        reduction (FSDP2; FSDP1 gathers into the place they are views of).
    joins_gradients: gradients are joined into a flat one, cast and divided before they are reduced (FSDP1).
    stops_recomputing: full recomputation ends once everything the backward needs is back, before the
        layer's last product (PyTorch 2.1, torch.utils.checkpoint with early_stop, not reentrant).
    sliced_collectives: sharded parameters and gradients travel one by one, as lists of a slice a rank that
        the host copies (ops.data_parallel.sliced_collectives).
    contiguous_gradients: gradients lie in one buffer and travel from there instead of through a bucket.
    host_code: how its layers are written, a key of ops.host_work.CALLS: "modules" of many Python layers
        (Megatron-Core, Transformer Engine), plain "torch" modules, or "compiled" code.
    flattened_buckets: gradients are copied into a bucket to travel and back, and averaged on the way
        instead of by a pass of their own.
    checks_numbers: the host reads every micro-batch's loss before its backward, and gradients are read once
        more before they are reduced, to find what is not a number.
    offloads_optimizer: when gradients leave for an optimizer on the host: "backward" (as they are made), "step"
        (after the last, the device's own part of the update beside the host's), or "" where there is none.
    offloads_activations: layers may keep what they save on the host.
    accumulation: the kernel of ops.kernels that adds a micro-batch's weight gradients to the sum; ""
        where sharded gradients are added in small pieces.
    """

    name: str
    strategies: tuple[str, ...]
    zero_stages: tuple[int, ...]
    gradient_dtype: str
    bucket_elements: int
    source: str
    hybrid_zero: bool = True
    bucket_elements_per_rank: int = 0
    parameter_sync: str = "all_gather"
    gathers_every_forward: bool = False
    vocab_pad_multiple: int = 128
    vocab_pad_times_tp: bool = True
    kv_replication: bool = False
    uneven_layers: bool = True
    deals_edges: bool = False
    fills_pipeline: bool = False
    scattered_hops: bool = False
    interleaves: bool = False
    overlap_hops: bool = True
    fused_loss: bool = False
    plain_loss: bool = False
    gathers_logits: bool = False
    selective: str = "core_attn"
    partial_recompute: bool = True
    schedules: tuple[str, ...] = ("1f1b",)
    context_parallel: bool = False
    recomputes_edges: bool = False
    keeps_stage_outputs: bool = False
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    overlap_weights: bool = True
    overlap_tp: bool = False
    overlap_tp_backward: bool = True
    fused_activation: bool = True
    joined_gate: bool = True
    gradient_sync: str = "reduce_scatter"
    contiguous_gradients: bool = False
    flattened_buckets: bool = False
    checks_numbers: bool = False
    sliced_collectives: bool = False
    copies_parameters: bool = False
    joins_gradients: bool = False
    stops_recomputing: bool = False
    accumulation: str = "accumulate_fp32"
    host_code: str = "modules"
    offloads_optimizer: str = ""
    offloads_activations: bool = False
