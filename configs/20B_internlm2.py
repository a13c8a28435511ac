"""InternLM2-20B. Source: InternLM2 technical report, arXiv 2403.17297, table 1;
huggingface.co/internlm/internlm2-20b config.json (intermediate_size 16,384). 19,861,149,696 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "INTERNLM2_PUBLIC"

VOCAB_SIZE = 92544
SEQ_LEN = 4096
HIDDEN_SIZE = 6144
NUM_ATTENTION_HEAD = 48
NUM_KV_ATTENTION_HEAD = 8
MLP_RATIO = 8 / 3
NUM_LAYER = 48

model = dict(
    num_layers=NUM_LAYER,
    hidden_size=HIDDEN_SIZE,
    num_attention_heads=NUM_ATTENTION_HEAD,
    num_kv_attention_heads=NUM_KV_ATTENTION_HEAD,
    vocab_size=VOCAB_SIZE,
    mlp_ratio=MLP_RATIO,
    multiple_of=256,
    no_bias=True,
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
    tensor=dict(size=8, mode="msp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
