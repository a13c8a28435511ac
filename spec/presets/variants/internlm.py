"""InternLM 7B in InternEvo of 2023. Its norms work on an fp32 copy of the residual
(internlm/model/modeling_internlm.py): say ``wide_norms`` = true.
"""

from spec.presets.variants.variant import Variant

INTERNLM = Variant(
    name="internlm",
    of="internevo",
    source="InternEvo of 2023: internlm/model/linear.py (FeedForward: gate and up apart), train.py "
    "(torch.optim.AdamW, which in PyTorch 1.13.1, its requirements/torch.txt, is _single_tensor_adamw), "
    "internlm/solver/optimizer/utils.py of 0.1 and 0.2 (reduce_tensor: div_, then a sum); internlm/model/loss.py "
    "(flash-attn's CrossEntropyLoss, in place) of bf16 logits, as internlm/core/naive_amp.py brings fp16 alone to fp32; no experts before 0.3",
    choices={
        "tensor_parallel.strategies": ("mtp", "msp", "fsp"),
        "tensor_parallel.spreads_experts": False,
        "pipeline.schedules": ("1f1b",),
        "data_parallel.update_copies": True,
        "data_parallel.divides_buckets": True,
        "loss.fused": True,
    },
)
