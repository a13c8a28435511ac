"""A model small enough for a CPU: the InternLM2 block at toy sizes (no published source)."""

with read_base():
    from configs._base_.training import *

model_type = "INTERNLM2_PUBLIC"

model = dict(
    num_layers=4,
    hidden_size=256,
    num_attention_heads=8,
    num_kv_attention_heads=4,
    vocab_size=1024,
    mlp_ratio=3.5,
    multiple_of=64,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
)

data = dict(seq_len=256, micro_num=4, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=2, mode="msp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
