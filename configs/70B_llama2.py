"""Llama-2-70B. Source: Llama 2, arXiv 2307.09288, table 1 and appendix; huggingface.co/meta-llama/Llama-2-70b-hf
config.json. 68,976,648,192 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "LLAMA2"

model = dict(
    num_layers=80,
    hidden_size=8192,
    num_attention_heads=64,
    num_kv_attention_heads=8,
    vocab_size=32000,
    mlp_ratio=3.5,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
    apply_post_layer_norm=False,
)

data = dict(seq_len=4096, micro_num=16, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="fsp"),
    pipeline=dict(size=4, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
