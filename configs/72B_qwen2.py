"""Qwen2-72B. Source: Qwen2 technical report, arXiv 2407.10671, table 1; huggingface.co/Qwen/Qwen2-72B
config.json (intermediate_size 29,568 = 231 x 128). 72,706,203,648 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "QWEN2"

VOCAB_SIZE = 152064
SEQ_LEN = 4096
HIDDEN_SIZE = 8192
NUM_ATTENTION_HEAD = 64
NUM_KV_ATTENTION_HEAD = 8
MLP_RATIO = 29568 / 8192
NUM_LAYER = 80

model = dict(
    num_layers=NUM_LAYER,
    hidden_size=HIDDEN_SIZE,
    num_attention_heads=NUM_ATTENTION_HEAD,
    num_kv_attention_heads=NUM_KV_ATTENTION_HEAD,
    vocab_size=VOCAB_SIZE,
    mlp_ratio=MLP_RATIO,
    multiple_of=128,
    qkv_bias=True,
    o_bias=False,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    use_flash_attn=True,
    checkpoint=False,
    rope_base=1000000,
    apply_post_layer_norm=False,
    num_chunks=1,
)

data = dict(seq_len=SEQ_LEN, micro_num=16, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="fsp"),
    pipeline=dict(size=4, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
