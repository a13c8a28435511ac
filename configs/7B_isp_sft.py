"""InternLM 7B under isp. Source: InternEvo configs/7B_isp_sft.py.

NUM_KV_ATTENTION_HEAD is defined there but not put into model: kv heads are the 32 heads."""

with read_base():
    from configs._base_.training import *

model_type = "INTERNLM2"

model = dict(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    vocab_size=103168,
    mlp_ratio=8 / 3,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
    apply_post_layer_norm=False,
)

data = dict(seq_len=2048, micro_num=4, micro_bsz=2)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=2, mode="isp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=4, overlap=True, memory_pool=True),
    sequence_2D=dict(enable=False, head_size=2, context_size=4, window_size=1),
)
