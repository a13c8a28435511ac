"""PyTorch FSDP.

Source, read 2026-11: PyTorch FSDP documentation.
"""

from spec.presets.data_parallel import DataParallel
from spec.presets.log import Log
from spec.presets.preset import (
    FrameworkPreset,
    Host,
    Loss,
    Offload,
    Pipeline,
    Recomputation,
    TensorParallel,
)

FSDP = FrameworkPreset(
    name="fsdp",
    loss=Loss(plain=True),
    data_parallel=DataParallel(
        zero_stages=(0, 2, 3),
        fp32_gradients=False,
        bucket_elements=0,
        gathers_every_forward=True,
        copies_parameters=True,
        shards_master=True,
        fresh_gradients=True,
        accumulation="",
    ),
    tensor_parallel=TensorParallel(
        strategies=("mtp", "fsp"),
        cuts_sequences=True,
        partial_attention="torch",
        vocab_pad_multiple=1,
        reduces_sums=True,
        copies_sequences=True,
        overlap_backward=False,
        overlap_rs_method="ring_exchange",
        bulk_dgrad=False,
        bulk_wgrad=False,
    ),
    pipeline=Pipeline(
        keeps_gathered=True,
        interleaves=True,
        uneven_chunks="layout",
        schedules=("1f1b", "gpipe", "looped-bfs", "zb-interleaved", "zb-v"),
    ),
    recomputation=Recomputation(selective="every_second_product", stops_early=True),
    host=Host(code="torch"),
    offload=Offload(modules=("layer_input",)),
    log=Log(attention="whole"),
    source="PyTorch FSDP: NO_SHARD, FULL_SHARD, SHARD_GRAD_OP and HYBRID_SHARD with backward prefetch; one unit per layer; "
    "torchtitan parallelize_llama.py, apply_fsdp: with pipeline parallelism reshard_after_forward is False; torch/distributed/"
    "fsdp/_fully_shard/_fsdp_param.py, unsharded_accumulated_grad; torch/distributed/pipelining/schedules.py (get_schedule_class); "
    "torch/_inductor/fx_passes/micro_pipeline_tp.py (tensor_parallel.overlap) fuses gathers into products, and products into reduce-scatters: those whose "
    "input a product makes (_find_producer_matmul), so no sum of the gradients of several; torch/distributed/tensor/parallel/style.py "
    "(PrepareModuleInput, use_local_output=False: gradients stay partial sums until all are added); "
    "torch/distributed/_functional_collectives.py (chunk and cat around collectives along another dimension than the first); "
    "torchtune training/_activation_offloading.py (OffloadActivations); "
    "torchtitan models/utils.py, get_dense_model_nparams_and_flops: no account of causal sparsity",
)
