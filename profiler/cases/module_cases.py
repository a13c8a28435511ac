"""Kernels of Transformer Engine to measure, and linear modules compared with their products and norms alone."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from profdb.cases import AttentionCase, Case, Family, ModuleCase
from profdb.cost_model import CostModel, ProfileCostModel
from profdb.queries import GroupedLinearQuery, LinearQuery, MemoryBoundQuery, TimeEstimate
from profdb.sample import ProfileDatabase
from profiler.cases.attention_cases import CORE_HEADS, calls
from profiler.cases.model_widths import EXPERT_MODELS, MODELS, linear_widths
from profiler.cases.tiers import PlannedCase, in_tier
from spec.arrays import ints
from spec.errors import MissingCurveError
from spec.origin import Origin

MODULE_OF = {"qkv": "layernorm_linear", "attention_out": "linear", "mlp_in": "layernorm_linear", "mlp_out": "linear"}
"""Modules of a dense layer (Megatron-LM, core/models/gpt/gpt_layer_specs.py)."""

DENSE_ON = (("Llama-3.1-8B", 1), ("Llama-2-70B", 8))
"""Dense models, and the ranks that share a layer."""


def gpu_module_cases(recipes: Sequence[str]) -> list[PlannedCase]:
    """Returns the linear modules of Llama-3.1-8B whole and Llama-2-70B on 8 ranks, the experts of Mixtral and of 8 of
    DeepSeek-V3's 256, in 16 bits and by each fp8 recipe, and attention on core shapes."""
    dense = [(model, tp) for model in MODELS for name, tp in DENSE_ON if model.name == name]
    modules = [
        ModuleCase(module=MODULE_OF[name], rows=rows, in_features=inputs, out_features=outputs, scale_recipe=recipe)
        for model, tp in dense
        for name, (inputs, outputs) in linear_widths(model, tp).items()
        if name in MODULE_OF
        for rows in (4096, 16384)
        for recipe in ("", *recipes)
    ]
    for model in EXPERT_MODELS:
        for inputs, outputs in ((model.hidden, 2 * model.ffn), (model.ffn, model.hidden)):
            modules += [
                ModuleCase(
                    module="grouped_linear",
                    rows=rows,
                    in_features=inputs,
                    out_features=outputs,
                    groups=8,
                    scale_recipe=recipe,
                )
                for rows in (8192, 32768)
                for recipe in ("", *recipes)
            ]
    attention = [
        case
        for heads in CORE_HEADS
        for length in (2048, 4096, 8192)
        for case in calls(heads, length, 1, (("causal", "te"),), "bf16")
    ]
    return in_tier(2, [*modules, *attention])


def of_transformer_engine(case: Case) -> bool:
    """Returns whether a case runs in Transformer Engine alone."""
    return isinstance(case, ModuleCase) or (isinstance(case, AttentionCase) and case.kernel == "te")


def parts_of_modules(cost_model: CostModel, cases: Sequence[ModuleCase]) -> list[TimeEstimate]:
    """Returns the times of each product and kernel of modules of one kind in 16 bits: forward, both gradients, the sum
    of weight gradients, norms. Raises MissingCurveError as the cost model does."""
    first = cases[0]
    rows, inputs, outputs, groups = (
        ints([getattr(case, name) for case in cases]) for name in ("rows", "in_features", "out_features", "groups")
    )
    grouped = first.module == "grouped_linear"
    parts = []
    # Of a weight gradient the grouped query has the contracted rows as m, and the weight as k x n.
    for layout, m, k, n in (
        ("NT", rows, inputs, outputs),
        ("NN", rows, outputs, inputs),
        ("TN", *((rows, inputs, outputs) if grouped else (outputs, rows, inputs))),
    ):
        if grouped:
            query = GroupedLinearQuery(groups=groups, m=m, k=k, n=n, layout=layout, dtype=first.dtype)
            parts.append(cost_model.grouped_linear_s(query))
        else:
            parts.append(cost_model.linear_s(LinearQuery(m=m, k=k, n=n, layout=layout, dtype=first.dtype)))
    kernels = [("accumulate_fp32", "backward", groups * outputs)]
    if first.module == "layernorm_linear":
        kernels += [("rmsnorm", "forward", rows), ("rmsnorm", "backward", rows)]
    for kernel, direction, count in kernels:
        parts.append(
            cost_model.memory_bound_s(
                MemoryBoundQuery(kernel=kernel, rows=count, width=inputs, dtype=first.dtype, direction=direction)
            )
        )
    return parts


def module_notes(profile: ProfileDatabase) -> list[str]:
    """Returns a line for each kind of module in 16 bits: its measured times over those of its measured parts."""
    cost_model = ProfileCostModel(profile=profile)
    ratios: dict[str, list[float]] = {}
    for sample in profile.measured_samples(Family.MODULE):
        case = sample.case
        assert isinstance(case, ModuleCase)
        if case.scale_recipe:
            continue
        with suppress(MissingCurveError):
            parts = parts_of_modules(cost_model, [case])
            if all(int(part.origin[0]) <= int(Origin.EXTRAPOLATED) for part in parts):
                sum_s = float(np.sum([part.seconds[0] for part in parts]))
                ratios.setdefault(case.module, []).append(sample.median_s / sum_s)
    return [
        f"Transformer Engine's {module} takes {min(found):.2f} to {max(found):.2f} times its parts measured alone "
        f"({len(found)} cases)"
        for module, found in ratios.items()
    ]
