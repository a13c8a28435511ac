"""What a plan gives up for memory: what may run again in the backward, and what may wait on the host."""

import numpy as np

from ops.recompute.layers import Recompute
from solver.plans.draft import Draft
from spec.arrays import BoolArray, bools


def _all(draft: Draft, value: bool) -> BoolArray:
    return np.full(len(next(iter(draft.columns.values()))), value, dtype=np.bool_)


def optimizer_on_host(draft: Draft) -> BoolArray:
    """DeepSpeed: sharded, a part of it at stage 3 only (zero/offload_config.py, ratio); Megatron-LM: with its
    distributed optimizer (arguments.py, --use-precision-aware-optimizer)."""
    share, kind = draft.columns["optimizer_offload"], draft.job.preset.offload.optimizer
    parted = (draft["zero_stage"] >= 3) | (share == 1.0) | (kind == "step")
    return bools((draft["zero_stage"] >= 1) & (kind != "") & parted | (share == 0.0))


def activations_on_host(draft: Draft) -> BoolArray:
    """Megatron-Core, transformer_config.py, where cpu_offloading: no pipeline, no recomputation, one layer stays."""
    layers = draft["offloaded_layers"]
    runs = draft.recompute is Recompute.NONE and not draft.recompute_modules
    runs = runs and draft.job.preset.offload.activations
    return bools((draft["pp"] == 1) & runs & (layers < draft.model.num_layers) | (layers == 0))


def recomputes(draft: Draft) -> BoolArray:
    """The framework has the kind of recomputation."""
    preset = draft.job.preset
    runs = {
        Recompute.SELECTIVE: bool(preset.recomputation.selective),
        Recompute.BLOCK: preset.recomputation.partial,
    }
    return _all(draft, runs.get(draft.recompute, True))


def modules_again(draft: Draft) -> BoolArray:
    """Parts by name run again beside no whole layer (Megatron-Core, transformer_config.py: granularity
    "selective" or "full"), norms and activations not where scales come from earlier steps ("Delayed scaling
    does not support moe_act and layernorm recompute"), shared experts not where the exchange runs beside them
    (moe_shared_expert_overlap)."""
    named = set(draft.recompute_modules)
    whole = draft.recompute in (Recompute.FULL, Recompute.BLOCK)
    refused = {"moe_act", "layernorm"} if draft.job.precision.scaling == "delayed" else set()
    if draft.job.overlap_shared_experts:
        refused.add("shared_experts")
    allowed = set(draft.job.preset.recomputation.modules) - refused
    return _all(draft, not named or (named <= allowed and not whole))
