"""Baichuan2-7B. Source: Baichuan 2, arXiv 2309.10305, table 2;
huggingface.co/baichuan-inc/Baichuan2-7B-Base config.json (intermediate_size 11,008).
7,505,973,248 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "BAICHUAN2"

model = dict(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    vocab_size=125696,
    mlp_ratio=8 / 3,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
    layer_norm_epsilon=1e-6,
    apply_post_layer_norm=False,
)

data = dict(seq_len=4096, micro_num=8, micro_bsz=2)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=2, mode="msp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
