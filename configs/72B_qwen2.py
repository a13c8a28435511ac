"""Qwen2-72B. Source: Qwen2 technical report, arXiv 2407.10671, table 1; huggingface.co/Qwen/Qwen2-72B
config.json (intermediate_size 29,568 = 231 x 128). 72,706,203,648 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "QWEN2"

model = dict(
    num_layers=80,
    hidden_size=8192,
    num_attention_heads=64,
    num_kv_attention_heads=8,
    vocab_size=152064,
    mlp_ratio=29568 / 8192,
    multiple_of=128,
    qkv_bias=True,
    o_bias=False,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
    rope_base=1000000,
    apply_post_layer_norm=False,
)

data = dict(seq_len=4096, micro_num=16, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="fsp"),
    pipeline=dict(size=4, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
