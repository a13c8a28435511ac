"""DeepSpeed.

Source, read 2026-11: DeepSpeed documentation, "ZeRO optimizations for FP16 training"; releases 0.13 to 0.16.
"""

from spec.presets.data_parallel import DataParallel
from spec.presets.log import Log
from spec.presets.preset import (
    FrameworkPreset,
    Host,
    Layers,
    Offload,
    Pipeline,
    Recomputation,
    TensorParallel,
)

DEEPSPEED = FrameworkPreset(
    name="deepspeed",
    data_parallel=DataParallel(
        zero_stages=(0, 1, 2, 3),
        hybrid_zero=False,
        fp32_gradients=False,
        sequence_gradient_dtype="fp32",
        bucket_elements=500_000_000,
        gradient_sync="all_reduce",
        overlap_grad_reduce=False,
        overlap_param_gather=False,
        live_elements=1_000_000_000,
    ),
    tensor_parallel=TensorParallel(
        strategies=("mtp", "ulysses"),
        exchange_copies="permuted",
        overlap_backward=False,
        reduces_halves=True,
    ),
    pipeline=Pipeline(
        shards_weights=False, scattered_hops=True, partitioned_tensors=True, keeps_stage_outputs=True
    ),
    recomputation=Recomputation(partial=False),
    layers=Layers(two_pass_norms=True, fused_activation=False),
    host=Host(hooks_modules=True),
    offload=Offload(optimizer="backward"),
    log=Log(attention="whole", repeats="all"),
    source="DeepSpeed configuration: reduce_bucket_size 5e8, overlap_comm true for stage 3 alone, allgather_partitions, "
    "use_multi_rank_bucket_allreduce true (runtime/zero/stage_1_and_2.py, allreduce_and_scatter: whole buckets are all-reduced from "
    "0.13 on; before, average_tensor reduced every slice to its owner), stage3_max_live_parameters 1e9; "
    "runtime/pipe/engine.py: \"ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism\", pipe_buffers['outputs'] until the backward, is_pipe_partitioned and "
    "is_grad_partitioned where there is tensor parallelism, and runtime/utils.py, PartitionedTensor.full; runtime/zero/stage_1_and_2.py, allreduce_bucket: fp32 where "
    "sequence_parallel_size > 1, and seq_parallel_communication_data_type, fp32, at stages 0 and 3; "
    "Megatron-DeepSpeed megatron/utils.py, throughput_calculator; megatron/arguments.py, validate_args (with --deepspeed "
    "async_tensor_model_parallel_allreduce is False) and GPT-NeoX megatron/mpu/layers.py, ColumnParallelLinear (a blocking "
    "all-reduce of input gradients) and megatron/model/transformer.py (gpt_j_residual, which Megatron-DeepSpeed has not: one reduce of the sum); megatron/model/transformer.py (ParallelMLP: "
    "F.silu(x[0]) * x[1] of chunks, as GPT-NeoX's Gated_Activation); megatron/model/fused_layer_norm.py and __init__.py: apex's norms "
    "(persistent ones for some hidden sizes where apex's contrib is built)",
)
