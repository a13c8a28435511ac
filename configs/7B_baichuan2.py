"""Baichuan2-7B. Source: Baichuan 2, arXiv 2309.10305, table 2;
huggingface.co/baichuan-inc/Baichuan2-7B-Base config.json (intermediate_size 11,008).
7,505,973,248 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "BAICHUAN2"

VOCAB_SIZE = 125696
SEQ_LEN = 4096
HIDDEN_SIZE = 4096
NUM_ATTENTION_HEAD = 32
MLP_RATIO = 8 / 3
NUM_LAYER = 32

model = dict(
    num_layers=NUM_LAYER,
    hidden_size=HIDDEN_SIZE,
    num_attention_heads=NUM_ATTENTION_HEAD,
    vocab_size=VOCAB_SIZE,
    mlp_ratio=MLP_RATIO,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    use_flash_attn=True,
    checkpoint=False,
    layer_norm_epsilon=1e-6,
    apply_post_layer_norm=False,
    num_chunks=1,
)

data = dict(seq_len=SEQ_LEN, micro_num=8, micro_bsz=2)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=2, mode="msp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
