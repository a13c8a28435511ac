"""What a generator command says about the model, and how one of its flags is refused."""

from dataclasses import dataclass, fields
from pathlib import Path

from spec.errors import ConfigError

MEGATRON = "Megatron"
DEEPSPEED = "DeepSpeed"
FSDP = "FSDP"
DEEPSEEK = "DeepSeek"
FRAMES = (MEGATRON, DEEPSPEED, FSDP, DEEPSEEK)

# A model may have none of these; everything else that is counted is 1 or more.
MAY_BE_ZERO = ("q_lora_rank", "n_shared_expert", "n_dense_layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFlags:
    """What was typed about the model; None is not given. ``ffn_hidden_size`` is the width of an expert in a
    model of experts, unless ``moe_ffn_hidden_size`` gives that width apart."""

    frame: str = MEGATRON
    model_size: str | None = None
    config: Path | None = None
    assume: str | None = None
    model_name: str | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    num_query_groups: int | None = None
    ffn_hidden_size: int | None = None
    moe_ffn_hidden_size: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    make_vocab_size_divisible_by: int | None = None
    swiglu: bool = False
    gated_linear_unit: bool = False
    add_bias_linear: bool = False
    moe_enable: bool = False
    num_experts: int | None = None
    moe_router_topk: int | None = None
    n_shared_expert: int | None = None
    n_dense_layers: int | None = None
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_dim: int | None = None
    qk_rope_dim: int | None = None
    v_head_dim: int | None = None

    @property
    def gated(self) -> bool:
        """Whether feed-forward layers get a gate."""
        return self.swiglu or self.gated_linear_unit

    @property
    def expert_width(self) -> int | None:
        """Feed-forward width of one expert."""
        return self.ffn_hidden_size if self.moe_ffn_hidden_size is None else self.moe_ffn_hidden_size

    def check(self) -> None:
        """Raise ConfigError for a size that no model has."""
        for each in fields(self):
            value = getattr(self, each.name)
            low = 0 if each.name in MAY_BE_ZERO else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < low:
                raise refuse(each.name, value, f"{low} or more")


def refuse(flag: str, value: object, allowed: str) -> ConfigError:
    """The error of one flag of the generator."""
    return ConfigError(where="generate", key=f"--{flag}", value=value, allowed=allowed)
