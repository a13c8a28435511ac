"""Llama-2-7B. Source: Llama 2, arXiv 2307.09288, table 1 and appendix; huggingface.co/meta-llama/Llama-2-7b-hf
config.json. 6,738,415,616 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "LLAMA2"

model = dict(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    vocab_size=32000,
    mlp_ratio=8 / 3,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
    apply_post_layer_norm=False,
)

data = dict(seq_len=4096, micro_num=8, micro_bsz=2)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=2, mode="msp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
