"""Benchmark: kernels of Transformer Engine, which Megatron-LM runs: norms, attention and linear modules.

Norms are the functions that its modules call (transformer_engine/pytorch/module/layernorm_linear.py), attention is
DotProductAttention with the backend that it selects. Modules run forward and backward together: their backward frees
what the forward saved (quantized_tensor.py, restore_from_func_ctx; module/linear.py, clear_tensor_data), so it cannot
run twice. Names and signatures are those of releases 2.1 to 2.20.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType

import torch

from profdb.cases import AttentionCase, ModuleCase
from profiler.benchmarks.kernel_functions import KernelFunction, Operands, with_channel_weight, with_weight_and_bias
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError, call_or_refuse
from profiler.benchmarks.optional_packages import optional_package
from profiler.benchmarks.torch_dtypes import random_operand, rotating_calls, torch_dtype
from profiler.device import Device
from spec.dtypes import dtype_bytes

PACKAGE, KERNELS = "transformer_engine.pytorch", "transformer_engine_torch"

MODULES = {"linear": "Linear", "layernorm_linear": "LayerNormLinear", "grouped_linear": "GroupedLinear"}
RECIPES = {"tensor": "Float8CurrentScaling", "block": "Float8BlockScaling", "mx": "MXFP8BlockScaling"}
"""Classes of transformer_engine.common.recipe by the names of scale recipes here."""

EPSILON = 1e-5


def package_on(device: Device) -> ModuleType | None:
    """Returns the package; None on a processor or where it is not installed."""
    return optional_package(PACKAGE) if device.kind == "cuda" else None


def release() -> str:
    """Returns ``Transformer Engine`` and its version."""
    return f"Transformer Engine {getattr(optional_package('transformer_engine'), '__version__', '')}".strip()


def norm_function(kernel: str, device: Device) -> KernelFunction | None:
    """Returns ``rmsnorm`` or ``layernorm`` by Transformer Engine's kernels; None for other kernels, and where it is
    not installed. What the forward keeps for the backward is among the operands."""
    package = package_on(device) if kernel in ("rmsnorm", "layernorm") else None
    # The kernels need libraries that the package loads.
    kernels = optional_package(KERNELS) if package is not None else None
    if package is None or kernels is None:
        return None
    weights = with_channel_weight if kernel == "rmsnorm" else with_weight_and_bias
    run, run_backward = getattr(kernels, f"{kernel}_fwd"), getattr(kernels, f"{kernel}_bwd")
    formats = package.constants.TE_DType

    def results(inputs: Operands) -> list[torch.Tensor]:
        # No output and no quantizer given, all multiprocessors, weights around one: as in Megatron-LM.
        outputs: list[torch.Tensor] = run(*inputs, EPSILON, None, None, formats[inputs[0].dtype], 0, False)
        return outputs

    def backward(operands: Operands, gradient: torch.Tensor) -> object:
        x, weight, *saved = operands
        statistics = saved[-1:] if kernel == "rmsnorm" else saved[-2:]
        return run_backward(gradient, x, *statistics, weight, 0, False)

    given = 2 if kernel == "rmsnorm" else 3
    return KernelFunction(
        # Results are the output, the mean of each row (LayerNorm's alone) and its reciprocal deviation.
        operands=lambda case, where: (*(inputs := weights(case, where)), *results(inputs)[1:]),
        forward=lambda *operands: results(operands[:given])[0],
        backward=backward,
        one_kernel=True,
    )


Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attention_forward(case: AttentionCase, package: ModuleType, offsets: Operands) -> Forward:
    """Returns DotProductAttention of (batch, tokens, heads, dim), or of sequences end to end, which start at
    ``offsets`` of queries and keys."""
    packed = case.mask == "varlen"
    names = {"causal": "causal", "window": "causal", "full": "no_mask", "varlen": "padding_causal"}
    attend: Forward = package.DotProductAttention(
        case.heads,
        case.qk_dim if case.qk_dim == case.v_dim else (case.qk_dim, case.v_dim),
        num_gqa_groups=case.kv_heads,
        qkv_format="thd" if packed else "bshd",
        attn_mask_type=names[case.mask],
        # A window of w keys is the token itself and those before it.
        window_size=(case.window - 1, 0) if case.mask == "window" else None,
    )
    if not packed:
        return attend
    lengths = {"max_seqlen_q": case.q_len, "max_seqlen_kv": case.kv_len}
    starts = dict(zip(("cu_seqlens_q", "cu_seqlens_kv"), offsets, strict=True))
    return lambda query, key, value: attend(query, key, value, **starts, **lengths)  # type: ignore[call-arg]


def restores_saved(output: torch.Tensor) -> Callable[[], None]:
    """Returns a function that gives the nodes of a graph back what Transformer Engine takes from them in a backward,
    so that this can run again (quantized_tensor.py, restore_from_func_ctx)."""
    saved: list[tuple[object, object]] = []
    nodes: list[torch.autograd.graph.Node | None] = [output.grad_fn]
    seen: set[object] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        if hasattr(node, "tensor_objects"):
            saved.append((node, node.tensor_objects))

    def restore() -> None:
        for node, objects in saved:
            node.tensor_objects = objects  # type: ignore[attr-defined]

    return restore


def launch_module(case: ModuleCase, device: Device) -> Launched:
    """Returns the forward and backward of a linear module on its own weights; raises UnsupportedCaseError without the
    package, and for what it does not accept."""
    if case.module not in MODULES or case.scale_recipe not in ("", *RECIPES):
        raise UnsupportedCaseError(f"modules are {', '.join(MODULES)}, scaled by none or one of {', '.join(RECIPES)}")
    package = package_on(device)
    if package is None:
        raise UnsupportedCaseError("Transformer Engine is not installed, or there is no GPU")
    if case.rows % case.groups:
        raise UnsupportedCaseError(f"{case.rows} rows over {case.groups} experts")
    weights = case.groups * case.in_features * case.out_features
    moved = dtype_bytes(case.dtype) * (weights + case.rows * (case.in_features + case.out_features))
    calls = rotating_calls(lambda: module_call(case, package, device.torch_device), moved, device, most=4)
    call_or_refuse(calls[0])
    return Launched(case=case, calls=calls, implementation=f"{release()} {MODULES[case.module]}")


def module_call(case: ModuleCase, package: ModuleType, where: torch.device) -> Call:
    """Returns one forward and backward of a module, as Megatron-LM makes it: no bias, and weight gradients added to
    sums in fp32 (gradient_accumulation_fusion)."""
    counts = (case.groups,) if case.module == "grouped_linear" else ()
    norm = {"normalization": "RMSNorm"} if case.module == "layernorm_linear" else {}
    module = getattr(package, MODULES[case.module])(
        *counts,
        case.in_features,
        case.out_features,
        bias=False,
        params_dtype=torch_dtype(case.dtype),
        fuse_wgrad_accumulation=True,
        device=where,
        **norm,
    )
    for weight in module.parameters():
        weight.main_grad = torch.zeros(weight.shape, dtype=torch.float32, device=where)
    rows = ([case.rows // case.groups] * case.groups,) if counts else ()
    tokens = random_operand((case.rows, case.in_features), case.dtype, where).requires_grad_(True)
    gradient = random_operand((case.rows, case.out_features), case.dtype, where)
    inputs = (tokens, *module.parameters())

    def run() -> None:
        with low_precision(case, package):
            output = module(tokens, *rows)
        # A weight whose gradient is in its sum has none of its own.
        torch.autograd.grad(output, inputs, gradient, allow_unused=True)

    return run


def low_precision(case: ModuleCase, package: ModuleType) -> AbstractContextManager[None]:
    """Returns the context of fp8 products by the case's recipe; none in 16 bits."""
    if not case.scale_recipe:
        return nullcontext()
    recipes = optional_package("transformer_engine.common.recipe")
    recipe = getattr(recipes, RECIPES[case.scale_recipe], None)
    if recipe is None:
        raise UnsupportedCaseError(f"this release has no {RECIPES[case.scale_recipe]}")
    context: AbstractContextManager[None] = package.fp8_autocast(enabled=True, fp8_recipe=recipe())
    return context
