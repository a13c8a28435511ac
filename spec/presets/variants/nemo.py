"""NeMo 24."""

from spec.presets.variants.variant import Variant

NEMO = Variant(
    name="nemo",
    of="megatron",
    source="NeMo-Framework-Launcher, launcher_scripts/conf/training/gpt3/20b.yaml: ub_tp_comm_overlap True (tensor-parallel "
    "communication inside the GEMMs); NeMo v2.2.0, nemo/utils/flops_formulas.py: 12 seq_len / hidden",
    choices={
        "log.attention": "whole",
        "tensor_parallel.overlap": True,
        "pipeline.uneven_chunks": "ends",
        "host.checks_numbers": False,
        # before Megatron-Core had it
        "layers.shares_kept_inputs": False,
    },
)
