"""What runs over gradients and parameters around the optimizer's own pass, once a step.

Mixed precision keeps an fp32 master copy, so gradients are brought to it and the new parameters back
(Micikevicius et al. 2017, arXiv 1710.03740 sec. 3.1). In the order of Megatron-LM
(``Float16OptimizerWithFloat16Params.step`` in megatron/optimizer/optimizer.py,
``zero_grad_buffer`` and ``allreduce_gradients`` in megatron/model/distributed.py, v2.3 to v3.0; Megatron-Core
kept the passes): the gradient buffer is zeroed and, among several ranks, divided by their number; the owned part is
copied to fp32, with fp16 unscaled and checked for infinities, its norm taken, clipped, and after the update
copied back. DeepSpeed (``step`` of runtime/zero/stage_1_and_2.py: ``unscale_and_clip_grads``) and InternEvo
(``HybridZeroOptimizer.step``) make the same passes over their shards;
InternEvo averages inside its all-reduce and copies gradients into a flat bucket before it and back after
(0.5.2, internlm/solver/optimizer/store.py, ``TensorBucket.flatten`` and ``unflatten_and_copy``; utils.py,
``reduce_tensor``), which releases 0.1 and 0.2 divide there first (``tensor_to_reduce.div_(world_size)``).
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.groups import ranks_and_stride
from ops.memory_bound import memory_pass
from ops.op import MemoryBound, Ops, Phase
from ops.quantize import finds_scale_first
from ops.roles import Identity, Module, Role
from spec.arrays import IntArray
from spec.dtypes import dtype_bytes
from spec.job import Precision


def narrows_gradients(precision: Precision) -> bool:
    """Whether gradients that add up in a wider format than the parameters' are brought to it for an update without a
    master copy: torch takes no gradient of another format than its parameter's (Picotron
    picotron/data_parallel/data_parallel.py, _post_backward: p.grad = p.main_grad.to(p.dtype))."""
    return not precision.master and dtype_bytes(precision.gradient) > dtype_bytes(precision.parameter)


def optimizer_passes(context: LayerContext, on_rank: IntArray, owned: IntArray) -> tuple[Ops, Ops]:
    """Kernels before and after the update, for ``on_rank`` gradient elements that a rank keeps (a shard at stages 2
    and 3) and the ``owned`` ones whose state it keeps.

    ``Assumption:`` the norm is above the limit, as in the first steps of a training, so that every gradient is
    scaled down.
    """
    precision, preset, layout = context.job.precision, context.job.preset, context.layout
    narrow_gradient = bool(precision.master) and dtype_bytes(precision.gradient) < dtype_bytes(
        precision.master
    )
    narrow_parameter = bool(precision.master) and precision.parameter != precision.master
    wide = precision.master or precision.gradient
    copies, _ = ranks_and_stride(context.traits.copies.dense, layout)
    whole = np.where(layout.zero_stage < 2, on_rank, 0)
    divided = np.where(copies > 1, whole, 0)
    before: list[tuple[str, str, IntArray, str]] = [("divide_gradients", "copy", divided, precision.gradient)]
    if context.widens_gradients:
        # DeepSpeed, runtime/zero/stage_1_and_2.py, allreduce_bucket
        before = [
            ("widen_gradients", "cast", divided, precision.gradient),
            ("divide_gradients", "copy", divided, context.reduce_dtype),
            ("narrow_gradients", "cast", divided, precision.gradient),
        ]
    if preset.host.checks_numbers:
        # megatron/core/distributed/param_and_grad_buffer.py, check_grads; Megatron-FSDP takes check_for_nan_in_grad and
        # never reads it (core 0.15, distributed/fsdp/src/megatron_fsdp)
        before.insert(0, ("check_gradients", "norm_reduce", whole, precision.gradient))
    if preset.data_parallel.flattened_buckets:
        divides = preset.data_parallel.divides_buckets
        ways = ("flatten", "divide", "unflatten") if divides else ("flatten", "unflatten")
        before = [(f"{way}_gradients", "copy", divided, precision.gradient) for way in ways]
    if preset.data_parallel.contiguous_gradients:
        # of Megatron-FSDP's shard: param_and_grad_buffer.py, zero_grad (main_grad_buffer.data)
        before.append(("zero_gradients", "fill", on_rank, precision.gradient))
    if narrow_gradient:
        before.append(("master_gradients", "cast", owned, precision.gradient))
    if precision.compute == "fp16":
        before.append(("unscale_gradients", "copy", owned, wide))
    if preset.data_parallel.clips_gradients:
        before.append(("gradient_norm", "norm_reduce", owned, wide))
        before.append(("clip_gradients", "copy", owned, wide))
    if narrows_gradients(precision):
        before.append(("parameter_gradients", "cast", owned, precision.parameter))
    after = [("model_parameters", "cast", owned, precision.parameter)] if narrow_parameter else []
    if precision.narrow_parameters and precision.gathers_narrow and finds_scale_first(precision):
        # TransformerEngine tensor/utils.py, _cast_master_weights_to_fp8_current_scaling: maxima of the
        # master's shards first
        after.insert(0, ("parameter_maxima", "norm_reduce", owned, wide))
    gradients = tuple(_pass(Role.GRADIENT_PASS, *one) for one in before)
    return gradients, tuple(_pass(Role.PARAMETER_PASS, *one) for one in after)


# torch/optim/adamw.py, _multi_tensor_adamw of PyTorch 2.1: the operations mul_, lerp_, mul_, addcmul_, sqrt,
# div_, add_ and addcdiv_ read 12 tensors and write 8 (_single_tensor_adamw of 1.13 one more each); a fused
# update reads parameters, gradients and both moments and writes all but gradients.
FURTHER_READS, FURTHER_WRITES = 12 - 4, 8 - 3


def update_passes(context: LayerContext, elements: IntArray) -> Ops:
    """What an update in elementwise operations, one after another, moves of ``elements`` beyond one in one
    kernel; nothing where it is fused."""
    if not context.job.preset.data_parallel.update_copies:
        return ()
    dtype = context.job.precision.moments
    copied = _pass(Role.PARAMETER_PASS, "update_copies", "copy", elements, dtype)
    read = _pass(Role.PARAMETER_PASS, "update_reads", "norm_reduce", elements, dtype)
    return replace(copied, repeat=FURTHER_WRITES), replace(read, repeat=FURTHER_READS - FURTHER_WRITES)


def _pass(role: Role, name: str, kernel: str, elements: IntArray, dtype: str) -> MemoryBound:
    """One kernel of ops.kernels over ``elements``, once a step."""
    what = Identity(module=Module.STEP, role=role, name=f"{Module.STEP}.{name}")
    return memory_pass(what, Phase.STEP, kernel, elements, dtype)
