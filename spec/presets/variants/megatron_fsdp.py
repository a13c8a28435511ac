"""Megatron-FSDP: ZeRO-3 with Megatron-LM's tensor, pipeline and expert parallelism."""

from spec.presets.variants.variant import Variant

MEGATRON_FSDP = Variant(
    name="megatron-fsdp",
    of="megatron",
    source="Megatron-LM docs/user-guide/features/megatron_fsdp.md (2026): --use-megatron-fsdp --data-parallel-sharding-strategy no_shard, "
    "optim, optim_grads or optim_grads_params, units of a TransformerLayer; bucketing without copies before and after "
    "collectives; Megatron-Bridge docs/training/megatron-fsdp.md: with tp, pp, cp and ep",
    choices={
        "data_parallel.zero_stages": (0, 1, 2, 3),
        "data_parallel.bucket_elements": 0,
        "data_parallel.bucket_elements_per_rank": 0,
        "data_parallel.accumulation": "",
        "data_parallel.keeps_stand_ins": False,
    },
)
