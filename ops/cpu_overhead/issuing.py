"""The host's work for one operation, whatever kind it is."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ops.calls import BLOCK_SCALES
from ops.cpu_overhead.calls import (
    CALLS,
    EXPERT_BULK_CAST_CALLS,
    EXPERT_CALLS,
    EXPERT_CAST_CALLS,
    EXPERT_GRADIENT_CALLS,
    EXTENSION_LAUNCHES,
    FP8_CALLS_RATIO,
    FUSED_ROUTER,
    NARROW_GRADIENT_CALLS,
    OF_KERNEL,
    OF_ROLE,
    OFFLOADED_PART_CALLS,
    OFFLOADED_TENSOR_CALLS,
    PIECE_LAUNCHES,
    TRITON_CALLS,
    ModuleCalls,
)
from ops.kernels import KERNELS
from ops.op import (
    Attention,
    Axis,
    BatchedGemm,
    Comm,
    CpuOverhead,
    GroupedGemm,
    HostTransfer,
    MemoryBound,
    Op,
    Phase,
)
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, floats
from spec.job import JobSpec

# What a CUDA graph replays, and so costs the host next to nothing (Megatron-Core's --cuda-graph-scope).

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


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueCost:
    """Python calls and further launches of one operation, per row."""

    calls: FloatArray
    launches: FloatArray


def cpu_overhead(op: Op, job: JobSpec) -> IssueCost:
    """Calls and launches of ``op`` for every row; nothing where a CUDA graph replays it."""
    if job.cuda_graphs and is_replayed(op, job.cuda_graphs):
        return _work(replay_calls(op, job.cuda_graphs), 0.0)
    calls = CALLS[job.preset.host.code]
    match op:
        case CpuOverhead():
            # Host time already, priced as an operation of its own.
            work = _work(0.0, 0.0)
        case Comm():
            work = _collective(op, calls)
        case GroupedGemm():
            work = _grouped(op, calls, _held_narrow(op, job))
        case BatchedGemm():
            work = _linear(op, calls, job)
        case Attention():
            backward = 1.0 if op.phase is Phase.INPUT_GRAD else 0.0
            work = _work(calls.attention, calls.first_launch + backward)
        case MemoryBound():
            work = _kernel(op, calls)
        case HostTransfer() if op.tensors:
            back = int(op.phase is not Phase.FORWARD)
            work = _work(OFFLOADED_PART_CALLS[back] + OFFLOADED_TENSOR_CALLS * op.tensors, float(op.tensors))
        case _:
            work = _work(0.0, 1.0)
    return IssueCost(calls=work.calls * op.repeat, launches=work.launches * op.repeat)


def _work(calls: float | FloatArray, launches: float | FloatArray) -> IssueCost:
    return IssueCost(calls=floats(calls), launches=floats(launches))


def _collective(op: Comm, calls: ModuleCalls) -> IssueCost:
    """Megatron-Core's dispatcher exchanges tokens and their weights, each in an autograd function; what serves it is a
    collective like others."""
    if op.axis is Axis.EP and op.serves is None and calls.exchange:
        counts = calls.token_counts if op.synchronises else 0.0
        return _work(calls.exchange + counts, calls.collective)
    if op.role is Role.DISPATCH and op.serves is not None and calls.exchange:
        return _work(0.0, 0.0)  # the weights' calls are among the tokens'
    pieces = 0.0 if op.pieces is None else PIECE_LAUNCHES * (op.pieces.count - 1)
    return _work(calls.collective, pieces)


def _held_narrow(op: BatchedGemm | GroupedGemm, job: JobSpec) -> bool:
    """Whether the product's weight is one of Transformer Engine's narrow parameters."""
    return job.precision.narrow_parameters and op.scale_recipe != "" and job.preset.layers.transformer_engine


def _linear(op: BatchedGemm, calls: ModuleCalls, job: JobSpec) -> IssueCost:
    """One call forward and one backward, which launches both products; fp8's casts are operations of their
    own. A product in a mixer's core is a Triton kernel."""
    if op.phase is Phase.WEIGHT_GRAD:
        return _work(NARROW_GRADIENT_CALLS * _held_narrow(op, job), 1.0)
    if op.role is Role.ROUTER:
        back = int(op.phase is Phase.INPUT_GRAD)
        launches = OF_ROLE[op.role][back] - FUSED_ROUTER[back] * job.moe_router_fusion
        return _work(calls.by_role.get(op.role, 0.0), launches)
    if op.role is Role.CORE:
        return _work(min(calls.linear, TRITON_CALLS), calls.first_launch)
    fp8 = op.scale_recipe != ""
    return _work(calls.linear * (FP8_CALLS_RATIO if fp8 else 1.0), calls.first_launch)


def _grouped(op: GroupedGemm, calls: ModuleCalls, narrow: bool) -> IssueCost:
    """A call, and for each expert a product with its Python around it, in fp8 also that of its quantizer and narrow
    weight, or of the gradient of a weight held ``narrow``; the kernels that cast are operations of their own."""
    experts = op.groups.astype(np.float64)
    fp8 = op.scale_recipe != ""
    if op.one_kernel:
        return _work(calls.linear * (op.phase is not Phase.WEIGHT_GRAD), 1.0)
    if not calls.linear:
        return _work(0.0, experts)
    if op.phase is Phase.WEIGHT_GRAD:
        return _work(experts * (EXPERT_GRADIENT_CALLS + NARROW_GRADIENT_CALLS * narrow), experts)
    cast = EXPERT_BULK_CAST_CALLS if op.scale_recipe in BLOCK_SCALES else EXPERT_CAST_CALLS
    casts = cast if fp8 and op.phase is not Phase.INPUT_GRAD else 0.0
    ratio = FP8_CALLS_RATIO if fp8 else 1.0
    return _work(calls.linear * ratio + experts * (EXPERT_CALLS + casts), experts)


def _kernel(op: MemoryBound, calls: ModuleCalls) -> IssueCost:
    """A module's calls with its further kernels, or the one launch of a kernel that is none; where the host waits, the
    Python that reads what it waits for, or, before an activation, one more launch that copies to the device."""
    if KERNELS[op.kernel].in_product:
        return _work(0.0, 0.0)
    further = OF_ROLE.get(op.role) or OF_KERNEL.get(op.kernel, (0.0, 0.0))
    if op.role is Role.CAST and op.module is Module.MOE:
        return _work(0.0, EXTENSION_LAUNCHES)
    copied = op.synchronises and op.role is Role.ACTIVATION
    reads = op.synchronises and not copied
    own = calls.by_role.get(op.role, 0.0) + calls.token_counts * reads
    return _work(own, further[int(op.backward)] + copied + (0.0 if own else 1.0))
