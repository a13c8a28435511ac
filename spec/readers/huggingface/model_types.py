"""Which function reads which ``model_type`` of a ``config.json``."""

from collections.abc import Callable
from dataclasses import dataclass

from spec.model import ModelSpec
from spec.readers.huggingface.deepseek import deepseek
from spec.readers.huggingface.dense import (
    cohere,
    cohere2,
    ernie4_5,
    exaone4,
    glm4,
    hunyuan,
    internlm2,
    llama,
    mistral,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen3,
    seed_oss,
)
from spec.readers.huggingface.gemma import gemma, gemma2, gemma3
from spec.readers.huggingface.gpt import (
    bloom,
    falcon,
    gpt2,
    gpt_bigcode,
    gpt_neox,
    nemotron,
    opt,
    phi,
    stablelm,
    starcoder2,
)
from spec.readers.huggingface.hybrid import nemotron_h, qwen3_next
from spec.readers.huggingface.mamba import bamba, granitemoehybrid, mamba2
from spec.readers.huggingface.moe import (
    ernie4_5_moe,
    glm4_moe,
    gpt_oss,
    granitemoe,
    llama4,
    minimax_m2,
    mixtral,
    olmoe,
    phimoe,
    qwen2_moe,
    qwen3_moe,
)
from spec.section import Section

Reader = Callable[[Section, str], ModelSpec]
MODEL_TYPES: dict[str, Reader] = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "internlm2": internlm2,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "kimi_k2": deepseek,
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen3_next,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "phi": phi,
    "phi3": phi3,
    "phimoe": phimoe,
    "gpt_oss": gpt_oss,
    "glm4": glm4,
    "glm4_moe": glm4_moe,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "olmoe": olmoe,
    "falcon": falcon,
    "bloom": bloom,
    "opt": opt,
    "gpt_bigcode": gpt_bigcode,
    "starcoder2": starcoder2,
    "granite": llama,
    "granitemoe": granitemoe,
    "granitemoeshared": granitemoe,
    "granitemoehybrid": granitemoehybrid,
    "seed_oss": seed_oss,
    "smollm3": llama,
    "cohere": cohere,
    "cohere2": cohere2,
    "llama4_text": llama4,
    "minimax_m2": minimax_m2,
    "ernie4_5": ernie4_5,
    "ernie4_5_moe": ernie4_5_moe,
    "hunyuan_v1_dense": hunyuan,
    "exaone4": exaone4,
    "nemotron": nemotron,
    "stablelm": stablelm,
    "bamba": bamba,
    "mamba2": mamba2,
}
TEXT_TYPES = {"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral", "llava": "llama"}
"""Type of the text model inside of one that also sees or hears, where its own section does not say."""

MAMBA_1 = "Mamba-1's scan runs on the vector units, an exponential for each state of each channel and token: no operation prices it"
UNREAD = dict.fromkeys(("mamba", "falcon_mamba", "jamba", "zamba"), MAMBA_1)
"""Types that no reader is right for, whatever is assumed, and why: their layers would be priced as others.
Source of the scan: arXiv 2312.00752 sec. 3.3.2; state-spaces/mamba
csrc/selective_scan/selective_scan_fwd_kernel.cuh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """A reader for types that are not known; ``words`` say what is taken for granted then."""

    read: Reader
    words: str


ASSUMABLE: dict[str, Assumed] = {
    "llama": Assumed(
        read=llama,
        words="read as llama: gated feed-forward layers, an RMSNorm before each half, rotary positions, full attention, biases "
        "only where attention_bias and mlp_bias say so, a head apart from the embedding unless tie_word_embeddings",
    )
}
