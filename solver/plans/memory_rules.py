"""What a plan gives up for memory: what may run again in the backward, and what may wait on the host."""

import numpy as np

from ops.data_parallel.offload import LAYER_INPUT
from ops.recompute import Recompute
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


OF_EXPERTS = frozenset({"expert_fc1", "moe_act", "fused_group_mlp"})
# Where a graph ends inside what they save (transformer_layer.py, _set_offload_modules).
AT_A_GRAPHS_END = {"attn_norm": {"attn"}, "mlp_norm": {"attn", "moe_router"}}


def parts_on_host(draft: Draft) -> BoolArray:
    """Megatron-Core, transformer_config.py, where fine_grained_activation_offloading: beside no layer on the host or
    run again whole, the projection with the core alone, all of fused experts or parts of them, none inside experts
    that run again, no norm where a graph ends and none beside graphs of experts. Layers' inputs leave where layers run
    again whole, and nothing else does then."""
    named, scopes = set(draft.offload_modules), draft.job.cuda_graphs
    if not named:
        return _all(draft, True)
    kept_whole = "attn_proj" in named and "core_attn" not in named
    twice = "fused_group_mlp" in named and len(named & OF_EXPERTS) > 1
    again = "moe" in draft.recompute_modules and bool(named & OF_EXPERTS)
    cut = "moe" in scopes or any(one in named and ends & scopes for one, ends in AT_A_GRAPHS_END.items())
    whole = draft.recompute in (Recompute.FULL, Recompute.BLOCK)
    odd = whole != (named == {LAYER_INPUT}) or (LAYER_INPUT in named and not whole)
    runs = named <= set(draft.job.preset.offload.modules) and not (kept_whole or twice or again or cut or odd)
    return bools((draft["offloaded_layers"] == 0) & runs)


def recomputes(draft: Draft) -> BoolArray:
    """The framework has the kind of recomputation."""
    preset = draft.job.preset
    runs = {
        Recompute.SELECTIVE: bool(preset.recomputation.selective),
        Recompute.FULL: preset.recomputation.layers,
        Recompute.BLOCK: preset.recomputation.layers and preset.recomputation.partial,
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
