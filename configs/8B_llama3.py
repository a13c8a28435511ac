"""Llama-3.1-8B. Source: Llama 3, arXiv 2407.21783, table 3; huggingface.co/meta-llama/Llama-3.1-8B
config.json; pre-training at 8,192 tokens (sec. 3.4). 8,030,261,248 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "LLAMA2"

model = dict(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_kv_attention_heads=8,
    vocab_size=128256,
    mlp_ratio=3.5,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
    rope_base=500000,
    apply_post_layer_norm=False,
)

data = dict(seq_len=8192, micro_num=8, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=2, mode="msp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
