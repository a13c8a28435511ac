"""Mixtral-8x7B. Source: Mixtral of Experts, arXiv 2401.04088, table 1;
huggingface.co/mistralai/Mixtral-8x7B-v0.1 config.json. 46,702,792,704 parameters, 12.9 B active.

The published model drops no token, hence moe_type Dropless.
"""

with read_base():
    from configs._base_.training import *

model_type = "MIXTRALMOE"

SEQ_LEN = 4096
HIDDEN_SIZE = 4096
NUM_ATTENTION_HEAD = 32
NUM_KV_ATTENTION_HEAD = 8
MLP_RATIO = 3.5
NUM_LAYER = 32
VOCAB_SIZE = 32000

model = dict(
    num_layers=NUM_LAYER,
    hidden_size=HIDDEN_SIZE,
    num_attention_heads=NUM_ATTENTION_HEAD,
    num_kv_attention_heads=NUM_KV_ATTENTION_HEAD,
    max_position_embeddings=32768,
    vocab_size=VOCAB_SIZE,
    mlp_ratio=MLP_RATIO,
    qkv_bias=False,
    o_bias=False,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    use_flash_attn=True,
    use_sliding_window=False,
    rope_base=1000000,
    checkpoint=False,
    apply_post_layer_norm=False,
    num_chunks=1,
    moe_type="Dropless",
    num_experts=8,
    top_k=2,
)

data = dict(seq_len=SEQ_LEN, micro_num=16, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1, fsdp=False),
    tensor=dict(size=2, mode="msp"),
    pipeline=dict(size=4, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
    expert=dict(size=8, no_tp=True),
)
