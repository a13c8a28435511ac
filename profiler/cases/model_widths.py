"""Widths of published models, from which the shapes of the sweep are derived."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelWidths:
    """Elements. ``ffn`` is the feed-forward width of one of its matrices; ``gated`` models have two
    in and one out; ``experts`` > 0: ``ffn`` is one expert's, and each token goes to
    ``topk`` of them."""

    name: str
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool = True
    experts: int = 0
    topk: int = 0


MODELS: tuple[ModelWidths, ...] = (
    # Llama 2: arXiv 2307.09288 and the config.json of meta-llama/Llama-2-*-hf
    ModelWidths("Llama-2-7B", 4096, 11008, 32, 32, 128, 32000),
    ModelWidths("Llama-2-70B", 8192, 28672, 64, 8, 128, 32000),
    # InternLM2: arXiv 2403.17297 table 2 and the config.json of internlm/internlm2-*
    ModelWidths("InternLM2-7B", 4096, 14336, 32, 8, 128, 92544),
    ModelWidths("InternLM2-20B", 6144, 16384, 48, 8, 128, 92544),
    # Llama 3.1: arXiv 2407.21783 table 3
    ModelWidths("Llama-3.1-8B", 4096, 14336, 32, 8, 128, 128256),
    ModelWidths("Llama-3.1-405B", 16384, 53248, 128, 8, 128, 128256),
    ModelWidths("Llama-2-13B", 5120, 13824, 40, 40, 128, 32000),
    # Qwen2: arXiv 2407.10671 table 1
    ModelWidths("Qwen2-72B", 8192, 29568, 64, 8, 128, 152064),
    # GPT 22B and 175B: arXiv 2205.05198 table 3; vocabulary ibid. sec. 6
    ModelWidths("GPT-22B", 6144, 24576, 64, 64, 96, 51200, gated=False),
    ModelWidths("GPT-175B", 12288, 49152, 96, 96, 128, 51200, gated=False),
)

EXPERT_MODELS: tuple[ModelWidths, ...] = (
    # Mixtral 8x7B: arXiv 2401.04088 table 1
    ModelWidths("Mixtral-8x7B", 4096, 14336, 32, 8, 128, 32000, experts=8, topk=2),
    # DeepSeek-V3: arXiv 2412.19437 sec. 4.2, 256 routed experts
    ModelWidths("DeepSeek-V3", 7168, 2048, 128, 128, 192, 129280, experts=256, topk=8),
)

TINY_MODEL = ModelWidths("tiny", 256, 896, 8, 4, 32, 1024)
"""Small enough for a processor: the widths of configs/tiny_internlm2.py."""


def linear_widths(model: ModelWidths, tp: int) -> dict[str, tuple[int, int]]:
    """Returns the (in, out) features of every linear on one of ``tp`` ranks, without those that do not divide."""
    # Fewer key heads than ranks are replicated: every rank has at least one.
    qkv = (model.heads + 2 * max(model.kv_heads, tp)) * model.head_dim
    ins = 2 if model.gated else 1
    shapes = {
        "qkv": (model.hidden, qkv, 1),
        "attention_out": (model.heads * model.head_dim, model.hidden, 0),
        "mlp_in": (model.hidden, ins * model.ffn, 1),
        "mlp_one_in": (model.hidden, model.ffn, 1),
        "mlp_out": (model.ffn, model.hidden, 0),
        "head": (model.hidden, model.vocab, 1),
    }
    cut = {}
    for name, (inputs, outputs, axis) in shapes.items():
        whole = outputs if axis else inputs
        if whole % (tp * 8) == 0:
            cut[name] = (inputs, outputs // tp) if axis else (inputs // tp, outputs)
    return cut
