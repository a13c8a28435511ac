"""Physics a row needs and the solver does not price yet: named, so that rows can be counted by it."""

from enum import StrEnum


class Gap(StrEnum):
    """One missing piece, in the words of the printed table."""

    MODULE_RECOMPUTE = "recompute of modules without a model of their own"
    LAYER_RECOMPUTE = "recompute of an unstated share of the layers"
    UNEVEN_BATCH = "a smaller last micro-batch (interpolated)"
    FP8_COMM = "fp8 parameter gathers"
    UNKNOWN_FRAMEWORK = "a framework without a preset (priced as Megatron-Core)"
    SINKS = "attention sinks"
    LATENT_SHAPES = "MLA dimensions not in the notes (published ones used)"
    PARTIAL_WINDOW = "order of windowed and full layers"
