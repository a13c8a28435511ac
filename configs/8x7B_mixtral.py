"""Mixtral-8x7B. Source: Mixtral of Experts, arXiv 2401.04088, table 1;
huggingface.co/mistralai/Mixtral-8x7B-v0.1 config.json. 46,702,792,704 parameters, 12.9 B active.

The published model drops no token, hence moe_type Dropless.
"""

with read_base():
    from configs._base_.training import *

model_type = "MIXTRALMOE"

model = dict(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_kv_attention_heads=8,
    max_position_embeddings=32768,
    vocab_size=32000,
    mlp_ratio=3.5,
    qkv_bias=False,
    o_bias=False,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    use_sliding_window=False,
    rope_base=1000000,
    checkpoint=False,
    apply_post_layer_norm=False,
    moe_type="Dropless",
    num_experts=8,
    top_k=2,
)

data = dict(seq_len=4096, micro_num=16, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1, fsdp=False),
    tensor=dict(size=2, mode="msp"),
    pipeline=dict(size=4, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
    expert=dict(size=8, no_tp=True),
)
