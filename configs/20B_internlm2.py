"""InternLM2-20B. Source: InternLM2 technical report, arXiv 2403.17297, table 1;
huggingface.co/internlm/internlm2-20b config.json (intermediate_size 16,384). 19,861,149,696 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "INTERNLM2_PUBLIC"

model = dict(
    num_layers=48,
    hidden_size=6144,
    num_attention_heads=48,
    num_kv_attention_heads=8,
    vocab_size=92544,
    mlp_ratio=8 / 3,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
    rope_base=1000000,
    apply_post_layer_norm=False,
)

data = dict(seq_len=4096, micro_num=16, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="msp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
