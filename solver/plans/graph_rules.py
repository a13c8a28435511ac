"""What a plan may not have beside CUDA graphs of parts of layers.

Source: Megatron-LM (d98e8a6) ``core/transformer/transformer_config.py``, __post_init__, where
cuda_graph_impl: "CUDA graphs not supported with CPU offloading", "full recompute is only supported with full
iteration CUDA graph", "moe recompute is not supported with moe_router CUDA graph".
"""

from ops.recompute import Recompute
from solver.plans.draft import Draft
from spec.arrays import BoolArray, bools

WHOLE_LAYERS = (Recompute.FULL, Recompute.BLOCK)


def beside_graphs(draft: Draft) -> BoolArray:
    """No layer on the host, none run again whole, and no part run again around what a graph holds."""
    scopes = draft.job.cuda_graphs
    parts = bool(scopes) and "full_iteration" not in scopes
    whole = draft.recompute in WHOLE_LAYERS
    around = "moe" in draft.recompute_modules and "moe_router" in scopes
    return bools(((draft["offloaded_layers"] == 0) & (not whole) & (not around)) | (not parts))
