"""What Megatron-Core runs before every module's forward where parameters are gathered beside it.

``megatron/core/distributed/distributed_data_parallel.py`` (core 0.15), enable_forward_pre_hook: one hook on
every module, the smallest too, in every forward of every micro-batch; _make_forward_pre_hook looks up each of
the module's own parameters and asks its bucket whether its gather is through (--overlap-param-gather, of a
sharded optimizer).
"""

from ops.host_work.calls import HOOK_CALLS, HOOKED_PARAMETER_CALLS, NARROW_HOOKED_PARAMETER_CALLS
from ops.host_work.cuda_graphs import is_replayed
from ops.layout import Layout
from ops.op import BatchedGemm, GroupedGemm, Op, Phase
from ops.roles import Role
from spec.arrays import FloatArray, floats
from spec.job import JobSpec

# Modules whose forwards an operation stands for (core 0.15 transformer_layer.py, attention.py, moe_layer.py
# with Transformer Engine's layers): the attention and its kernel; the layer, the block in it and the two
# identities of a cross attention, over two residual adds; the router and what holds the experts. A linear is
# one by its kind.
MODULES: dict[Role, float] = {Role.NORM: 1.0, Role.CORE: 2.0, Role.RESIDUAL: 2.5, Role.ROUTER: 2.0}


def runs_hooks(job: JobSpec) -> bool:
    """Whether gathers of parameters hang on forwards of modules, where the optimizer is sharded."""
    preset = job.preset
    return preset.host.code == "modules" and preset.data_parallel.overlap_param_gather


def hook_calls(op: Op, job: JobSpec, layout: Layout) -> FloatArray:
    """Calls (forwards of ``torch.nn.Linear``) of the hooks before what ``op`` stands for, per row and repeat;
    nothing in code that has none, in backwards, where a CUDA graph replays it and where the optimizer is
    whole."""
    forward = op.phase in (Phase.FORWARD, Phase.RECOMPUTE)
    if not runs_hooks(job) or not forward or is_replayed(op, job.cuda_graphs):
        return floats(0.0 * layout.zero_stage)
    modules = MODULES.get(op.role, 0.0)
    parameters = floats(0.0 * layout.zero_stage)
    if isinstance(op, BatchedGemm | GroupedGemm) and op.role is not Role.CORE:
        modules = modules or 1.0
        held = op.groups if isinstance(op, GroupedGemm) else 1
        narrow = job.precision.narrow_parameters and op.scale_recipe != ""
        parameters = floats(held * (NARROW_HOOKED_PARAMETER_CALLS if narrow else HOOKED_PARAMETER_CALLS))
    return (modules * HOOK_CALLS + parameters) * (layout.zero_stage >= 1)
