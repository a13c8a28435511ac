"""HAI-LLM, DeepSeek's framework, as its report on DeepSeek-V3 tells it."""

from dataclasses import replace

from spec.presets.megatron import MEGATRON

HAI_LLM = replace(
    MEGATRON,
    name="hai-llm",
    source="DeepSeek-V3 technical report (arXiv 2412.19437) sec. 3.2 (DualPipe, 16 stages, experts over 64 ranks, ZeRO-1) and 3.3.3 "
    "(gradients accumulate in fp32); deepseek-ai/DualPipe 3da1bbe (DualPipe and DualPipe-V); otherwise "
    + MEGATRON.source,
).changed(
    {
        "log.attention": "",
        # of which the report has no word
        "data_parallel.hybrid_zero": False,
        "offload.activations": False,
        "offload.modules": (),
        "offload.optimizer": "",
        "pipeline.schedules": ("1f1b", "dualpipe", "dualpipe-v"),
        "data_parallel.keeps_stand_ins": False,
        "pipeline.interleaves": False,
        "pipeline.uneven_chunks": "",
        # sec. 3.2.3 (RMSNorm, MLA's up-projection) and 3.3.3 (SwiGLU)
        "recomputation.modules": ("norm", "moe_act", "mla_up_proj"),
        # sec. 3.3.3: inputs of the linear after attention, which attention's backward reads too
        "layers.kept_attention": "e5m6",
    }
)
