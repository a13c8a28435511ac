"""Megatron-LM of 2021 and 2022. Before the asynchronous all-reduce of input gradients (no
--no-async-tensor-model-parallel-allreduce in arguments.py of v2.5), say ``tensor_parallel.overlap_backward`` = false.
"""

from spec.presets.variants.variant import Variant

MEGATRON_2021 = Variant(
    name="megatron-2021",
    of="megatron",
    source="Megatron-LM v2.5: megatron/model/distributed.py and arguments.py (local data parallelism without overlap, gradients in "
    "16 bits unless asked otherwise, no sharded optimizer), megatron/p2p_communication.py (_communicate: wait on every "
    "request, then synchronize; --no-scatter-gather-tensors-in-pipeline turns the scattering off); its log has no FLOP/s; "
    "megatron/model/distributed.py, _make_param_hook (main_grad.add_(param.grad.data): a pass of its own); 23.08 megatron/model/transformer.py "
    "(F.silu(x[0]) * x[1]); megatron/fused_kernels/layer_norm_cuda_kernel.cu (apex's norms; v2.6 has persistent ones); arguments.py has neither context nor expert parallelism",
    choices={
        "tensor_parallel.cuts_sequences": False,
        "tensor_parallel.spreads_experts": False,
        "log.attention": "",
        "data_parallel.hybrid_zero": False,
        "offload.activations": False,
        "offload.modules": (),
        "offload.optimizer": "",
        "data_parallel.fp32_gradients": False,
        "data_parallel.accumulation": "accumulate",
        "data_parallel.overlap_grad_reduce": False,
        "data_parallel.overlap_param_gather": False,
        "data_parallel.keeps_stand_ins": False,
        "data_parallel.gradient_sync": "all_reduce",
        "pipeline.overlap_hops": False,
        "pipeline.scattered_hops": True,
        "pipeline.uneven_chunks": "",
        "layers.splits_joined_qkv": False,
        "layers.fused_activation": False,
        "layers.two_pass_norms": True,
        "recomputation.modules": (),
        "host.checks_numbers": False,
    },
)
