"""DeepSpeed with its first ZeRO stage 3, of 2021."""

from spec.presets.variants.variant import Variant

DEEPSPEED_2021 = Variant(
    name="deepspeed-2021",
    of="deepspeed",
    source="ops.data_parallel.sliced_collectives has the code that was read; Ulysses is of 2023 (arXiv 2309.14509); runtime/zero/stage2.py, "
    "average_tensor: every slice is reduced to its owner",
    choices={
        "tensor_parallel.strategies": ("mtp",),
        "data_parallel.fp32_gradients": False,
        "data_parallel.gradient_sync": "reduce_scatter",
        "data_parallel.overlap_grad_reduce": True,
        "data_parallel.sliced_collectives": True,
        "data_parallel.live_elements": 0,
        "host.hooks_modules": False,
    },
)
