"""InternEvo.

Source, read 2026-11: InternEvo 0.4 ``configs/`` and ``internlm/solver/optimizer/hybrid_zero_optim.py``.
"""

from spec.presets.data_parallel import DataParallel
from spec.presets.log import Log
from spec.presets.preset import (
    FrameworkPreset,
    Host,
    Layers,
    Pipeline,
    Recomputation,
    TensorParallel,
)

INTERNEVO = FrameworkPreset(
    name="internevo",
    data_parallel=DataParallel(
        zero_stages=(0, 1),
        fp32_gradients=False,
        bucket_elements=512 * 1024**2,
        gradient_sync="all_reduce",
        parameter_sync="broadcast",
        overlap_param_gather=False,
        flattened_buckets=True,
        accumulation="accumulate",
    ),
    tensor_parallel=TensorParallel(
        strategies=("mtp", "msp", "fsp", "isp"), exchange_copies="lists", vocab_pad_multiple=1
    ),
    pipeline=Pipeline(
        schedules=("1f1b", "zb-h1"), fills_pipeline=True, interleaves=True, scattered_hops=True
    ),
    recomputation=Recomputation(selective="", modules=("dropout_norm",)),
    layers=Layers(fused_activation=False, joined_gate=False, two_pass_norms=True),
    host=Host(code="torch", reads_positions=True),
    log=Log(attention="whole", repeats="layers"),
    source="InternEvo 0.4 configs/7B_internlm2.py: overlap_sync_grad True, overlap_sync_param False, "
    "reduce_bucket_size 512 Mi elements, zero1 broadcast of updated parameters; internlm/utils/common.py, get_megatron_flops; "
    "internlm/model/ops/norm.py: apex's norms; internlm/model/modules/embedding.py, _update_cos_sin_cache: indexes.max().item(); internlm/model/modeling_internlm2.py, dropout_selective_checkpoint; internlm/model/modules/mlp.py (mlp_layer_fusion False); "
    "internlm/core/scheduler/pipeline_scheduler.py, InterleavedPipelineScheduler (num_chunks, rounds of pp micro-batches, interleaved_overlap) and "
    "scatter_gather_tensors; internlm/core/communication/p2p.py, gather_split_1d_tensor; pipeline_scheduler_zb.py of 0.5.3, ZeroBubblePipelineScheduler",
)
