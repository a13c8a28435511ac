"""What the host does so that an operation runs: Python calls and kernel launches of the framework.

A framework issues every operation from one Python thread. *Calls* are what that thread spends in Python,
counted in forwards of ``torch.nn.Linear`` (the first launch of each is part of it); *launches* are further
kernels of the same operation, each a dispatch, an autograd node and a driver call.

Fitted: calls of "modules" are the Python of Megatron-Core 0.13.1's own modules, run eagerly on a CPU with
operands so small that kernels take next to no time (benchmarks/host_work.py; docs/formulas.md has the
table and how it was reduced). Transformer Engine's linear takes 2.7 of them (TransformerEngine issue 2053:
99.7 against 37.1 us on GB200, 90.5 against 33.2 us on GH200). Launches are the kernels that PyTorch's
dispatcher counted in the same runs. A backward takes as many calls as its forward: the runs' backwards took
1.0 to 1.1 times as long. Assumption: "torch", modules without Megatron's layers of Python around them.
"""

from dataclasses import dataclass

import numpy as np

from ops.op import Attention, Axis, BatchedGemm, Comm, GroupedGemm, HostWork, MemoryBound, Op, Phase
from spec.arrays import FloatArray, floats
from spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuing:
    """Python calls and further launches of one operation, per row."""

    calls: FloatArray
    launches: FloatArray


# Calls of one module, forward or backward, by how the framework is written: "modules" (Megatron-Core and
# Transformer Engine), "torch" (plain PyTorch modules). In compiled code a kernel is a launch and no call.
CALLS: dict[str, dict[str, float]] = {
    "modules": {
        "linear": 3.0,
        "norm": 1.5,
        "rotary": 8.0,
        "attention": 14.0,
        "activation": 2.5,
        "residual": 3.0,
        "router": 26.0,
        "permute": 8.0,
        "token_counts": 12.0,
        "unpermute": 6.0,
        "sort": 4.0,
        "exchange": 8.0,
    },
    "torch": {
        "linear": 1.0,
        "norm": 1.5,
        "rotary": 4.0,
        "attention": 4.0,
        "activation": 1.5,
        "residual": 1.0,
        "router": 10.0,
        "permute": 6.0,
        "token_counts": 4.0,
        "unpermute": 6.0,
        "sort": 4.0,
        "exchange": 8.0,
    },
    "compiled": {},
}

# Kernels of an operation beyond its first, (forward, backward).
LAUNCHES: dict[str, tuple[float, float]] = {
    "rmsnorm": (0.0, 1.0),
    "layernorm": (0.0, 1.0),
    "rmsnorm_unfused": (7.0, 13.0),
    "rotary_unfused": (9.0, 9.0),
    "swiglu_unfused": (1.0, 2.0),
    "masked_softmax_unfused": (4.0, 4.0),
    "bias_dropout_add": (0.0, 1.0),
    "cross_entropy": (7.0, 5.0),
    "cross_entropy_unfused": (7.0, 5.0),
    "clamp_glu_unfused": (4.0, 6.0),
    "expert_bias_unfused": (1.0, 3.0),
    "expert_bias_fp32_unfused": (1.0, 4.0),
}
ROUTER_LAUNCHES = (36.0, 26.0)
PERMUTE_LAUNCHES = (12.0, 4.0)

# Assumption: a collective takes two calls: events, streams and NCCL's own enqueueing beside the dispatch.
COLLECTIVE_CALLS = 2.0
# TransformerEngine issue 761: issuing forwards with fp8 linears takes 140 ms where bf16 takes 77 ms.
FP8_CALLS_RATIO = 140.0 / 77.0
# Transformer Engine 2 GroupedLinear runs one product per expert: splitting, casting and listing each.
# Assumption: half a call for it, and one more in the backward for the gradient's own tensor and hook.
EXPERT_CALLS = 0.5
EXPERT_GRADIENT_CALLS = 1.0
# Assumption: in fp8 each expert's quantizers and cached weight take one call more (grouped_linear.py: set_usage
# and get_weight_workspace run expert by expert).
EXPERT_CAST_CALLS = 1.0

# Modules that a CUDA graph replays (Megatron-Core's --cuda-graph-scope), by the operations in them.
GRAPHED: dict[str, tuple[str, ...]] = {
    "attn": ("attention.",),
    "mlp": ("mlp.",),
    "moe_router": ("mlp.norm", "moe.router", "shared."),
    "moe_preprocess": ("moe.permute",),
    "full_iteration": ("",),
}

# Assumption: a graph's replay takes as many calls as a linear module; the operation that stands for it.
REPLAY_CALLS = 3.0
REPLAYS = ("attention.norm", "mlp.up", "moe.router", "moe.permute")


def host_work(op: Op, job: JobSpec) -> Issuing:
    """Calls and launches of ``op`` for every row; nothing where a CUDA graph replays it."""
    if any(op.name.startswith(name) for scope in job.cuda_graphs for name in GRAPHED.get(scope, ())):
        replays = op.name in REPLAYS and op.phase is not Phase.WEIGHT_GRAD
        return _work(REPLAY_CALLS if replays and "full_iteration" not in job.cuda_graphs else 0.0, 0.0)
    table = CALLS[job.preset.host.code]
    first = 1.0 if not table else 0.0
    match op:
        case HostWork():
            # Host time already, priced as an operation of its own.
            work = _work(0.0, 0.0)
        case Comm():
            work = _collective(op, table)
        case GroupedGemm():
            work = _grouped(op, table)
        case BatchedGemm():
            work = _linear(op, table)
        case Attention():
            backward = 1.0 if op.phase is Phase.INPUT_GRAD else 0.0
            work = _work(table.get("attention", 0.0), first + backward)
        case MemoryBound():
            work = _kernel(op, table)
        case _:
            work = _work(0.0, 1.0)
    return Issuing(calls=work.calls * op.repeat, launches=work.launches * op.repeat)


def _work(calls: float | FloatArray, launches: float | FloatArray) -> Issuing:
    return Issuing(calls=floats(calls), launches=floats(launches))


def _collective(op: Comm, table: dict[str, float]) -> Issuing:
    """Megatron-Core's dispatcher exchanges tokens and their weights, each in an autograd function."""
    if op.axis is Axis.EP and table:
        return _work(table["exchange"], COLLECTIVE_CALLS)
    return _work(COLLECTIVE_CALLS, 0.0)


def _linear(op: BatchedGemm, table: dict[str, float]) -> Issuing:
    """One call forward and one backward, which launches both products; fp8's casts are operations of their
    own."""
    fp8 = op.scale_recipe != ""
    if op.phase is Phase.WEIGHT_GRAD:
        return _work(0.0, 1.0)
    calls = table.get("linear", 0.0) * (FP8_CALLS_RATIO if fp8 else 1.0)
    launches = 0.0 if table else 1.0
    if op.name != "moe.router":
        return _work(calls, launches)
    forward = op.phase is not Phase.INPUT_GRAD
    return _work(table.get("router", 0.0), ROUTER_LAUNCHES[0 if forward else 1])


def _grouped(op: GroupedGemm, table: dict[str, float]) -> Issuing:
    """A call, and for each expert a product with its Python around it, in fp8 also a cast: only delayed scaling
    casts all at once (csrc/extensions/cast.cpp, multi_tensor_quantize_impl)."""
    experts = op.groups.astype(np.float64)
    fp8 = op.scale_recipe != ""
    if not table:
        return _work(0.0, experts)
    if op.phase is Phase.WEIGHT_GRAD:
        return _work(experts * EXPERT_GRADIENT_CALLS, experts)
    casts = EXPERT_CAST_CALLS if fp8 and op.phase is not Phase.INPUT_GRAD else 0.0
    ratio = FP8_CALLS_RATIO if fp8 else 1.0
    return _work(table["linear"] * ratio + experts * (EXPERT_CALLS + casts), experts * (2.0 if fp8 else 1.0))


def _kernel(op: MemoryBound, table: dict[str, float]) -> Issuing:
    backward = 1 if op.backward else 0
    if op.kernel.startswith("accumulate"):
        # Into fp32 the product itself accumulates; in 16 bits a kernel of its own does.
        return _work(0.0, 0.0 if op.kernel.endswith("fp32") else 1.0)
    launches = LAUNCHES.get(op.kernel, (0.0, 0.0))[backward]
    if op.name in ("moe.permute", "moe.unpermute"):
        launches = PERMUTE_LAUNCHES[backward]
    calls = table.get(_module(op), 0.0) + (table.get("token_counts", 0.0) if op.synchronises else 0.0)
    return _work(calls, launches + (0.0 if calls else 1.0))


def _module(op: MemoryBound) -> str:
    """Which module of CALLS a memory-bound operation stands for; "" for a kernel without one."""
    last = op.name.rsplit(".", 1)[-1]
    words = {
        "residual": "residual",
        "activation": "activation",
        "rotary": "rotary",
        "permute": "permute",
        "unpermute": "unpermute",
        "sort": "sort",
        "unsort": "sort",
    }
    return "norm" if last.endswith("norm") else words.get(last, "")
