"""Megatron-LM.

Source, read 2026-11: core 0.12 ``megatron/training/arguments.py`` and
``core/distributed/distributed_data_parallel_config.py``.
"""

from spec.presets.data_parallel import DataParallel
from spec.presets.log import Log
from spec.presets.preset import (
    FrameworkPreset,
    Host,
    Layers,
    Offload,
    OffloadedPart,
    Pipeline,
    Recomputation,
    RecomputedPart,
    TensorParallel,
)

# core/transformer/transformer_config.py, allowed_modules, but for those of mixers that have no such part here.
MODULES: tuple[RecomputedPart, ...] = (
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "shared_experts",
    "moe",
)

# transformer_config.py, offload_modules, but for that of a mixer that is not priced.
OFFLOADED: tuple[OffloadedPart, ...] = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
)

MEGATRON = FrameworkPreset(
    name="megatron",
    data_parallel=DataParallel(
        zero_stages=(0, 1),
        fp32_gradients=True,
        bucket_elements=40_000_000,
        bucket_elements_per_rank=1_000_000,
        contiguous_gradients=True,
        keeps_stand_ins=True,
    ),
    tensor_parallel=TensorParallel(strategies=("mtp", "fsp"), cuts_sequences=True),
    pipeline=Pipeline(interleaves=True, uneven_chunks="layout"),
    recomputation=Recomputation(modules=MODULES),
    layers=Layers(
        splits_joined_qkv=True, shares_kept_inputs=True, turns_chunks=True, sends_probabilities=True
    ),
    host=Host(checks_numbers=True),
    offload=Offload(optimizer="step", activations=True, modules=OFFLOADED),
    log=Log(attention="half"),
    source="Megatron-LM core 0.12: --check-for-nan-in-loss-and-grad by default, --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather, "
    "make_vocab_size_divisible_by 128, accumulate_allreduce_grads_in_fp32 with bf16, bucket max(40e6, 1e6 dp), "
    "num_distributed_optimizer_instances for partial sharding; core 0.14 core/pipeline_parallel/schedules.py, get_tensor_shapes: "
    "a message is cut by tp with sequence parallelism only; core/transformer/pipeline_parallel_layer_layout.py, "
    "--pipeline-model-parallel-layout; core 0.17 core/transformer/transformer_config.py, recompute_modules, offload_modules; training/training.py, num_floating_point_operations: seq_length / hidden_size / 2; core 0.15 transformer/attention.py, get_query_key_value_tensors; transformer/moe/token_dispatcher.py (drop_and_pad: transpose, contiguous); core 0.13 token_dispatch",
)
