"""Widths of published models: where the benchmark shapes of the sweep come from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
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
    ModelWidths(name="Llama-2-7B", hidden=4096, ffn=11008, heads=32, kv_heads=32, head_dim=128, vocab=32000),
    ModelWidths(name="Llama-2-70B", hidden=8192, ffn=28672, heads=64, kv_heads=8, head_dim=128, vocab=32000),
    # InternLM2: arXiv 2403.17297 table 2 and the config.json of internlm/internlm2-*
    ModelWidths(name="InternLM2-7B", hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128, vocab=92544),
    ModelWidths(
        name="InternLM2-20B", hidden=6144, ffn=16384, heads=48, kv_heads=8, head_dim=128, vocab=92544
    ),
    # Llama 3.1: arXiv 2407.21783 table 3
    ModelWidths(
        name="Llama-3.1-8B", hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256
    ),
    ModelWidths(
        name="Llama-3.1-405B", hidden=16384, ffn=53248, heads=128, kv_heads=8, head_dim=128, vocab=128256
    ),
    ModelWidths(name="Llama-2-13B", hidden=5120, ffn=13824, heads=40, kv_heads=40, head_dim=128, vocab=32000),
    # Qwen2: arXiv 2407.10671 table 1
    ModelWidths(name="Qwen2-72B", hidden=8192, ffn=29568, heads=64, kv_heads=8, head_dim=128, vocab=152064),
    # GPT 22B and 175B: arXiv 2205.05198 table 3; vocabulary ibid. sec. 6
    ModelWidths(
        name="GPT-22B", hidden=6144, ffn=24576, heads=64, kv_heads=64, head_dim=96, vocab=51200, gated=False
    ),
    ModelWidths(
        name="GPT-175B",
        hidden=12288,
        ffn=49152,
        heads=96,
        kv_heads=96,
        head_dim=128,
        vocab=51200,
        gated=False,
    ),
)

EXPERT_MODELS: tuple[ModelWidths, ...] = (
    # Mixtral 8x7B: arXiv 2401.04088 table 1
    ModelWidths(
        name="Mixtral-8x7B",
        hidden=4096,
        ffn=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=32000,
        experts=8,
        topk=2,
    ),
    # DeepSeek-V3: arXiv 2412.19437 sec. 4.2, 256 routed experts
    ModelWidths(
        name="DeepSeek-V3",
        hidden=7168,
        ffn=2048,
        heads=128,
        kv_heads=128,
        head_dim=192,
        vocab=129280,
        experts=256,
        topk=8,
    ),
)

TINY_MODEL = ModelWidths(name="tiny", hidden=256, ffn=896, heads=8, kv_heads=4, head_dim=32, vocab=1024)
"""Small enough for a processor: the widths of configs/tiny_internlm2.py."""


def linear_widths(model: ModelWidths, tp: int) -> dict[str, tuple[int, int]]:
    """(in, out) features of every linear on one of ``tp`` ranks; what does not divide is left out."""
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
