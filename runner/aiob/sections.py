"""Which section of AICB's file an operation of the forward is timed in: AICB's names, where it has them.

A dense half as AICB's AiobMegatron.py names it; latent attention as its training/AiobDeepSeek.py; the router as its
inference/AiobQwen3Moe.py, for its training files have none. What it has no name for (the rows of experts put in
order and back, shared experts, mixers other than attention) is called by module and role.
"""

from ops.op import Comm, HostWork, Op
from ops.roles import Module, OpKey, Role

SECTIONS: dict[OpKey, str] = {
    OpKey(Module.EMBEDDING, Role.TABLE): "Emb",
    OpKey(Module.ATTENTION, Role.NORM): "layernorm",
    OpKey(Module.ATTENTION, Role.QKV): "atten_qkv",
    OpKey(Module.ATTENTION, Role.CORE): "atten_flash",
    OpKey(Module.ATTENTION, Role.OUT): "atten_linear",
    OpKey(Module.MLP, Role.NORM): "layernorm2",
    OpKey(Module.MLP, Role.UP): "mlp_linear_1",
    OpKey(Module.MLP, Role.ACTIVATION): "mlp_gelu",
    OpKey(Module.MLP, Role.DOWN): "mlp_linear_2",
    OpKey(Module.MOE, Role.ROUTER): "moe_route_gate",
    OpKey(Module.MOE, Role.TOP_K): "moe_route_select_experts",
    OpKey(Module.MOE, Role.UP): "mlp_linear_1",
    OpKey(Module.MOE, Role.ACTIVATION): "mlp_gelu",
    OpKey(Module.MOE, Role.DOWN): "mlp_linear_2",
    OpKey(Module.SHARED_EXPERTS, Role.UP): "mlp_shared_linear_1",
    OpKey(Module.SHARED_EXPERTS, Role.ACTIVATION): "mlp_shared_gelu",
    OpKey(Module.SHARED_EXPERTS, Role.DOWN): "mlp_shared_linear_2",
    OpKey(Module.HEAD, Role.NORM): "layernorm_post",
    OpKey(Module.HEAD, Role.LOGITS): "logit_time",
    OpKey(Module.STEP, Role.UPDATE): "param_time",
}
LATENT_SECTIONS: dict[OpKey, str] = {
    OpKey(Module.ATTENTION, Role.Q_DOWN): "attention_linear_q_lora",
    OpKey(Module.ATTENTION, Role.NORM, Role.Q_UP): "attention_linear_q_lora",
    OpKey(Module.ATTENTION, Role.Q_UP): "attention_q_column",
    OpKey(Module.ATTENTION, Role.KV_DOWN): "attention_linear_kv_lora",
    OpKey(Module.ATTENTION, Role.NORM, Role.KV_UP): "attention_linear_kv_lora",
    OpKey(Module.ATTENTION, Role.KV_UP): "attention_kv_column",
    OpKey(Module.ATTENTION, Role.CORE): "attention_kv_column",
    OpKey(Module.ATTENTION, Role.OUT): "attention_o_row",
}
"""Beside the others: a latent's norm is timed with the product before it, and the core with that of keys and values."""
UNTIMED = (
    Module.EMBEDDING,
    Module.ATTENTION,
    Module.MLP,
    Module.HEAD,
    Module.LOSS,
    Module.LAYER,
    Module.MTP,
    Module.STEP,
    Module.OTHER,
)
"""Modules of which AICB times the operations above alone: no rotary embedding, no residual add, no loss."""


def section_of(op: Op, *, latent: bool) -> str | None:
    """The section; None for what is not timed, collectives and the host's work among it. ``latent``: of a layer with
    latent attention."""
    if isinstance(op, Comm | HostWork):
        return None
    named = SECTIONS | LATENT_SECTIONS if latent else SECTIONS
    if op.key in named:
        return named[op.key]
    if op.module in UNTIMED:
        return None
    return f"{op.module.value}_{op.role.value}"
