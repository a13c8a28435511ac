"""PyTorch FSDP2 with torch.compile, as torchtitan trains."""

from spec.presets.variants.variant import Variant

FSDP_COMPILED = Variant(
    name="fsdp-compiled",
    of="fsdp",
    source='torchtitan train.py: model and loss compiled; before 2025 the loss was not (v0.0.2: "compiling loss function causes '
    'CUDA errors"), say loss.fused = false',
    choices={
        "loss.fused": True,
        "host.code": "compiled",
    },
)
