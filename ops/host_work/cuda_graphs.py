"""What a CUDA graph replays, and so costs the host next to nothing (Megatron-Core's --cuda-graph-scope)."""

from collections.abc import Iterable

from ops.op import Op, Phase
from ops.roles import Module, OpKey, Role

# Of each scope the modules it holds whole, and the operations with all that serves them.
GRAPHED: dict[str, frozenset[Module | OpKey]] = {
    "attn": frozenset({Module.ATTENTION, Module.GATED_DELTA}),
    "mamba": frozenset({Module.MAMBA2}),
    "mlp": frozenset({Module.MLP}),
    "moe_router": frozenset(
        {OpKey(Module.MLP, Role.NORM), OpKey(Module.MOE, Role.ROUTER), Module.SHARED_EXPERTS}
    ),
    "moe_preprocess": frozenset({OpKey(Module.MOE, Role.PERMUTE)}),
    "full_iteration": frozenset(Module),
}

# Assumption: a graph's replay takes as many calls as a linear module; the operation that stands for it.
REPLAY_CALLS = 3.0
REPLAYS = frozenset(
    {
        OpKey(Module.ATTENTION, Role.NORM),
        OpKey(Module.GATED_DELTA, Role.NORM),
        OpKey(Module.MAMBA2, Role.NORM),
        OpKey(Module.MLP, Role.UP),
        OpKey(Module.MOE, Role.ROUTER),
        OpKey(Module.MOE, Role.PERMUTE),
    }
)


def is_replayed(op: Op, scopes: Iterable[str]) -> bool:
    """Whether a graph of one of ``scopes`` holds the operation."""
    return any(op.is_within(GRAPHED.get(scope, frozenset())) for scope in scopes)


def replay_calls(op: Op, scopes: Iterable[str]) -> float:
    """Calls of the replay that ``op`` stands for; a graph of the whole iteration has none."""
    stands = op.key in REPLAYS and op.phase is not Phase.WEIGHT_GRAD
    return REPLAY_CALLS if stands and "full_iteration" not in scopes else 0.0
