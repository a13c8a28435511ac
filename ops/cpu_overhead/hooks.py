"""What frameworks hang on modules and gradients: hooks that the host runs around every one of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ops.cpu_overhead.calls import HOOK_CALLS, HOOKED_PARAMETER_CALLS, NARROW_HOOKED_PARAMETER_CALLS
from ops.cpu_overhead.issuing import is_replayed
from ops.layout import Layout
from ops.op import BatchedGemm, GroupedGemm, MemoryBound, Op, Phase
from ops.roles import Role
from spec.arrays import FloatArray, floats
from spec.job import JobSpec

# What Megatron-Core runs before every module's forward where parameters are gathered beside it.
#
# ``megatron/core/distributed/distributed_data_parallel.py`` (core 0.15), enable_forward_pre_hook: one hook on
# every module, the smallest too, in every forward of every micro-batch; _make_forward_pre_hook looks up each of
# the module's own parameters and asks its bucket whether its gather is through (--overlap-param-gather, of a
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
    """Calls (forwards of ``torch.nn.Linear``) of the hooks before what ``op`` stands for, per row and repeat;
    nothing in backwards, where a CUDA graph replays it and where the optimizer is whole."""
    forward = op.phase in (Phase.FORWARD, Phase.RECOMPUTE)
    if not forward or (job.cuda_graphs and is_replayed(op, job.cuda_graphs)):
        return floats(0.0 * layout.zero_stage)
    modules = FORWARDS.get(op.role, 0.0)
    parameters = floats(0.0 * layout.zero_stage)
    if isinstance(op, BatchedGemm | GroupedGemm) and op.role is not Role.CORE:
        modules = modules or 1.0
        held = op.groups if isinstance(op, GroupedGemm) else 1
        narrow = job.precision.narrow_parameters and op.scale_recipe != ""
        parameters = floats(held * (NARROW_HOOKED_PARAMETER_CALLS if narrow else HOOKED_PARAMETER_CALLS))
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
    """Calls beside what ``op`` stands for, per row and repeat; nothing below stage 2."""
    third, second = layout.zero_stage >= 3, layout.zero_stage == 2
    apart = op.role is Role.QKV and not job.preset.layers.joined_qkv
    matrices = (3 if apart else 1) * (isinstance(op, BatchedGemm) and op.role is not Role.CORE)
    norms = int(isinstance(op, MemoryBound) and op.role is Role.NORM)
    modules = matrices or MODULES.get(op.role, 0)
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
