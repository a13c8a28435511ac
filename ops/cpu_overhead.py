"""The host's work to issue an operation: Python calls and kernel launches of the framework.

A framework issues every operation from one Python thread. *Calls* are what that thread spends in Python,
counted in forwards of ``torch.nn.Linear`` (the first launch of each is part of it); *launches* are further
kernels of the same operation, each a dispatch, an autograd node and a driver call.

Python calls of a framework's modules, forward or backward, in forwards of ``torch.nn.Linear``:

Fitted: calls of "modules" are the Python of Megatron-Core 0.13.1's own modules, run eagerly on a CPU with
operands so small that kernels take next to no time (docs/formulas.md has the table, and how it was measured and
reduced). Transformer Engine's linear takes 2.7 of them (TransformerEngine issue 2053:
99.7 against 37.1 us on GB200, 90.5 against 33.2 us on GH200). A backward takes as many calls as its forward: the
runs' backwards took 1.0 to 1.1 times as long. Assumption: "torch", modules without Megatron's layers of Python
around them.

"nanotron": its LlamaDecoderLayer (67c5ebb, models/llama.py) in the same way, forward and backward on a CPU
with a process group that moves nothing and flash-attn's kernels left out (torch 2.1): 124 calls at tp 1 and
158 to 168 with the ten collectives of tp, which split products too: four each, to which NCCL_CALLS come;
dealt to its modules by what each takes of a forward in a second run, whose total swung from 74 to 154 on a
busy machine. Not run by a script of this project.

"picotron": its DecoderLayer (59714b1, picotron/model.py, with flash-attn 2.5.0's Python and kernels left out) in the
same way with torch 2.13: 40.5 calls forward and 55 backward; forward 1.0 a linear, 3.5 a norm, 6.6 both rotary
embeddings and 6 the views around them, 5.4 attention, 1.5 the activation and 7 the layer around them. 48 a pass are
dealt in these shares. A parameter's hook (data_parallel.py, param_hook) takes 0.5 in the backward beside its addition,
a linear whose collective moves nothing 0.7 more.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ops.layout import Layout
from ops.memory_bound import KERNELS
from ops.op import (
    BLOCK_SCALES,
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

# Assumption: a collective takes two calls: events, streams and NCCL's own enqueueing beside the dispatch.
NCCL_CALLS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCalls:
    """Calls of a linear, of an attention kernel, of an exchange over ep, of reading back from the device how
    many tokens each expert gets (or how far positions reach: Assumption, alike), and of what else is a
    module, by its role; no other kernel is one. ``first_launch`` is 1 where no call holds an operation's
    first launch. ``collective``: what its Python takes, and NCCL_CALLS."""

    linear: float = 0.0
    attention: float = 0.0
    exchange: float = 0.0
    token_counts: float = 0.0
    by_role: dict[Role, float] = field(default_factory=dict)
    first_launch: float = 0.0
    collective: float = NCCL_CALLS


# Triton 2 as PyTorch 2.1 and 2.2 ship it takes 62 us to launch a kernel of many parameters (triton-lang/triton pull
# request 3503), in calls of 13.48 us.
TRITON_2_CALLS = 62.0 / 13.48

# By how the framework is written: "modules" (Megatron-Core and Transformer Engine), "torch" (plain PyTorch
# modules), "nanotron" and "picotron" (norms and rotary embeddings of queries and of keys are Triton kernels). In compiled
# code a kernel is a launch and no call.
CALLS: dict[str, ModuleCalls] = {
    "modules": ModuleCalls(
        linear=3.0,
        attention=14.0,
        exchange=8.0,
        token_counts=12.0,
        by_role={
            Role.NORM: 1.5,
            Role.ROTARY: 8.0,
            Role.ACTIVATION: 2.5,
            Role.RESIDUAL: 3.0,
            Role.ROUTER: 26.0,
            Role.PERMUTE: 8.0,
            Role.UNPERMUTE: 6.0,
            Role.SORT: 4.0,
            Role.UNSORT: 4.0,
        },
    ),
    "torch": ModuleCalls(
        linear=1.0,
        attention=4.0,
        exchange=8.0,
        token_counts=4.0,
        by_role={
            Role.NORM: 1.5,
            Role.ROTARY: 4.0,
            Role.ACTIVATION: 1.5,
            Role.RESIDUAL: 1.0,
            Role.ROUTER: 10.0,
            Role.PERMUTE: 6.0,
            Role.UNPERMUTE: 6.0,
            Role.SORT: 4.0,
            Role.UNSORT: 4.0,
        },
    ),
    "nanotron": ModuleCalls(
        linear=4.1,
        attention=7.8,
        by_role={
            Role.NORM: 3.9 + TRITON_2_CALLS,
            Role.ROTARY: 18.8 + 2.0 * TRITON_2_CALLS,
            Role.ACTIVATION: 6.2,
            Role.RESIDUAL: 2.2,
        },
        collective=4.0 + NCCL_CALLS,
    ),
    "picotron": ModuleCalls(
        linear=1.2 + 0.5 / 2,
        attention=6.4,
        by_role={
            Role.NORM: 4.1 + TRITON_2_CALLS,
            Role.ROTARY: 14.9 + 2.0 * TRITON_2_CALLS,
            Role.ACTIVATION: 1.8,
            Role.RESIDUAL: 4.1,
        },
        collective=0.7 + NCCL_CALLS,
    ),
    "compiled": ModuleCalls(first_launch=1.0),
}

# Of each piece beyond the first of a collective and a product (ops.tp_overlap): product, copy, its
# signal and the wait for the other's (split_overlap_ag), from C++. Assumption: half a launch each, without
# dispatch and autograd.
PIECE_LAUNCHES = 2.0
# Assumption: launching a Triton kernel (finding its compiled form by its arguments, in Python) takes one call.
TRITON_CALLS = 1.0
# TransformerEngine issue 761: issuing forwards with fp8 linears takes 140 ms where bf16 takes 77 ms.
FP8_CALLS_RATIO = 140.0 / 77.0
# A kernel that a C++ extension launches in a loop has neither PyTorch's dispatch nor autograd: half of a launch, the
# driver's 2 to 3 of 5 us (profdb.modelled.cost_model).
EXTENSION_LAUNCHES = 0.5
# Transformer Engine 2 GroupedLinear runs one product per expert: splitting, casting and listing each.
# Assumption: half a call for it, and one more in the backward for the gradient's own tensor and hook.
EXPERT_CALLS = 0.5
EXPERT_GRADIENT_CALLS = 1.0
# Fitted: in fp8 each expert's quantizers, cached weight and low-precision rows take more (grouped_linear.py:
# set_usage and get_weight_workspace run expert by expert): 10.8 us of a call's 8.7 with Transformer Engine
# 2.13's Python on a CPU, of which allocations that its C++ makes are some. Rows with a scale for every block
# are allocated for all experts at once and are no tensors of their own for Python (cast.cpp, split_quantize:
# use_fused_bulk_alloc; internal quantizers): 4.4 us.
EXPERT_CAST_CALLS = 1.0
EXPERT_BULK_CAST_CALLS = 4.4 / 8.7
# Fitted: a weight stored in fp8 is a subclass of PyTorch's tensor whose attributes Python looks up
# (__torch_function__): its gradient's stand-in and hook, and its autograd node, take 7.5 us more of a call's
# 8.7 (Transformer Engine 2.9 and 2.13, GroupedLinear of 16 experts with Megatron-Core 0.15's hook, run as in
# docs/formulas.md: backwards of 408 to 497 us where 283 to 369 were).
LOW_PRECISION_GRADIENT_CALLS = 7.5 / 8.7
# Fitted: a part of a layer whose saved tensors go to the host, forward and backward, and each tensor of it in each
# (fine_grained_activation_offload.py of August 2026, run on a CPU with streams and events that do nothing, groups of
# 1, 2 and 5 tensors, 500 rounds in turn with the linear: 2.9 to 3.4, 3.5 to 4.3 and 5.2 to 6.8 of its calls forward,
# 1.5 to 1.9, 2.1 to 2.6 and 3.8 to 5.0 backward), of which the empty tensor and the copy take most. What CUDA's own
# events and memory take is not among them.
OFFLOADED_PART_CALLS = (2.5, 0.9)
OFFLOADED_TENSOR_CALLS = 0.7
# Fitted: what Megatron-Core hangs before every module's forward to wait for gathered parameters
# (distributed_data_parallel.py of core 0.15, _make_forward_pre_hook), on the same CPU: 2.3 us of 8.7 a
# module, 0.7 for each of its parameters and 2.4 for each stored in fp8.
HOOK_CALLS = 2.3 / 8.7
HOOKED_PARAMETER_CALLS = 0.7 / 8.7
LOW_PRECISION_HOOKED_PARAMETER_CALLS = 2.4 / 8.7


# Kernels of an operation beyond its first, (forward, backward): those that PyTorch's dispatcher counted in the
# runs of Megatron-Core's modules.

# Of operations that are several kernels whatever these are called.
OF_ROLE: dict[Role, tuple[float, float]] = {
    Role.ROUTER: (36.0, 26.0),
    Role.PERMUTE: (12.0, 4.0),
    Role.UNPERMUTE: (12.0, 4.0),
}
# Of a router, fewer where choosing experts, their scores and the loss that balances them are a kernel each,
# forward and backward (moe_router_fusion): 8 + 6 + 4 kernels are 3, and 4 + 3 are 3, as PyTorch's
# dispatcher counts them of Megatron-Core 0.15.3 (moe_utils.py: topk_routing_with_score_function,
# compute_routing_scores_for_aux_loss, switch_load_balancing_loss_func; Transformer Engine 2.9 router.py).
FUSED_ROUTER = (15.0, 4.0)
OF_KERNEL: dict[str, tuple[float, float]] = {
    "rmsnorm": (0.0, 1.0),
    "layernorm": (0.0, 1.0),
    "rmsnorm_torch": (0.0, 1.0),
    "layernorm_torch": (0.0, 1.0),
    "rmsnorm_unfused": (7.0, 13.0),
    "rotary_unfused": (9.0, 9.0),
    "swiglu_unfused": (1.0, 2.0),
    "swiglu_halves_unfused": (1.0, 2.0),
    "masked_softmax_unfused": (4.0, 4.0),
    "bias_dropout_add": (0.0, 1.0),
    "cross_entropy": (7.0, 5.0),
    "cross_entropy_unfused": (7.0, 5.0),
    # log-softmax and the loss; backward each one's gradient, of the loss's also the zeros it is written into
    "cross_entropy_16bit": (1.0, 2.0),
    "clamp_glu_unfused": (4.0, 6.0),
    "expert_bias_unfused": (1.0, 3.0),
    "expert_bias_fp32_unfused": (1.0, 4.0),
}


# What a CUDA graph replays, and so costs the host next to nothing (Megatron-Core's cuda_graph_scope).

# Of each scope the modules it holds whole, and the operations with all that serves them.
GRAPHED: dict[str, frozenset[Module | OpKey]] = {
    "attn": frozenset({Module.ATTENTION, Module.GATED_DELTA}),
    "mamba": frozenset({Module.MAMBA2}),
    "mlp": frozenset({Module.MLP}),
    "moe_router": frozenset({OpKey(Module.MLP, Role.NORM), OpKey(Module.MOE, Role.ROUTER), Module.SHARED_EXPERTS}),
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
    """Returns whether a graph of one of ``scopes`` holds the operation."""
    return any(op.is_within(GRAPHED.get(scope, frozenset())) for scope in scopes)


def replay_calls(op: Op, scopes: Iterable[str]) -> float:
    """Returns the calls of the replay that ``op`` stands for; a graph of the whole iteration has none."""
    stands = op.key in REPLAYS and op.phase is not Phase.WEIGHT_GRAD
    return REPLAY_CALLS if stands and "full_iteration" not in scopes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueCost:
    """Python calls and further launches of one operation, per row."""

    calls: FloatArray
    launches: FloatArray


def cpu_overhead(op: Op, job: JobSpec) -> IssueCost:
    """Returns the calls and launches of ``op`` for every row; nothing where a CUDA graph replays it."""
    if job.cuda_graphs and is_replayed(op, job.cuda_graphs):
        return IssueCost(calls=floats(replay_calls(op, job.cuda_graphs)), launches=floats(0.0))
    calls = CALLS[job.preset.host.code]
    # Transformer Engine's parameters in the format of their products
    low_precision_weights = job.precision.low_precision_parameters and job.preset.layers.transformer_engine
    work: Work
    # Calls are Python work of the framework's module, launches the kernels beyond its first; both cost host time, but
    # a host may be slow in one and not in the other (profdb.modelled.cost_model, cpu_s).
    match op:
        case CpuOverhead():
            # Host time already, priced as an operation of its own.
            work = (0.0, 0.0)
        case Comm():
            work = _collective(op, calls)
        case GroupedGemm():
            work = _grouped(op, calls, low_precision_weights=low_precision_weights)
        case BatchedGemm():
            work = _linear(op, calls, job, low_precision_weights=low_precision_weights)
        case Attention():
            backward = 1.0 if op.phase is Phase.INPUT_GRAD else 0.0
            work = (calls.attention, calls.first_launch + backward)
        case MemoryBound():
            work = _kernel(op, calls)
        case HostTransfer() if op.tensors:
            back = int(op.phase is not Phase.FORWARD)
            work = (OFFLOADED_PART_CALLS[back] + OFFLOADED_TENSOR_CALLS * op.tensors, float(op.tensors))
        case _:
            work = (0.0, 1.0)
    return IssueCost(calls=floats(work[0]) * op.repeat, launches=floats(work[1]) * op.repeat)


Work = tuple[float | FloatArray, float | FloatArray]
"""Calls and launches of one of an operation's repeats."""


def _collective(op: Comm, calls: ModuleCalls) -> Work:
    """Returns those of a collective. Megatron-Core's dispatcher exchanges tokens and their weights, each in an
    autograd function; what serves it is a collective like others."""
    # an exchange of tokens is a module of its own; what serves it (counts, probabilities) is priced as any collective
    if op.axis is Axis.EP and op.serves is None and calls.exchange:
        counts = calls.token_counts if op.synchronises else 0.0
        return (calls.exchange + counts, calls.collective)
    if op.role is Role.DISPATCH and op.serves is not None and calls.exchange:
        return (0.0, 0.0)  # the weights' calls are among the tokens'
    pieces = 0.0 if op.pieces is None else PIECE_LAUNCHES * (op.pieces.count - 1)
    return (calls.collective, pieces)


def _linear(op: BatchedGemm, calls: ModuleCalls, job: JobSpec, *, low_precision_weights: bool) -> Work:
    """Returns those of a product: one call forward and one backward, which launches both products; fp8's casts are
    operations of their own. A product in a mixer's core is a Triton kernel."""
    # One autograd node launches both gradients: its call is counted with the input gradient.
    if op.phase is Phase.WEIGHT_GRAD:
        return (LOW_PRECISION_GRADIENT_CALLS * (low_precision_weights and op.scale_recipe != ""), 1.0)
    if op.role is Role.ROUTER:
        back = int(op.phase is Phase.INPUT_GRAD)
        launches = OF_ROLE[op.role][back] - FUSED_ROUTER[back] * job.moe_router_fusion
        return (calls.by_role.get(op.role, 0.0), launches)
    if op.role is Role.CORE:
        return (min(calls.linear, TRITON_CALLS), calls.first_launch)
    fp8 = op.scale_recipe != ""
    return (calls.linear * (FP8_CALLS_RATIO if fp8 else 1.0), calls.first_launch)


def _grouped(op: GroupedGemm, calls: ModuleCalls, *, low_precision_weights: bool) -> Work:
    """Returns those of experts' products: a call, and for each expert a product with its Python around it, in fp8
    also that of its quantizer and low-precision weight, or of the gradient of a weight of ``low_precision_weights``; the
    kernels that cast are operations of their own."""
    experts = op.groups.astype(np.float64)
    fp8 = op.scale_recipe != ""
    if op.one_kernel:
        return (calls.linear * (op.phase is not Phase.WEIGHT_GRAD), 1.0)
    # compiled code: no Python, a launch for each expert's product
    if not calls.linear:
        return (0.0, experts)
    if op.phase is Phase.WEIGHT_GRAD:
        return (
            experts * (EXPERT_GRADIENT_CALLS + LOW_PRECISION_GRADIENT_CALLS * (low_precision_weights and fp8)),
            experts,
        )
    cast = EXPERT_BULK_CAST_CALLS if op.scale_recipe in BLOCK_SCALES else EXPERT_CAST_CALLS
    casts = cast if fp8 and op.phase is not Phase.INPUT_GRAD else 0.0
    ratio = FP8_CALLS_RATIO if fp8 else 1.0
    return (calls.linear * ratio + experts * (EXPERT_CALLS + casts), experts)


def _kernel(op: MemoryBound, calls: ModuleCalls) -> Work:
    """Returns those of a kernel: a module's calls with its further kernels, or the one launch of a kernel that is
    none; where the host waits, the Python that reads what it waits for, or, before an activation, one more launch
    that copies to the device."""
    if KERNELS[op.kernel].in_product:
        return (0.0, 0.0)
    further = OF_ROLE.get(op.role) or OF_KERNEL.get(op.kernel, (0.0, 0.0))
    if op.role is Role.CAST and op.module is Module.MOE:
        return (0.0, EXTENSION_LAUNCHES)
    # torch.tensor(linear_offset, device) before the activation (ops.experts.mlp, _activation)
    copied = op.synchronises and op.role is Role.ACTIVATION
    reads = op.synchronises and not copied
    own = calls.by_role.get(op.role, 0.0) + calls.token_counts * reads
    return (own, further[int(op.backward)] + copied + (0.0 if own else 1.0))


# What Megatron-Core runs before every module's forward where parameters are gathered beside it.
#
# ``megatron/core/distributed/distributed_data_parallel.py`` (core 0.15), enable_forward_pre_hook: one hook on
# every module, the smallest too, in every forward of every micro-batch; _make_forward_pre_hook looks up each of
# the module's own parameters and asks its bucket whether its gather is through (overlap_param_gather, of a
# sharded optimizer).


# Modules whose forwards an operation stands for (core 0.15 transformer_layer.py, attention.py, moe_layer.py
# with Transformer Engine's layers): the attention and its kernel; the layer, the block in it and the two
# identities of a cross attention, over two residual adds; the router and what holds the experts. A linear is
# one by its kind.
FORWARDS: dict[Role, float] = {Role.NORM: 1.0, Role.CORE: 2.0, Role.RESIDUAL: 2.5, Role.ROUTER: 2.0}


def gathers_before_forwards(job: JobSpec) -> bool:
    """Returns whether gathers of parameters hang on forwards of modules, where the optimizer is sharded."""
    return job.preset.layers.transformer_engine and job.preset.data_parallel.overlap_param_gather


def gather_hook_calls(op: Op, job: JobSpec, layout: Layout) -> FloatArray:
    """Returns the calls (forwards of ``torch.nn.Linear``) of the hooks before what ``op`` stands for, per row and
    repeat; nothing in backwards, where a CUDA graph replays it and where the optimizer is whole."""
    # a recomputed forward runs the modules' forwards, hooks included
    forward = op.phase in (Phase.FORWARD, Phase.RECOMPUTE)
    if not forward or (job.cuda_graphs and is_replayed(op, job.cuda_graphs)):
        return floats(0.0 * layout.zero_stage)
    modules = FORWARDS.get(op.role, 0.0)
    parameters = floats(0.0 * layout.zero_stage)
    if isinstance(op, BatchedGemm | GroupedGemm) and op.role is not Role.CORE:
        modules = modules or 1.0
        weights = op.groups if isinstance(op, GroupedGemm) else 1
        low_precision = job.precision.low_precision_parameters and op.scale_recipe != ""
        parameters = floats(
            weights * (LOW_PRECISION_HOOKED_PARAMETER_CALLS if low_precision else HOOKED_PARAMETER_CALLS)
        )
    return (modules * HOOK_CALLS + parameters) * (layout.zero_stage >= 1)


# What DeepSpeed's ZeRO runs on the host around modules and their gradients.
#
# Stage 3 hooks every module, the smallest too (0.16.4, ``runtime/zero/parameter_offload.py``,
# _register_hooks_recursively): before its forward parameters are fetched and the next ones prefetched, after it they
# are let go of, and two autograd functions do the same in the backward (``partitioned_param_coordinator.py``,
# fetch_sub_module and release_sub_module). Stages 2 and 3 hook every gradient (``stage3.py`` and
# ``stage_1_and_2.py``, reduce_ready_partitions_and_remove_grads): it is copied into a bucket and counted, and at
# stage 3 bucket by bucket cut into a slice for every rank (``runtime/comm/coalesced_collectives.py``,
# reduce_scatter_coalesced).
#
# Fitted: calls (forwards of ``torch.nn.Linear``) of 0.16.4 itself with torch 2.13 on one CPU, one rank, processor
# time beyond that of the same layer without DeepSpeed; docs/formulas.md has the runs. Assumption: other releases
# since 0.6, whose coordinator is the same, take as many.

# A layer with ten more modules that do nothing takes 23.7 calls more forward and 7.3 backward.
MODULE_CALLS, MODULE_BACKWARD_CALLS = 2.4, 0.7
# Of a layer of 13 modules, seven matrices and two norms the forward takes 69 to 74 calls more, 31 of them for its
# modules; the backward 104 to 120, 9 for its modules.
FETCHED_CALLS = (69.0 - 13 * MODULE_CALLS) / 7
GRADIENT_CALLS = (104.0 - 13 * MODULE_BACKWARD_CALLS) / 9
# At stage 2 the backward of the same layer takes 25.4 calls more and its forward 1.5.
BUCKETED_CALLS = 25.4 / 9
# reduce_scatter_coalesced of nine gradients for 8, 64 and 512 ranks, with a collective that does nothing: 0.09,
# 0.07 and 0.09 calls a gradient and rank. Gathers of several parameters at once copy slices too
# (partition_parameters.py, AllGatherCoalescedHandle); Assumption: near the limit of live parameters, which the
# prefetch soon reaches, matrices are gathered one by one.
SLICE_CALLS = 0.08
# Modules that an operation stands for: of the layer and its halves one a residual add, and the attention around
# its kernel.
MODULES = {Role.NORM: 1, Role.ACTIVATION: 1, Role.RESIDUAL: 1, Role.CORE: 1}


def sharding_hook_calls(op: Op, job: JobSpec, layout: Layout) -> FloatArray:
    """Returns the hooks' calls for what ``op`` stands for, per row and repeat; nothing below stage 2."""
    third, second = layout.zero_stage >= 3, layout.zero_stage == 2
    separate = op.role is Role.QKV and not job.preset.layers.joined_qkv
    matrices = (3 if separate else 1) * (isinstance(op, BatchedGemm) and op.role is not Role.CORE)
    norms = int(isinstance(op, MemoryBound) and op.role is Role.NORM)
    modules = matrices or MODULES.get(op.role, 0)
    # Stage 3 hands each gradient to reduce_scatter_coalesced in as many slices as there are ranks.
    gradient = np.where(third, GRADIENT_CALLS + SLICE_CALLS * layout.zero_size, second * BUCKETED_CALLS)
    match op.phase:
        case Phase.FORWARD | Phase.RECOMPUTE:
            return floats(third * (modules * MODULE_CALLS + matrices * FETCHED_CALLS))
        case Phase.INPUT_GRAD:
            return floats(third * modules * MODULE_BACKWARD_CALLS + norms * gradient)
        case Phase.WEIGHT_GRAD:
            return floats(matrices * gradient)
        case _:
            return floats(0.0 * layout.zero_stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookTerm:
    """Calls of one kind of hook for an operation, per row and repeat, of jobs to which it ``applies``."""

    applies: Callable[[JobSpec], bool]
    calls: Callable[[Op, JobSpec, Layout], FloatArray]


HOOKS = (
    HookTerm(applies=gathers_before_forwards, calls=gather_hook_calls),
    HookTerm(applies=lambda job: job.preset.host.hooks_modules, calls=sharding_hook_calls),
)
