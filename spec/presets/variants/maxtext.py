"""MaxText: JAX, compiled whole by XLA."""

from spec.presets.variants.torchtitan import COMPILED
from spec.presets.variants.variant import Variant

MAXTEXT = Variant(
    name="maxtext",
    of="fsdp",
    source="MaxText e591f30 (August 2026): configs/base.yml (fused_qkv, fused_mlp: false; weight_dtype, grad_dtype: float32; remat_policy: "
    "full; pipeline_fsdp_ag_once: false), layers/decoders.py (nn.remat around every layer, or none), utils/maxtext_utils.py, calculate_tflops_training_per_device (causal attention once); XLA compiles the whole step: elementwise "
    "work is fused, shards are gathered into what products read, and of a layer that runs again nothing is left that its backward "
    "does not read (jax/_src/ad_checkpoint.py: remat_dce, and a barrier over inputs alone), so its last product does not run again; "
    "xla/service/collective_quantizer.cc in gpu_compiler.cc: what is cast behind a gather is cast before it; "
    "transforms/priority_fusion.cc: casts by flax' scales of earlier steps (linen/fp8_ops.py) run inside the kernel that makes what they read",
    choices={
        **COMPILED,
        "data_parallel.copies_parameters": False,
        "data_parallel.casts_shards": True,
        "pipeline.keeps_gathered": False,
        "pipeline.interleaves": False,
        "pipeline.uneven_chunks": "",
        "pipeline.schedules": ("1f1b",),
        "layers.fused_casts": True,
        "recomputation.stops_early": True,
        "recomputation.partial": False,
        "log.attention": "half",
        "offload.modules": (),
    },
)
