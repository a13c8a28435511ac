"""Physics a row needs and the solver does not price yet: named, so that rows can be counted by it."""

from enum import StrEnum

from benchmarks.accuracy_rows.row import Row


class Gap(StrEnum):
    """One missing piece, in the words of the printed table."""

    MODULE_RECOMPUTE = "recompute of modules without a model of their own"
    LAYER_RECOMPUTE = "recompute of an unstated share of the layers"
    UNEVEN_BATCH = "a smaller last micro-batch (interpolated)"
    FP8_COMM = "fp8 parameter gathers"
    UNKNOWN_FRAMEWORK = "a framework without a preset (priced as the nearest, mostly Megatron-Core)"
    LATENT_SHAPES = "MLA dimensions not in the notes (published ones used)"
    PARTIAL_WINDOW = "order of windowed and full layers"


# Frameworks whose code says in which format parameters of fp8 runs are held and gathered. Narrow, as their
# presets say: Megatron-Bridge; NeMo 2, and NeMo 1 in dgxc-benchmarking (fp8_params: configure.sh of llama3.1,
# grok1 and nemotron, v25.01 to v25.04; NeMo v2.0.0 core/optim/distributed_adam.py, param_sync_dtype
# torch.uint8); NVIDIA's MLPerf (config_common.sh of training_results_v5.0 and v5.1, FP8_PARAM_GATHER=True);
# MaxText. By the row's word: torchtitan. In 16 bits: NeMo 24.07 (the launcher's examples/training/gpt and
# llama set no fp8_params; megatron_base_model.py, param_sync_dtype); Composer (v0.14.0
# trainer/mosaic_fsdp.py: bfloat16 for amp_fp8).
STATED_GATHERS = ("Megatron-Bridge", "NeMo ", "NeMo/", "MLPerf", "MaxText", "torchtitan", "llm-foundry")


def gathers_stated(row: Row) -> bool:
    """Whether code says how an fp8 row's parameters travel."""
    return row.text("framework").startswith(STATED_GATHERS)
