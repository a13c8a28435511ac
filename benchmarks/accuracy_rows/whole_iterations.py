"""What Megatron-Bridge's recipes of experts narrow beside the linear layers where one graph holds a whole iteration.

Release 26.06 (v0.5.0): scripts/performance/configs/*/*_workload_base_configs.py, cuda_graph_impl
"full_iteration" of MXFP8 with fp8_dot_product_attention, and fp8_output_proj in *_llm_pretrain.py; 26.08
(v0.6.0): perf_recipes/{deepseek,qwen,gpt_oss}/common.py.
"""

from collections.abc import Mapping

ATTENDS: Mapping[str, object] = {"precision.attention": "fp8"}
HEAD: Mapping[str, object] = {"precision.narrow_head": True}
# (start of the model's name, start of the GPU's, settings); the first that fits.
BY_MODEL: tuple[tuple[str, str, Mapping[str, object]], ...] = (
    ("deepseek_v3", "gb200", HEAD),
    ("deepseek_v3", "", {**HEAD, **ATTENDS}),
    ("qwen3", "", ATTENDS),
    ("gpt_oss_120b", "", {**HEAD, **ATTENDS}),
)


def narrowed(model: str, gpu: str) -> Mapping[str, object]:
    """Settings of MXFP8 by names in any case, with hyphens or underscores; nothing for a model without such a
    recipe.
    """
    model, gpu = (name.lower().replace("-", "_") for name in (model, gpu))
    for start, on, said in BY_MODEL:
        if model.startswith(start) and gpu.startswith(on):
            return said
    return {}
